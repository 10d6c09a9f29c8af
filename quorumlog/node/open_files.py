"""The limit of open files: each connection keeps one, and logs share some."""

import logging
import resource
from typing import Final

MACOS_LIMIT: Final = 10_240  # its OPEN_MAX: it refuses higher soft limits, whatever the hard limit

_logger: Final = logging.getLogger("quorumlog.node")


def raise_open_files_limit() -> int:
    """Raise this process's soft limit of open files to the hard limit; return the new limit.

    Systems set the soft limit low (1024, macOS 256) for programs that use `select`. If the limit
    cannot be raised, that is logged.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, MACOS_LIMIT):
        if not _is_more(wanted, soft):
            break
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            _logger.warning("open files: %d, and not more (%d): %s", soft, wanted, error)
        else:
            return wanted
    return soft


def _is_more(wanted: int, soft: int) -> bool:
    if soft == resource.RLIM_INFINITY:
        return False
    return wanted == resource.RLIM_INFINITY or wanted > soft
