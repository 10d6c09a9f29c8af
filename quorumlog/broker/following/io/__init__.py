"""The connections to leaders."""
