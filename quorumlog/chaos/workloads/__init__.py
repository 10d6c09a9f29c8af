"""Workloads: the operations of clients during faults; one module each, listed in `registry`."""
