"""Transactions: their coordinator (`core`), and its driver and connections in a broker (`io`)."""
