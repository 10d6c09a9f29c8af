"""Back ends of faults: each performs operations on the nodes of one kind of cluster."""
