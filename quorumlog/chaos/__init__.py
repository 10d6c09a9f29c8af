"""Faults, workloads, histories and the proof of what survived."""
