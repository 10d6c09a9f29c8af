"""Transactions: so far the core of their coordinator, which no broker runs yet."""
