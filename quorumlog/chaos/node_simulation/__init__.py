"""A simulation of whole nodes in one process, under virtual time; the seed determines the run."""
