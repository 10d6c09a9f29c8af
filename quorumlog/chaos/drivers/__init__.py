"""The client libraries a workload can be run with."""
