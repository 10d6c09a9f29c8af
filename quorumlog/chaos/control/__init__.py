"""Faults by hand: the verbs of a nemesis for tests, commands and other languages."""
