"""Whole nodes in one process: the real code under virtual time; a run is a function of its seed."""
