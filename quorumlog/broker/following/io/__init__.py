"""The connections to leaders, and what their answers change here."""
