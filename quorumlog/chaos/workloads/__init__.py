"""Workloads: what clients do while faults come and go; one module each, found in `registry`."""
