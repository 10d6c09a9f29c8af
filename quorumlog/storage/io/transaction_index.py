"""The `.txnindex` files beside a log's segments, and what they say, in memory.

A full segment's file is written before its other indexes: where those last, it does, too. No
file: none of its transactions was aborted. What is appended to has its entries in memory alone, as
its other indexes; after a crash they are learnt from the log (`learnt_from`).
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from quorumlog.storage.core.aborted_transactions import (
    SUFFIX,
    AbortedTransaction,
    AbortedTransactions,
    CorruptTransactionIndex,
    decode_index,
    encode_index,
)
from quorumlog.storage.io.disk import Disk, read_file, replace_file
from quorumlog.storage.io.segment_files import segment_path

ALL_KNOWN: Final = 2**63 - 1  # an offset above all others

_logger: Final = logging.getLogger(__name__)


class TransactionIndex:
    """Of one log. Everything that names the disk raises OSError.

    Invariant: `aborted` has every aborted transaction whose marker is below `learnt_from`.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self.aborted: Final = AbortedTransactions()
        self.learnt_from = ALL_KNOWN  # from here on the owner of the log adds what it finds there
        self._disk: Final = disk
        self._directory: Final = directory

    def read(self, segments: Sequence[tuple[int, int]], named: Iterable[int], end: int) -> None:
        """Read the files of the segments [base offset, end offset) that start below `end`.

        `named`: of the files that are there. What cannot be read is to be learnt from the log, and
        what starts at `end` or above, which was checked after a crash.
        """
        files = frozenset(named)
        self.learnt_from = end
        for base_offset, end_offset in segments:
            if base_offset >= end or base_offset not in files:
                continue
            try:
                found = self._read(base_offset, end_offset)
            except CorruptTransactionIndex as error:
                path = self._path(base_offset)
                _logger.warning("%s: the rest is learnt from the log: %s", path, error)
                self.learnt_from = base_offset
                return
            for aborted in found:
                self.aborted.add(aborted)

    def _read(self, base_offset: int, end_offset: int) -> list[AbortedTransaction]:
        return decode_index(read_file(self._disk, self._path(base_offset)), base_offset, end_offset)

    def write(self, base_offset: int, end_offset: int) -> None:
        """Let the file of a segment say what is known of it; its name lasts with the directory.

        The names of a directory last in the order of their changes: write the other indexes next.
        """
        found, path = self.aborted.within(base_offset, end_offset), self._path(base_offset)
        if found:
            replace_file(self._disk, path, encode_index(found))
        elif self._disk.exists(path):
            self._disk.unlink(path)

    def _path(self, base_offset: int) -> str:
        return segment_path(self._directory, base_offset, SUFFIX)
