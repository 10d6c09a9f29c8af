"""Requests of raw clients and the responses of brokers, as `history.exchanges` records them."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

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


FactT = TypeVar("FactT", Batch, Fetch, Lookup, GroupCommit, GroupOffset)


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
        fields = json.loads(text)
        match row.kind:
            case "produced":
                sent = tuple(Sent(*one) for one in fields["records"])
                facts.batches.append(
                    _read(Batch, row, fields, base_offset=row.offset, records=sent)
                )
            case "fetched":
                read = tuple(Read(*one) for one in fields["records"])
                spans = tuple((one[0], one[1]) for one in fields["spans"])
                facts.fetches.append(
                    _read(Fetch, row, fields, offset=row.offset, records=read, spans=spans)
                )
            case "looked_up":
                facts.lookups.append(_read(Lookup, row, fields, offset=row.offset))
            case "offset_committed":
                facts.commits.append(_read(GroupCommit, row, fields, offset=row.offset))
            case "offset_fetched":
                facts.group_offsets.append(_read(GroupOffset, row, fields, offset=row.offset))
            case _:
                facts.malformed.append(Malformed(row=row, reason=fields["reason"]))
    return facts


def _read(fact: type[FactT], row: Row, fields: Json, **others: Any) -> FactT:
    """Return a fact with the fields of its text; the `others` have another form there."""
    names = {field.name for field in dataclasses.fields(fact)} - {"row", "exchange", *others}
    exchange = Exchange(*fields["exchange"])
    return fact(row=row, exchange=exchange, **others, **{name: fields[name] for name in names})
