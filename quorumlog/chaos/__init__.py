"""Faults, workloads, histories, and the proof that acknowledged data survived."""
