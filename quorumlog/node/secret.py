"""The shared secret of the control listener: only the cluster's nodes have it."""

import logging
import re
import stat
from pathlib import Path
from typing import Final

from quorumlog.node.errors import StartFailed

_SECRET: Final = re.compile(r"[!-~]{16,1024}")  # valid in an HTTP header
_READABLE_BY_OTHERS: Final = stat.S_IRGRP | stat.S_IROTH
_NAME: Final = "control.shared.secret.file"
_logger: Final = logging.getLogger(__name__)


def read_secret(path: Path | None) -> str | None:
    """Return the secret in the file, without surrounding blanks; None if no file is set.

    Raises StartFailed, without the content of the file.
    """
    if path is None:
        return None
    try:
        text = path.read_text(encoding="ascii").strip()
        mode = path.stat().st_mode
    except OSError as error:
        raise StartFailed(f"{_NAME}={path}: {error.strerror}") from error
    except UnicodeDecodeError:
        text, mode = "", 0
    if _SECRET.fullmatch(text) is None:
        raise StartFailed(
            f"{_NAME}={path}: the file must hold 16 to 1024 printable ASCII characters, no blanks"
        )
    if mode & _READABLE_BY_OTHERS:
        _logger.warning("%s=%s: other users can read the secret; chmod 600 it", _NAME, path)
    return text
