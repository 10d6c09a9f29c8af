"""The cores on one heap, one clock and one seed."""
