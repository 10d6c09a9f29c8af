"""The check of one range of a key's offsets: the rules within it, and evidence about its borders.

The rules of a log run on the entries of the range alone. The result is that of the whole key,
except at the borders: prefix maxima, the next poll of a process, the next message of a send, the
lag of a reader. `Evidence` has the few numbers for those; `stitched_keys` joins it. An entry
without a position in a range (a send without an offset, a final end, the life of a reader) is
*shared*: every range receives it.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from quorumlog.chaos.checkers.checker import APART, SHARED, Doubt, Facts
from quorumlog.chaos.checkers.entries import (
    COUNT,
    ERROR,
    FAIL,
    FINAL_END,
    FINAL_POLL,
    GROUP_FLAG,
    INFO,
    OK,
    POLL,
    READER,
    SEND,
    TXN_FLAG,
    Entries,
    Ints,
)
from quorumlog.chaos.checkers.final_reads import final_reads, is_from_start
from quorumlog.chaos.checkers.linearizability import Bounds, bounds_of, check_log, known_from
from quorumlog.chaos.checkers.log_anomalies import log_anomalies
from quorumlog.chaos.checkers.log_ends import end_anomalies
from quorumlog.chaos.checkers.order_anomalies import order_anomalies
from quorumlog.chaos.checkers.verdict import CheckResult
from quorumlog.chaos.checkers.version_order import (
    ABSENT,
    NEVER,
    VersionOrder,
    acknowledged,
    is_poll,
    messages_of,
    order_versions,
)
from quorumlog.chaos.history.model import NEVER_NS

_ORDINAL_BITS: Final = 24
_MOMENTS: Final = 1 << 63 - _ORDINAL_BITS
_COMPRESSION: Final = "zstd"


class Stretches(NamedTuple):
    """The polls of each process between two changes of its position: one row each.

    A moment is the operation and the ordinal in it, as one number. Places count from the start of
    the range.
    """

    process: Ints
    segment: Ints
    final: Ints
    alone: Ints  # 1: member of no group
    first_moment: Ints
    last_moment: Ints
    first_place: Ints
    last_place: Ints
    last_offset: Ints


class Sends(NamedTuple):
    """The sends of each process with a place: one row each, with moments and places as above."""

    process: Ints
    last: Ints  # the latest moment
    first_settled: Ints  # the first moment of an acknowledged send, or NEVER


class Blocks(NamedTuple):
    """Sends with places whose order is certain: one row each, with moments and places as above."""

    name: Ints  # the process of acknowledged sends, or the operation of unknown outcome
    first: Ints
    first_place: Ints
    last: Ints
    last_place: Ints


class Lags(NamedTuple):
    """The polls of each reader with a life: one row each."""

    process: Ints
    until: Ints  # when it polled its last place
    known: Ints  # when the range first proves that place, or a later one, to exist
    known_next: Ints  # the same for the place after it; NEVER_NS if it is the last


class Lives(NamedTuple):
    """The lives of the readers of the key."""

    process: Ints
    since: Ints
    until: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Evidence about the whole key, equal in every range."""

    ends: tuple[Ints, Ints]  # of final readers: process, offset
    lives: Lives
    counts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The evidence of a range in which no rule finds an anomaly.

    places: the number of offsets with a record.
    lower_max, upper_min: of the bounds of its records, see linearizability.
    values: all values of the range, packed.
    worst_lags: rising records of (known, lag), see `_lags`.
    unknown: the sends of unknown outcome that have a place here.
    acked_late: the number of records acknowledged after the last successful poll of a reader.
    """

    places: int
    first_offset: int
    last_offset: int
    lower_max: int
    upper_min: int
    values: bytes
    value_count: int
    stretches: Stretches
    sends: Sends
    answered: Blocks
    unknown: Blocks
    lags: Lags
    worst_lags: tuple[Ints, Ints]
    acked_late: int
    has_group: bool
    counts: dict[str, int]
    shared: Shared


def positions(table: pa.Table) -> Ints:
    """Return the offset of each entry of ENTRY_SCHEMA; SHARED: it has none.

    APART: its key is no log, so no range has it.
    """
    kind, offset = (table.column(name).to_numpy() for name in ("kind", "offset"))
    placed = (offset >= 0) & (kind < FINAL_END)
    found: Ints = np.where(placed, offset, SHARED)
    found[(kind == COUNT) | (kind == ERROR)] = APART
    return found


def examine(table: pa.Table, facts: Facts) -> Evidence | Doubt:
    """Examine a range of one key: its entries, and all shared entries."""
    entries = Entries.from_arrow(table)
    lives = entries.take(np.flatnonzero(entries.kind == READER))
    messages = entries.take(messages_of(entries))
    if reason := _unfit(messages, lives, facts):
        return Doubt(reason)
    order = order_versions(_own(messages))
    bounds, stretches = bounds_of(order), _stretches(order)
    ordered, figures = order_anomalies(order, marked=True)
    reason = _found(order, bounds, ordered, dense=facts.dense)
    if reason or stretches is None:
        return Doubt(reason or "polls are not in order")
    own, offsets = order.entries, order.place_offset
    lags, worst_lags = _lags(order, bounds, lives)
    acked, in_group = acknowledged(own), (own.flags & GROUP_FLAG) != 0
    late = acked & (own.completed_ns > lives.value.max(initial=ABSENT))
    return Evidence(
        places=len(offsets),
        first_offset=int(offsets[0]) if len(offsets) else 0,
        last_offset=int(offsets[-1]) if len(offsets) else 0,
        lower_max=int(bounds.lower.max(initial=-NEVER_NS)),
        upper_min=int(bounds.upper.min(initial=NEVER_NS)),
        values=_pack(order.values.value),
        value_count=len(order.values.value),
        stretches=stretches,
        sends=_sends(order),
        answered=_blocks(order, OK, order.entries.process),
        unknown=_blocks(order, INFO, order.entries.op),
        lags=lags,
        worst_lags=worst_lags,
        acked_late=int(np.count_nonzero(late)),
        has_group=bool((in_group & (own.kind == POLL)).any()),
        counts={
            "acknowledged": int(np.count_nonzero(acked)),
            "polled": int(np.count_nonzero(order.is_poll)),
            "finally_polled": int(np.count_nonzero(own.kind == FINAL_POLL)),
            **figures,
        },
        shared=_shared(messages, lives),
    )


def _found(order: VersionOrder, bounds: Bounds, ordered: list[CheckResult], *, dense: bool) -> str:
    """Return the name of an anomaly in the range alone, or an empty text."""
    finals, offsets = final_reads(order), order.place_offset
    results = [
        *log_anomalies(order, finals, marked=True),
        *end_anomalies(order, finals, dense=False),
        *check_log(order, bounds),
        *ordered,
    ]
    if results:
        return results[0].name
    if order.values.resent.any():
        return "a value was sent more than once"
    return "hole" if dense and (np.diff(offsets) != 1).any() else ""


def unpacked(evidence: Evidence) -> Ints:
    """Return the values of a range, each once, in ascending order."""
    size = evidence.value_count * 8
    steps = pa.decompress(evidence.values, size, codec=_COMPRESSION)
    found: Ints = np.cumsum(np.frombuffer(steps, np.int64))
    return found


def _pack(values: Ints) -> bytes:
    """Pack ascending values as compressed differences: neighbours are close."""
    steps = np.diff(values, prepend=np.int64(0))
    packed: bytes = pa.compress(steps.tobytes(), codec=_COMPRESSION, asbytes=True)
    return packed


def _unfit(messages: Entries, lives: Entries, facts: Facts) -> str:
    """Return why a range of these entries is inconclusive, or an empty text."""
    sent, polled = messages.kind == SEND, is_poll(messages)
    placed, ok = messages.offset >= 0, messages.outcome == OK
    reasons = {
        "final reads are not marked": not facts.final_reads_marked,
        "transactions": bool(((messages.flags & TXN_FLAG) != 0).any()),
        "a poll with an unknown outcome, or without an offset": bool(
            (polled & ~(ok & placed)).any()
        ),
        "an acknowledgement without an offset": bool((sent & ok & ~placed).any()),
        "an offset of a send that failed": bool((sent & placed & (messages.outcome == FAIL)).any()),
        "a reader with two lives": len(np.unique(lives.process)) != len(lives),
        "operations of too many messages": bool(
            (messages.op >= _MOMENTS).any() or (messages.ordinal >= 1 << _ORDINAL_BITS).any()
        ),
    }
    if any(reasons.values()):
        return next(reason for reason, holds in reasons.items() if holds)
    values = messages.value[sent & ~placed]
    return "a value was sent more than once" if len(np.unique(values)) != len(values) else ""


def _own(messages: Entries) -> Entries:
    """Return the entries of the range, the final ends, and the shared sends polled here.

    A shared send has no offset; a poll shows its place.
    """
    shared = (messages.kind == SEND) & (messages.offset < 0)
    here = messages.value[(messages.kind < FINAL_END) & ~shared]
    return messages.take(np.flatnonzero(~shared | np.isin(messages.value, here)))


def _shared(messages: Entries, lives: Entries) -> Shared:
    is_end = (messages.kind == FINAL_END) & (messages.outcome == OK) & is_from_start(messages)
    unplaced = (messages.kind == SEND) & (messages.offset < 0)
    return Shared(
        ends=(messages.process[is_end], messages.offset[is_end]),
        lives=Lives(lives.process, lives.invoked_ns, lives.completed_ns),
        counts={
            "indeterminate": int(np.count_nonzero(unplaced & (messages.outcome == INFO))),
            "refused": int(np.count_nonzero(unplaced & (messages.outcome == FAIL))),
        },
    )


def operation_of(moments: Ints) -> Ints:
    """Return the operations of moments."""
    found: Ints = moments >> _ORDINAL_BITS
    return found


def _moments(entries: Entries, rows: Ints) -> Ints:
    found: Ints = (entries.op[rows] << _ORDINAL_BITS) | entries.ordinal[rows]
    return found


def _stretches(order: VersionOrder) -> Stretches | None:
    """Return all stretches; None if a poll in one of them did not return the next record."""
    entries = order.entries
    rows = np.flatnonzero(order.is_poll)  # in the order of their moments
    final = (entries.kind == FINAL_POLL).astype(np.int64)
    rows = rows[np.lexsort((final[rows], entries.segment[rows], entries.process[rows]))]
    same = np.ones(max(len(rows) - 1, 0), np.bool_)
    for column in (entries.process, entries.segment, final):
        same &= column[rows[1:]] == column[rows[:-1]]
    if (np.diff(order.place_of[rows])[same] != 1).any():
        return None
    first = rows[np.append(True, ~same)[: len(rows)]]
    last = rows[np.append(~same, True)[: len(rows)]]
    return Stretches(
        process=entries.process[first],
        segment=entries.segment[first].astype(np.int64),
        final=final[first],
        alone=((entries.flags[first] & GROUP_FLAG) == 0).astype(np.int64),
        first_moment=_moments(entries, first),
        last_moment=_moments(entries, last),
        first_place=order.place_of[first],
        last_place=order.place_of[last],
        last_offset=entries.offset[last],
    )


def _placed_sends(order: VersionOrder) -> tuple[Ints, Ints]:
    """Return the sends that may have happened and have a place, and their places."""
    entries = order.entries
    rows = np.flatnonzero((entries.kind == SEND) & (entries.outcome != FAIL))
    place = order.values.last[order.value_of[rows]]
    return rows[place != ABSENT], place[place != ABSENT]


def _sends(order: VersionOrder) -> Sends:
    entries = order.entries
    rows, _ = _placed_sends(order)
    process, number = np.unique(entries.process[rows], return_inverse=True)
    moment, settled = _moments(entries, rows), acknowledged(entries)[rows]
    last, first_settled = np.full(len(process), ABSENT), np.full(len(process), NEVER)
    np.maximum.at(last, number, moment)
    np.minimum.at(first_settled, number[settled], moment[settled])
    return Sends(process, last, first_settled)


def _blocks(order: VersionOrder, outcome: int, name: Ints) -> Blocks:
    """Return the sends of this outcome, grouped by `name`."""
    rows, place = _placed_sends(order)
    chosen = order.entries.outcome[rows] == outcome
    rows, place = rows[chosen], place[chosen]
    by_name = np.argsort(name[rows], kind="stable")  # then in the order of their moments
    rows, place = rows[by_name], place[by_name]
    names, first, count = np.unique(name[rows], return_index=True, return_counts=True)
    last, moment = first + count - 1, _moments(order.entries, rows)
    return Blocks(names, moment[first], place[first], moment[last], place[last])


def _lags(order: VersionOrder, bounds: Bounds, lives: Entries) -> tuple[Lags, tuple[Ints, Ints]]:
    """Return the last place of each reader, and the worst lags, as far as the range shows them.

    A reader from the beginning gets each place by the poll that returns it. The moment from which a
    place was visible may depend on higher ranges: on the least moment that they show. Lags of
    places visible up to that moment are right; `worst_lags` has the greatest of them for each such
    moment.
    """
    entries = order.entries
    rows = np.flatnonzero((entries.kind == POLL) & is_from_start(entries))
    sorter = np.argsort(lives.process)
    at = np.searchsorted(lives.process, entries.process[rows], sorter=sorter)
    inside = at < len(sorter)
    life = np.full(len(rows), ABSENT)
    life[inside] = sorter[at[inside]]
    mine = life != ABSENT
    mine[mine] = lives.process[life[mine]] == entries.process[rows[mine]]
    rows, life = rows[mine], life[mine]
    by_place = np.argsort(order.place_of[rows], kind="stable")
    rows, life = rows[by_place], life[by_place]
    known = known_from(order, bounds)
    place, until = order.place_of[rows], entries.completed_ns[rows]
    lag = np.maximum(until - np.maximum(known[place], lives.invoked_ns[life]), 0)
    worst = np.maximum.accumulate(lag)
    records = np.flatnonzero(np.append(True, worst[1:] > worst[:-1])[: len(worst)])
    last = np.full(len(lives), ABSENT)
    last[life] = np.arange(len(rows))
    last = last[last != ABSENT]
    lags = Lags(
        entries.process[rows[last]], until[last], known[place[last]], known[place[last] + 1]
    )
    return lags, (known[place][records], worst[records])
