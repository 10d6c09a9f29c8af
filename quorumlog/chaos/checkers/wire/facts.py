"""Requests of raw clients and the responses of brokers, as `history.exchanges` records them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from quorumlog.chaos.checkers.findings import Row
from quorumlog.chaos.history.exchanges import FINAL, LATEST, Exchange, Json, Read, Sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch in a Produce request, and its outcome.

    leader_epoch: the leader's, by the newest metadata before the request; -1: unknown.
    is_received: acks=0, and a later request on this connection was answered.
    error: None without a response.
    """

    row: Row
    exchange: Exchange
    acks: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    base_offset: int
    error: int | None
    leader_epoch: int
    is_received: bool
    records: tuple[Sent, ...]

    @property
    def is_acknowledged(self) -> bool:
        """Whether the broker answered that it has appended the batch."""
        return self.error == 0

    @property
    def end_offset(self) -> int:
        """The offset after its last record."""
        return self.base_offset + len(self.records)

    @property
    def last_sequence(self) -> int:
        """The sequence of its last record."""
        return self.base_sequence + len(self.records) - 1

    @property
    def identity(self) -> int:
        """The value of its first record: attempts to append the same records have the same."""
        return self.records[0].value


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """A partition in a fetch: of the request, or of the client's session.

    session_id, session_epoch: of the request. asked_epoch: the leader epoch in the request, or -1.
    top_error: of the whole response. error: None if the response leaves the partition out.
    was_asked: it is in the request or in the session.
    has_room: the response is far below its maximum size.
    spans: (base offset, last offset) of each batch. corrupt: the reason why records are unreadable.
    pair: equal in the same request of two versions; NO_PAIR without.
    """

    row: Row
    exchange: Exchange
    offset: int
    session_id: int
    session_epoch: int
    asked_epoch: int
    top_error: int
    error: int | None
    was_asked: bool
    has_room: bool
    high_watermark: int
    records: tuple[Read, ...]
    spans: tuple[tuple[int, int], ...]
    corrupt: str
    pair: int

    @property
    def is_good(self) -> bool:
        """Whether the partition was answered without an error."""
        return self.error == 0 and self.top_error == 0

    @property
    def is_full(self) -> bool:
        """Whether the response must have it: the request names all partitions, and this one."""
        return self.was_asked and self.session_epoch <= 0

    @property
    def is_final(self) -> bool:
        """Whether it is a read after all faults."""
        return self.row.f == FINAL

    @property
    def next_offset(self) -> int:
        """The offset after its last record."""
        return self.spans[-1][1] + 1 if self.spans else self.offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """A partition in a ListOffsets request. `timestamp`: of the request; special ones are below 0.

    pair: equal in the same request of two versions; NO_PAIR without.
    """

    row: Row
    exchange: Exchange
    timestamp: int
    asked_epoch: int
    error: int | None
    offset: int
    found_timestamp: int
    pair: int

    @property
    def is_end(self) -> bool:
        """Whether it returned the end of the log."""
        return self.timestamp == LATEST and self.error == 0

    @property
    def is_final(self) -> bool:
        """Whether it was sent after all faults."""
        return self.row.f == FINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCommit:
    """A partition in an OffsetCommit request. `is_ghost`: of a member that does not exist."""

    row: Row
    exchange: Exchange
    group: str
    error: int | None
    offset: int
    is_ghost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """A partition in an OffsetFetch request. `error`: the group's, or the partition's."""

    row: Row
    exchange: Exchange
    group: str
    error: int | None
    offset: int
    pair: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """A response that is no response of the protocol. `reason`: in words."""

    row: Row
    reason: str


@dataclass(slots=True)
class KeyFacts:
    """All facts about one partition, in the order of the operations."""

    batches: list[Batch]
    fetches: list[Fetch]
    lookups: list[Lookup]
    commits: list[GroupCommit]
    group_offsets: list[GroupOffset]
    malformed: list[Malformed]


def read_facts(rows: Sequence[tuple[Row, str]]) -> KeyFacts:
    """Return the facts in rows of one key, each with its text."""
    facts = KeyFacts([], [], [], [], [], [])
    for row, text in rows:
        told = json.loads(text)
        match row.kind:
            case "produced":
                facts.batches.append(_batch(row, told))
            case "fetched":
                facts.fetches.append(_fetch(row, told))
            case "looked_up":
                facts.lookups.append(_lookup(row, told))
            case "offset_committed":
                facts.commits.append(_commit(row, told))
            case "offset_fetched":
                facts.group_offsets.append(_group_offset(row, told))
            case _:
                facts.malformed.append(Malformed(row=row, reason=told["reason"]))
    return facts


def _batch(row: Row, told: Json) -> Batch:
    return Batch(
        row=row,
        exchange=Exchange(*told["exchange"]),
        acks=told["acks"],
        producer_id=told["producer_id"],
        producer_epoch=told["producer_epoch"],
        base_sequence=told["base_sequence"],
        base_offset=row.offset,
        error=told["error"],
        leader_epoch=told["leader_epoch"],
        is_received=told["is_received"],
        records=tuple(Sent(*one) for one in told["records"]),
    )


def _fetch(row: Row, told: Json) -> Fetch:
    return Fetch(
        row=row,
        exchange=Exchange(*told["exchange"]),
        offset=row.offset,
        session_id=told["session_id"],
        session_epoch=told["session_epoch"],
        asked_epoch=told["asked_epoch"],
        top_error=told["top_error"],
        error=told["error"],
        was_asked=told["was_asked"],
        has_room=told["has_room"],
        high_watermark=told["high_watermark"],
        records=tuple(Read(*one) for one in told["records"]),
        spans=tuple((one[0], one[1]) for one in told["spans"]),
        corrupt=told["corrupt"],
        pair=told["pair"],
    )


def _lookup(row: Row, told: Json) -> Lookup:
    return Lookup(
        row=row,
        exchange=Exchange(*told["exchange"]),
        timestamp=told["timestamp"],
        asked_epoch=told["asked_epoch"],
        error=told["error"],
        offset=row.offset,
        found_timestamp=told["found_timestamp"],
        pair=told["pair"],
    )


def _commit(row: Row, told: Json) -> GroupCommit:
    return GroupCommit(
        row=row,
        exchange=Exchange(*told["exchange"]),
        group=told["group"],
        error=told["error"],
        offset=row.offset,
        is_ghost=told["is_ghost"],
    )


def _group_offset(row: Row, told: Json) -> GroupOffset:
    return GroupOffset(
        row=row,
        exchange=Exchange(*told["exchange"]),
        group=told["group"],
        error=told["error"],
        offset=row.offset,
        pair=told["pair"],
    )
