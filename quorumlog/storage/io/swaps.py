"""Completes, when a log is opened, a swap of segments that a crash interrupted.

A `.log.swap` file is whole and durable: it replaces the offsets of its batches. Source: Kafka's
`LogLoader.completeSwapOperations`.
"""

import logging
import re
from typing import Final

from quorumlog.storage.core.aborted_transactions import SUFFIX as TRANSACTION_SUFFIX
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.batch_scan import scan_batches
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.segment_files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOOKUP_SUFFIXES,
    SWAP_SUFFIX,
    segment_path,
)

_SWAP_NAME: Final = re.compile(r"(\d{20})\.log\.swap")
_LOG_NAME: Final = re.compile(r"(\d{20})\.log")

_logger: Final = logging.getLogger(__name__)


def complete_swaps(disk: Disk, directory: str) -> None:
    """Put every `.log.swap` file in the place of the segments that it replaces, durably.

    Raises StorageError if such a file holds no whole batch: its segments then stay.
    """
    names = disk.listdir(directory)
    for match in filter(None, map(_SWAP_NAME.fullmatch, names)):
        base_offset = int(match[1])
        end_offset = _end_of(disk, f"{directory}/{match[0]}")
        _logger.warning("%s: offsets [%d, %d) are swapped in", directory, base_offset, end_offset)
        for found in filter(None, map(_LOG_NAME.fullmatch, names)):
            if base_offset <= int(found[1]) < end_offset:
                _set_aside(disk, directory, int(found[1]))
        path = segment_path(directory, base_offset)
        for suffix in LOOKUP_SUFFIXES:  # left if the crash came after the `.log` was renamed
            index_path = segment_path(directory, base_offset, suffix)
            if disk.exists(index_path):
                disk.unlink(index_path)
        # If the old segment had this file, so has the new one, unless it was already renamed.
        transactions_path = segment_path(directory, base_offset, TRANSACTION_SUFFIX)
        if disk.exists(transactions_path + CLEANED_SUFFIX):
            disk.rename(transactions_path + CLEANED_SUFFIX, transactions_path)
        disk.rename(path + SWAP_SUFFIX, path)
        disk.fsync_dir(directory)


def _set_aside(disk: Disk, directory: str, base_offset: int) -> None:
    for suffix in (".log", *INDEX_SUFFIXES):
        path = segment_path(directory, base_offset, suffix)
        if disk.exists(path):
            disk.rename(path, path + DELETED_SUFFIX)


def _end_of(disk: Disk, path: str) -> int:
    file = disk.open(path)
    try:
        end_offset = None
        for _, header in scan_batches(path, 0, file.size(), file.pread):
            end_offset = header.next_offset
    finally:
        file.close()
    if end_offset is None:
        raise StorageError(f"{path} holds no batch: remove it if the log is whole without it")
    return end_offset
