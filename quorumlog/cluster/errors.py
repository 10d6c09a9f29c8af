"""What can go wrong with a cluster on this machine: one line each, for a person to act on."""


class ClusterError(Exception):
    """The cluster cannot do what was asked; the message says what to do about it."""


class InvalidArgument(ClusterError):
    """An argument or a setting makes no sense. Nothing was started and nothing was written."""


class NodeFailed(ClusterError):
    """A node ended by itself, or did not get ready in time."""
