"""The cluster's metadata: a Raft log (KRaft), its controller, and the image the rest may see."""
