"""Limits the rates of clients: bytes, request time, mutations, connections."""
