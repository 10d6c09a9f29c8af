"""Sockets, clocks and tasks of the client, which drive the cores."""
