"""What clients do while the nemesis is at work."""
