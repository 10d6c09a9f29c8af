"""Compares the records of one partition on both sides, in the order of their offsets. Pure.

The comparison is an oracle of the mirror: it sees records alone, no positions and no runs. Both
sides return committed records in order, so each copy must be equal to the next source record.

Retention removes records from the beginning of a log. Then the first record of one side lies
somewhere in the other side: `Anchors` finds the places where it may lie, and the comparison begins
at one of them. No other record may be missing. Compacted topics have another comparison: `newest`.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Final

from quorumlog.client.records import ConsumerRecord

MISSING: Final = "missing"
EXTRA: Final = "extra"
REPEATED: Final = "repeated"
ORDER: Final = "order"
RECORD: Final = "record"
FIELDS: Final = ("key", "value", "headers", "timestamp_ms")
LOG_APPEND_TIME: Final = 1
RECENT_MAX: Final = 100_000
"""A repeated record is recognized if it is one of so many records behind the last new one."""
AHEAD: Final = 100
"""The next source records among which a skipped record is recognized."""
_ANCHOR: Final = 16  # records that must be equal where a comparison begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first difference of a partition. An offset is None on the side without the record.

    field: the first unequal field of FIELDS; or RECORD, two records with no equal field but
        perhaps headers; MISSING, a source record has no copy; EXTRA, a target record has no
        source record; REPEATED, a record was copied again; ORDER, the copies have another order.
    """

    field: str
    upstream_offset: int | None
    downstream_offset: int | None


def digest_of(record: ConsumerRecord, *, is_timed: bool = True) -> bytes:
    """Return 16 bytes that stand for key, value, headers and, if `is_timed`, timestamp."""
    digest = blake2b(digest_size=16)
    parts: list[bytes | None] = [record.key, record.value]
    for name, value in record.headers:
        parts += (name.encode(), value)
    lengths = [-1 if part is None else len(part) for part in parts]
    digest.update(repr((record.timestamp_ms if is_timed else None, lengths)).encode())
    for part in parts:
        digest.update(part or b"")
    return digest.digest()


def unequal_field(source: ConsumerRecord, copy: ConsumerRecord) -> str | None:
    """Return the first unequal field of FIELDS; None: the records are equal."""
    for name in FIELDS:
        is_equal = getattr(source, name) == getattr(copy, name)
        if not is_equal and (name != "timestamp_ms" or have_times(source, copy)):
            return name
    return None


def have_times(source: ConsumerRecord, copy: ConsumerRecord) -> bool:
    """Return False if the source's record has no time, or if the target's broker set the copy's."""
    return source.timestamp_ms >= 0 and copy.timestamp_type != LOG_APPEND_TIME


class InOrder:
    """Compares source records with target records, in order.

    Invariants:
      1. All source records that were dropped from `source` have a copy; `compared` counts them.
      2. Without `repeats`, the copies are as many as the source records.
      3. At most RECENT_MAX digests are kept, beside the records that the caller has added.
    """

    def __init__(self, *, repeats: bool) -> None:
        """`repeats`: records may be copied again behind their first copies (at least once)."""
        self.source: Final = deque[ConsumerRecord]()
        self.target: Final = deque[ConsumerRecord]()
        self.compared = 0
        self.repeated = 0
        self._repeats: Final = repeats
        self._recent: Final = deque[bytes]()
        self._counts: Final[dict[bytes, int]] = {}  # of the digests in `_recent`
        self._all: Final = blake2b(digest_size=16)

    def compare(self, *, source_is_over: bool) -> Difference | None:
        """Compare until a side has no records left, and return the first difference.

        source_is_over: the source has no record behind those of `self.source`.
        """
        source, target = self.source, self.target
        while target and (source or source_is_over):
            copy = target[0]
            if source and unequal_field(source[0], copy) is None:
                self._note(source.popleft(), copy)
            elif self._repeats and self._was_copied(copy):
                self.repeated += 1
            else:
                return self._difference(copy)
            target.popleft()
        return None

    def missing(self) -> Difference:
        """Return the difference of a target that ends before the first record of `source`."""
        return Difference(
            field=MISSING, upstream_offset=self.source[0].offset, downstream_offset=None
        )

    @property
    def digest(self) -> str:
        """The digest of all compared records, in order."""
        return self._all.hexdigest()

    def skip(self, records: Iterable[ConsumerRecord]) -> None:
        """Note source records whose first copies the target has lost: they may be repeated.

        The copies may have had times of their own, so they are recognized without times, too.
        """
        for record in records:
            self._remember(digest_of(record))
            self._remember(digest_of(record, is_timed=False))

    def _note(self, record: ConsumerRecord, copy: ConsumerRecord) -> None:
        self.compared += 1
        digest = digest_of(record)
        self._all.update(digest)
        if not have_times(record, copy):
            digest = digest_of(record, is_timed=False)
        self._remember(digest)

    def _remember(self, digest: bytes) -> None:
        self._recent.append(digest)
        self._counts[digest] = self._counts.get(digest, 0) + 1
        if len(self._recent) > RECENT_MAX:
            oldest = self._recent.popleft()
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]

    def _was_copied(self, copy: ConsumerRecord) -> bool:
        """Return whether an equal copy is among the recent copies."""
        digests = digest_of(copy), digest_of(copy, is_timed=False)
        return any(digest in self._counts for digest in digests)

    def _difference(self, copy: ConsumerRecord) -> Difference:
        if self._was_copied(copy):
            return self._extra(REPEATED, copy)
        if not self.source:
            return self._extra(EXTRA, copy)
        first = self.source[0]
        if any(unequal_field(one, copy) is None for one in islice(self.source, AHEAD)):
            return self.missing()
        equal = {name for name in FIELDS if getattr(first, name) == getattr(copy, name)}
        field = unequal_field(first, copy) if equal - {"headers"} else None
        return Difference(
            field=field or RECORD, upstream_offset=first.offset, downstream_offset=copy.offset
        )

    @staticmethod
    def _extra(field: str, copy: ConsumerRecord) -> Difference:
        return Difference(field=field, upstream_offset=None, downstream_offset=copy.offset)


class Anchors:
    """Finds where the first records of one side lie in the other side, from its records in order.

    With `repeats` a mirror may have copied the first record again at once: one record must be
    equal, else 16, or all that there are.
    """

    def __init__(self, first: Iterable[ConsumerRecord], *, are_copies: bool, repeats: bool) -> None:
        """`are_copies`: the first records are the target's, else the source's."""
        self._first: Final = [*islice(first, 1 if repeats else _ANCHOR)]
        self._are_copies: Final = are_copies
        self._last: Final = deque[ConsumerRecord](maxlen=len(self._first) or 1)
        self.seen = 0

    @property
    def passed(self) -> int:
        """The records before the oldest place that is not decided."""
        return self.seen - len(self._last)

    def add(self, records: Iterable[ConsumerRecord]) -> list[tuple[int, int]]:
        """Return each place that begins with them: the number of records before it, its offset."""
        found = []
        for record in records:
            self._last.append(record)
            self.seen += 1
            if len(self._last) == len(self._first) and self._are_equal():
                found.append((self.seen - len(self._first), self._last[0].offset))
        return found

    def _are_equal(self) -> bool:
        pairs = zip(self._last, self._first, strict=True)
        if not self._are_copies:
            pairs = zip(self._first, self._last, strict=True)
        return all(unequal_field(source, copy) is None for source, copy in pairs)
