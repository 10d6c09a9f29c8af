"""A node's program whose every fsync takes 10 ms longer, as on an ordinary network disk."""

import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from quorumlog.node.main import main

FSYNC_MS: Final = 10


def _slowed(fsync: Callable[[Any], None]) -> Callable[[Any], None]:
    def slow(descriptor: Any) -> None:
        time.sleep(FSYNC_MS / 1000)
        fsync(descriptor)

    return slow


if __name__ == "__main__":
    for name in ("fsync", "fdatasync"):
        setattr(os, name, _slowed(getattr(os, name)))
    sys.exit(main(sys.argv[1:]))
