"""The decisions of a mirror: pure, without clients, clock or files."""
