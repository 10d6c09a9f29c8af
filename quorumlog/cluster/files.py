"""Files of a cluster's directory: replaced as a whole, and readable by their owner alone if secret.

DIR/control.secret    the shared secret of its nodes
"""

import os
from pathlib import Path
from typing import Final

from quorumlog.cluster.errors import ClusterError

SECRET_FILE: Final = "control.secret"  # noqa: S105 - the name of a file
_SECRET_BYTES: Final = 32
_OWNER: Final = 0o600
_ANYBODY: Final = 0o666  # less the umask


def replace_file(path: Path, text: str, *, is_private: bool) -> None:
    """Replace a file's content, durably and atomically, unless it is the same.

    `is_private`: its owner alone can read it. Raises ClusterError.
    """
    try:
        if path.exists() and path.read_text(encoding="utf-8") == text:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, text, _OWNER if is_private else _ANYBODY)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ClusterError(f"cannot write {path}: {reason}; choose another --dir") from error


def write_private(path: Path, text: str) -> None:
    """Write a file that its owner alone can read, durably and atomically. Raises OSError."""
    _write(path, text, _OWNER)


def _write(path: Path, text: str, mode: int) -> None:
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    flush_directory(path.parent)


def flush_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_secret(directory: Path) -> None:
    """Write a new secret into the cluster's directory, unless it has one. Raises OSError."""
    path = directory / SECRET_FILE
    if not path.exists():
        write_private(path, os.urandom(_SECRET_BYTES).hex() + "\n")


def secret_file(directory: Path) -> Path | None:
    """Return the absolute path of the cluster's secret; None if the cluster has none."""
    path = (directory / SECRET_FILE).resolve()
    return path if path.exists() else None
