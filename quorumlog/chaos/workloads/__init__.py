"""What clients do while the nemesis is at work: one module per workload, found in `registry`."""
