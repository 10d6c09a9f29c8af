"""The pipe that tells nodes when the process that started them has ended.

A node that is not detached holds the read end, and this process alone the write end: it writes
nothing, and the kernel closes it however the process ends, by SIGKILL too. The node then reads the
end of the file and stops.
"""

import os

_ends: tuple[int, int] | None = None  # (read, write): one pipe for all nodes of this process


def read_end() -> int:
    """Return the descriptor to hand to a node that shall end with this process."""
    global _ends  # noqa: PLW0603 - it belongs to the process, as its end does
    if _ends is None:
        _ends = os.pipe()
        os.set_blocking(_ends[0], False)
    return _ends[0]


def _let_go() -> None:
    """Close both ends in a forked child: it may outlive the process that the nodes belong to."""
    global _ends  # noqa: PLW0603 - as above
    if _ends is not None:
        for descriptor in _ends:
            os.close(descriptor)
        _ends = None


os.register_at_fork(after_in_child=_let_go)
