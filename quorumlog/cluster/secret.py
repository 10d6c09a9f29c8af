"""The shared secret of a local cluster: `DIR/control.secret`, readable for its owner only.

It is created with the cluster. A cluster of an earlier version without a secret works, too.
"""

import os
import secrets
from pathlib import Path
from typing import Final

SECRET_FILE: Final = "control.secret"  # noqa: S105 - the name of a file
_SECRET_BYTES: Final = 32


def make_secret(directory: Path) -> None:
    """Write a new secret into the cluster's directory, unless it has one. Raises OSError."""
    path = directory / SECRET_FILE
    if path.exists():
        return
    unfinished = directory / f"{SECRET_FILE}.tmp"
    unfinished.unlink(missing_ok=True)
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_urlsafe(_SECRET_BYTES) + "\n")
    unfinished.replace(path)


def secret_file(directory: Path) -> Path | None:
    """Return the absolute path of the cluster's secret; None if the cluster has none."""
    path = (directory / SECRET_FILE).resolve()
    return path if path.exists() else None
