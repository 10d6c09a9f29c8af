"""Transactions: coordinators on brokers that fail, producers, and readers of what is committed."""
