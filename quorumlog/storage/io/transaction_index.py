"""The `.txnindex` files beside a log's segments, and their entries in memory.

A full segment's file is written before its other indexes: if those are durable, so is it. A segment
without the file has no aborted transactions, unless a later file, or a producer snapshot, names an
abort marker in it. The active segment has its entries in memory alone, like its other indexes;
after a crash they are read from the log (`learnt_from`).
"""

import logging
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final

from quorumlog.storage.core.aborted_transactions import (
    SUFFIX,
    AbortedTransaction,
    AbortedTransactions,
    CorruptTransactionIndex,
    decode_entries,
    encode_index,
    split_index,
)
from quorumlog.storage.io.disk import Disk, read_file, replace_file
from quorumlog.storage.io.segment_files import segment_path

ALL_KNOWN: Final = 2**63 - 1  # an offset above all others

_logger: Final = logging.getLogger(__name__)


class TransactionIndex:
    """The aborted transactions of one log. Methods that use the disk raise OSError.

    Invariant: `aborted` has every aborted transaction whose marker is below `learnt_from`.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self.aborted: Final = AbortedTransactions()
        self.learnt_from = ALL_KNOWN  # from here on the log's owner adds them from the batches
        self._disk: Final = disk
        self._directory: Final = directory
        self._without_file: list[tuple[int, int]] = []  # segments without a file, found by `read`
        self._must_have_file: set[int] = set()  # base offsets

    def read(self, segments: Sequence[tuple[int, int]], named: Iterable[int], end: int) -> None:
        """Read the files of the segments [base offset, end offset) that start below `end`.

        `named`: base offsets of the existing files. From the first damaged or missing file on, or
        from `end` on, which recovery has read, entries must come from the log: `learnt_from`.
        """
        files = frozenset(named)
        self.learnt_from = end
        for base_offset, end_offset in segments:
            if base_offset >= end:
                return
            if base_offset not in files:
                self._without_file.append((base_offset, end_offset))
                continue
            try:
                newest_before, found = self._read(base_offset, end_offset)
            except CorruptTransactionIndex as error:
                self._learn_from(base_offset, error)
                return
            if self._lacks(newest_before):
                return
            for aborted in found:
                self.aborted.add(aborted)

    def check(self, newest_aborted: int) -> bool:
        """Return False if the file of this marker, named by a producer snapshot, is missing.

        Entries from its segment on must then come from the log. Call it once, before the log
        changes.
        """
        is_there = not self._lacks(newest_aborted)
        self._without_file = []
        return is_there

    def _read(self, base_offset: int, end_offset: int) -> tuple[int, list[AbortedTransaction]]:
        newest_before, entries = split_index(read_file(self._disk, self._path(base_offset)))
        return newest_before, decode_entries(entries, base_offset, end_offset)

    def _lacks(self, marker: int) -> bool:
        slot = bisect_right(self._without_file, marker, key=itemgetter(0)) - 1
        if slot < 0 or marker >= self._without_file[slot][1]:
            return False
        self._learn_from(self._without_file[slot][0], "there is no such file")
        return True

    def _learn_from(self, base_offset: int, reason: object) -> None:
        path = self._path(base_offset)
        _logger.warning("%s: the rest is learnt from the log: %s", path, reason)
        self.aborted.cut(base_offset)
        self.learnt_from = base_offset
        self._must_have_file.add(base_offset)

    def write(self, base_offset: int, end_offset: int) -> None:
        """Write or remove a segment's file; its name is durable after an fsync of the directory.

        Directories persist name changes in order: write the other indexes next.
        """
        found, path = self.aborted.within(base_offset, end_offset), self._path(base_offset)
        if found or base_offset in self._must_have_file:
            newest_before = self.aborted.newest_below(base_offset)
            replace_file(self._disk, path, encode_index(found, newest_before))
            self._must_have_file.discard(base_offset)
        elif self._disk.exists(path):
            self._disk.unlink(path)

    def _path(self, base_offset: int) -> str:
        return segment_path(self._directory, base_offset, SUFFIX)
