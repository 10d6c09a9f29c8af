"""The partitions of an internal topic that this broker leads: loaded, served, given up."""
