"""One chaos run: cluster, workload, nemesis, history, verdict."""
