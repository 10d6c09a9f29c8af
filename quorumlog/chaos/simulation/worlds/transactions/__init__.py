"""Transactions: coordinators on brokers that fail, producers, and `read_committed` readers."""
