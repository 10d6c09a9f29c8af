"""A node whose system drops pages after a failed fsync, as Linux does.

While the file `lose-pages` is in its directory, each fsync of a partition's segment answers EIO,
and the bytes since the last one that worked are gone.
"""

import errno
import os
import sys
from pathlib import Path

from quorumlog.node.main import main

_durable: dict[Path, int] = {}
_fsync = os.fsync


def _lossy_fsync(handle: int) -> None:
    path = Path(f"/proc/self/fd/{handle}").readlink()
    node = path.parents[2] if path.suffix == ".log" else None
    if node is not None and (node / "lose-pages").exists():
        os.truncate(path, _durable.get(path, 0))
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
    _fsync(handle)
    if node is not None:
        _durable[path] = path.stat().st_size


if __name__ == "__main__":
    os.fsync = os.fdatasync = _lossy_fsync  # type: ignore[assignment]  # a plain function
    sys.exit(main(sys.argv[1:]))
