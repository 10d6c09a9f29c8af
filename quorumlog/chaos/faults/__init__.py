"""What a nemesis can do to a cluster, by role."""
