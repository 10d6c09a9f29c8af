"""What needs only a log: a leader's answers are taken in here."""
