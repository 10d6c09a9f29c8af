"""The error of a node that cannot run."""


class StartFailed(Exception):
    """The node cannot run here, now; the message gives the remedy."""
