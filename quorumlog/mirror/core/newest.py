"""Compares the newest record of each key of a compacted partition. Pure.

Compaction removes records that have a newer one of their key, on each side at its own time; so only
the newest record of a key must be equal, and the newest records must have the same order. A key may
be on one side alone if its newest record there is a tombstone, which the other side has removed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import Final, NamedTuple

from quorumlog.client.records import ConsumerRecord
from quorumlog.mirror.core.comparison import (
    EXTRA,
    LOG_APPEND_TIME,
    MISSING,
    ORDER,
    Difference,
    unequal_field,
)

NO_TIME: Final = -1
KEYS_MAX: Final = 200_000
"""The most keys of one pass over a partition."""


class TooManyKeys(Exception):
    """A pass has more than KEYS_MAX keys: divide them among more passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The keys of one pass: the remainder of their digest is `index`."""

    index: int = 0
    of: int = 1

    def has(self, key: bytes | None) -> bool:
        """Return whether the key belongs to the pass."""
        return self.of == 1 or int.from_bytes(_digest(key)) % self.of == self.index


class _Newest(NamedTuple):
    """A record. `digests`: of value and headers. `time_ms`: NO_TIME is not compared."""

    offset: int
    digests: tuple[bytes, bytes]
    time_ms: int
    is_tombstone: bool


class NewestByKey:
    """The newest record of each key of a slice, ordered by offset.

    Records behind the last copy of the record `end` stay apart: they are newer than the last source
    record that is compared. Without a copy of `end`, all records count.
    """

    def __init__(self, keys: Slice, *, end: ConsumerRecord | None = None) -> None:
        self._keys: Final = keys
        self._end: Final = end
        self._newest: dict[bytes | None, _Newest] = {}
        self._behind: dict[bytes | None, _Newest] = {}
        self.has_end = False
        self.last: ConsumerRecord | None = None

    def add(self, records: Iterable[ConsumerRecord]) -> None:
        """Add the next records. Raises TooManyKeys."""
        for record in records:
            self.last = record
            into = self._newest if self._end is None else self._behind
            if self._keys.has(record.key):
                into.pop(record.key, None)  # keys are in the order of their newest records
                into[record.key] = _newest_of(record)
            if self._end is not None and unequal_field(self._end, record) is None:
                self.has_end = True
                self._merge()
        if len(self._newest) + len(self._behind) > KEYS_MAX:
            raise TooManyKeys

    def _merge(self) -> None:
        for key in self._behind:
            self._newest.pop(key, None)
        self._newest |= self._behind
        self._behind = {}

    def found(self) -> dict[bytes | None, _Newest]:
        """Return the newest record of each key up to the last copy of `end`, by offset."""
        if not self.has_end:
            self._merge()
        return self._newest

    def behind(self) -> dict[bytes | None, _Newest]:
        """Return the newest record of each key behind the last copy of `end`, by offset."""
        return self._behind if self.has_end else {}


def _digest(data: bytes | None) -> bytes:
    return b"" if data is None else blake2b(data, digest_size=8).digest()


def _newest_of(record: ConsumerRecord) -> _Newest:
    return _Newest(
        offset=record.offset,
        digests=(_digest(record.value), _digest(repr(record.headers).encode())),
        time_ms=NO_TIME if record.timestamp_type == LOG_APPEND_TIME else record.timestamp_ms,
        is_tombstone=record.value is None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Removals:
    """Whether retention may have removed keys from a side as a whole."""

    at_source: bool
    at_target: bool


def compare_newest(
    source: NewestByKey, target: NewestByKey, removals: Removals
) -> tuple[int, Difference | None]:
    """Return how many keys were compared, and the first difference by upstream offset.

    Differences of the order are found only if there are no others.
    """
    ours, theirs = source.found(), target.found()
    both = ours.keys() & theirs.keys()
    missing_or_other = (_of_key(newest, theirs.get(key), removals) for key, newest in ours.items())
    extra = (
        Difference(field=EXTRA, upstream_offset=None, downstream_offset=copy.offset)
        for key, copy in theirs.items()
        if key not in ours and not copy.is_tombstone and not removals.at_source
    )
    found = chain(filter(None, missing_or_other), extra, _out_of_order(ours, theirs, both))
    return len(both), next(found, None)


def compare_behind(
    source: NewestByKey, target: NewestByKey, later: NewestByKey, removals: Removals
) -> Difference | None:
    """Return the first difference of the copies behind the last compared record.

    Each is of a record that the source received `later`, or it repeats the newest of its key. A key
    that the source received later is not compared: the record may be superseded by now.
    """
    ours, newer = source.found(), later.found()
    for key, copy in target.behind().items():
        found = None
        if key in ours:
            found = _of_key(ours[key], copy, removals)
        elif not copy.is_tombstone and not removals.at_source:
            found = Difference(field=EXTRA, upstream_offset=None, downstream_offset=copy.offset)
        if found is not None and key not in newer:
            return found
    return None


def _of_key(newest: _Newest, copy: _Newest | None, removals: Removals) -> Difference | None:
    if copy is None:
        if newest.is_tombstone or removals.at_target:
            return None
        return Difference(field=MISSING, upstream_offset=newest.offset, downstream_offset=None)
    pairs = zip(("value", "headers"), newest.digests, copy.digests, strict=True)
    field = next((name for name, one, other in pairs if one != other), None)
    times = {newest.time_ms, copy.time_ms}
    if field is None and len(times) > 1 and NO_TIME not in times:
        field = "timestamp_ms"
    if field is None:
        return None
    return Difference(field=field, upstream_offset=newest.offset, downstream_offset=copy.offset)


def _out_of_order(
    ours: dict[bytes | None, _Newest], theirs: dict[bytes | None, _Newest], both: set[bytes | None]
) -> Iterator[Difference]:
    in_source = (key for key in ours if key in both)
    in_target = (key for key in theirs if key in both)
    for key, other in zip(in_source, in_target, strict=True):
        if key != other:
            yield Difference(
                field=ORDER,
                upstream_offset=ours[key].offset,
                downstream_offset=theirs[other].offset,
            )
