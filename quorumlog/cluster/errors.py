"""Errors of a cluster on this machine: one line each, which says what to do."""


class ClusterError(Exception):
    """The cluster cannot do what was asked; the message says what to do about it."""


class InvalidArgument(ClusterError, ValueError):
    """An argument or a setting is invalid. Nothing was started and nothing was written."""


class NodeFailed(ClusterError):
    """A node ended by itself, or did not get ready in time."""
