"""Sockets, clocks and tasks of the client: what drives the cores."""
