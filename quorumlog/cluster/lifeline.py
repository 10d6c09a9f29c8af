"""The pipe by which nodes detect the end of the process that started them.

A node that is not detached holds the read end, and this process alone the write end. It never
writes; the kernel closes the write end however the process ends, also by SIGKILL. The node then
reads the end of the file and stops.
"""

import os

_ends: tuple[int, int] | None = None  # (read, write): one pipe for all nodes of this process


def read_end() -> int:
    """Return the descriptor for a node that must end with this process."""
    global _ends  # noqa: PLW0603 - the pipe belongs to the process
    if _ends is None:
        _ends = os.pipe()
        os.set_blocking(_ends[0], False)
    return _ends[0]


def _let_go() -> None:
    """Close both ends in a forked child: it may outlive this process, the nodes' owner."""
    global _ends  # noqa: PLW0603 - as above
    if _ends is not None:
        for descriptor in _ends:
            os.close(descriptor)
        _ends = None


os.register_at_fork(after_in_child=_let_go)
