"""The error of a node that cannot run."""


class StartFailed(Exception):
    """The node cannot run here, now; the message says what to do."""
