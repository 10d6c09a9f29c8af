"""Translates offsets of the source to offsets of the target, by runs of copied records.

One producer writes a partition's copies in the order of the source. So consecutive records of the
source are consecutive at the target, until a gap: a transaction's marker, a compacted record or a
batch that was written twice. A run is such a stretch, and within it the translation is exact.

A committed offset names the next record to read. An offset in no run names a gap, or records whose
run was thinned out; it is translated to the end of the run before it. No record of the source lies
in a true gap, so this is exact, too; for a thinned run it is too early, never too late: the group
may read records again, and misses none (KIP-545 promises no more).
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

RUNS_MAX: Final = 512
_TYPE: Final = "q"


class OffsetRun(NamedTuple):
    """`size` records: from offset `upstream` at the source, from `downstream` at the target.

    Example: OffsetRun(100, 7, 3) means 100 -> 7, 101 -> 8, 102 -> 9.
    """

    upstream: int
    downstream: int
    size: int


def runs_of(offsets: Sequence[int], stretches: Iterable[tuple[int, int]]) -> list[OffsetRun]:
    """Return the runs of records with these ascending offsets at the source.

    stretches: the first offset at the target and the count of records, in order. The offset
    of a stretch is -1 if it is unknown; its records are in no run.
    """
    runs: list[OffsetRun] = []
    index = 0
    for downstream, count in stretches:
        part = offsets[index : index + count]
        index += count
        if downstream < 0 or not part:
            continue
        if part[-1] - part[0] == count - 1:
            runs.append(OffsetRun(part[0], downstream, count))
            continue
        begin = 0
        for end in range(1, count + 1):
            if end == count or part[end] != part[end - 1] + 1:
                runs.append(OffsetRun(part[begin], downstream + begin, end - begin))
                begin = end
    return runs


class OffsetRuns:
    """The runs of one partition, oldest first; at most `limit`, 24 bytes for each.

    Invariants (checked by tests):
      1. Runs ascend in both offsets and do not overlap; adjacent runs are merged.
      2. `translate` never decreases in its argument, and never exceeds the end of the copies.
      3. The first run is kept for ever; thinning keeps the newest half complete.
    """

    def __init__(self, runs: Iterable[OffsetRun] = (), limit: int = RUNS_MAX) -> None:
        self._limit: Final = max(limit, 4)
        self._upstream: Final = array(_TYPE)
        self._downstream: Final = array(_TYPE)
        self._size: Final = array(_TYPE)
        for run in runs:
            self.append(run)

    def __len__(self) -> int:
        return len(self._upstream)

    def __getitem__(self, index: int) -> OffsetRun:
        return OffsetRun(self._upstream[index], self._downstream[index], self._size[index])

    def append(self, run: OffsetRun) -> None:
        """Add the newest run.

        Runs from its upstream offset on are cut off: the mirror has copied these records again.
        """
        if run.size <= 0:
            return
        self._cut(run.upstream)
        if len(self):
            last = self[-1]
            gap = run.upstream - last.upstream
            if gap == last.size and run.downstream - last.downstream == gap:
                self._size[-1] += run.size
                return
        self._upstream.append(run.upstream)
        self._downstream.append(run.downstream)
        self._size.append(run.size)
        if len(self) > self._limit:
            self._thin()

    def translate(self, upstream: int) -> int | None:
        """Return the offset at the target for a group's committed offset; None without copies."""
        if not len(self):
            return None
        index = bisect_right(self._upstream, upstream) - 1
        if index < 0:  # nothing before the first copy was ever copied
            return self._downstream[0]
        run = self[index]
        return run.downstream + min(upstream - run.upstream, run.size)

    def sample(self, limit: int) -> list[OffsetRun]:
        """Return the first run and the newest runs, at most `limit` together, in order."""
        count = len(self)
        if count <= limit:
            return [self[index] for index in range(count)]
        return [self[0], *(self[index] for index in range(count - limit + 1, count))]

    def _cut(self, upstream: int) -> None:
        keep = bisect_left(self._upstream, upstream)
        for column in (self._upstream, self._downstream, self._size):
            del column[keep:]
        if keep:
            self._size[-1] = min(self._size[-1], upstream - self._upstream[-1])

    def _thin(self) -> None:
        """Remove every second run of the older half, but the first."""
        half = len(self) // 2
        for column in (self._upstream, self._downstream, self._size):
            del column[1:half:2]
