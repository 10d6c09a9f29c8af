"""Errors of a cluster on this machine: one line each, with the remedy."""


class ClusterError(Exception):
    """A call on the cluster failed; the message gives the remedy."""


class InvalidArgument(ClusterError, ValueError):
    """An argument or a setting is invalid. No node was started and no file written."""


class NodeFailed(ClusterError):
    """A node ended by itself, or did not get ready in time."""
