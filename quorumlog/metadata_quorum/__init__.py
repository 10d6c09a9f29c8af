"""The cluster's metadata: a Raft log (KRaft), its controller, and the image for everything else."""
