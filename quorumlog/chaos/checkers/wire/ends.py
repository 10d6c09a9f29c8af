"""Rules of the end of a log: the high watermark, as acknowledgements, lookups and fetches name it.

Each of them names an offset below which all records are committed: acks=all its batch's end,
ListOffsets the latest offset, a fetch the high watermark. A process of a node never goes back
behind it, and no fault takes such records away. (Another node, a leader that was replaced, may
name an older end until it learns of its successor.) Sources: KIP-101, KIP-207.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from quorumlog.chaos.checkers.findings import Row
from quorumlog.chaos.checkers.wire.appends import Add
from quorumlog.chaos.checkers.wire.facts import KeyFacts
from quorumlog.chaos.checkers.wire.final_log import FinalLog
from quorumlog.chaos.history.exchanges import ALL, Exchange

ACKNOWLEDGED: Final = "acknowledged"
LOOKED_UP: Final = "latest"
FETCHED: Final = "fetched"


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """An offset below which all records are committed. `kind`: the response that named it."""

    row: Row
    exchange: Exchange
    kind: str
    offset: int


def ends_of(facts: KeyFacts) -> list[End]:
    """Return the ends that the responses about a partition named."""
    ends = [
        End(row=one.row, exchange=one.exchange, kind=ACKNOWLEDGED, offset=one.end_offset)
        for one in facts.batches
        if one.acks == ALL and one.is_acknowledged
    ]
    ends += [
        End(row=one.row, exchange=one.exchange, kind=LOOKED_UP, offset=one.offset)
        for one in facts.lookups
        if one.is_end
    ]
    ends += [
        End(row=one.row, exchange=one.exchange, kind=FETCHED, offset=one.high_watermark)
        for one in facts.fetches
        if one.is_good
    ]
    return ends


class KnownEnds:
    """The ends that each node has named, by the time of the response."""

    def __init__(self, ends: Sequence[End]) -> None:
        self._by_node: Final[dict[int, list[End]]] = defaultdict(list)
        for one in sorted(ends, key=lambda end: end.exchange.answered_ns):
            self._by_node[one.exchange.node].append(one)
        self._times: Final = {
            node: [one.exchange.answered_ns for one in group]
            for node, group in self._by_node.items()
        }
        self._greatest: Final[dict[int, list[End]]] = {}
        for node, group in self._by_node.items():
            greatest = self._greatest[node] = []
            for one in group:
                best = greatest[-1] if greatest else one
                greatest.append(one if one.offset > best.offset else best)

    def before(self, exchange: Exchange) -> End | None:
        """Return the greatest end that the same process named before the request was sent."""
        node = exchange.node
        place = bisect_right(self._times.get(node, []), exchange.sent_ns)
        if place == 0:
            return None
        best = self._greatest[node][place - 1]
        if exchange.is_after(best.exchange):
            return best
        group = self._by_node[node][:place]
        known = [one for one in group if exchange.is_after(one.exchange)]
        return max(known, key=lambda one: one.offset, default=None)


def check_ends(ends: Sequence[End], known: KnownEnds, log: FinalLog, add: Add) -> Iterator[str]:
    """Compare each end with those that the same process named before, and with the final log."""
    for one in ends:
        if one.kind != ACKNOWLEDGED and (before := known.before(one.exchange)) is not None:
            yield "end"
            _compare(before, one, add)
        if log.is_whole and one.offset > log.end:
            note = f"{one.offset}, and the log ends at {log.end}"
            name = "lost-append" if one.kind == ACKNOWLEDGED else "end-too-high"
            add(name, note, (one.kind, one.row))
    for before, after in _behind(ends):
        _compare(before, after, add)


def _compare(before: End, after: End, add: Add) -> None:
    if after.offset >= before.offset:
        return
    told = (before.kind, before.row), (after.kind, after.row)
    if before.kind == ACKNOWLEDGED:
        note = f"acks=all was answered for records below {before.offset}, and then the end was"
        add("acknowledged-early", f"{note} {after.offset}", *told)
    else:
        add("end-went-back", f"{after.offset} after {before.offset}", *told)


def _behind(ends: Sequence[End]) -> Iterator[tuple[End, End]]:
    """Yield (lookup, fetch) where the fetch is right behind the lookup on its connection.

    Both are answered at once, in their order, so that the second needs no wait for the first.
    """
    fetches = {
        (one.exchange.connection, one.exchange.place): one for one in ends if one.kind == FETCHED
    }
    for one in ends:
        if one.kind == LOOKED_UP:
            next_one = fetches.get((one.exchange.connection, one.exchange.place + 1))
            if next_one is not None:
                yield one, next_one
