"""Where faults are done: each back end performs operations on the nodes of one kind of cluster."""
