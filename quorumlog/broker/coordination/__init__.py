"""What the coordinators of internal topics share: groups today, transactions as another user."""
