"""Histories of raw clients written by hand: one exchange after the other."""

from collections.abc import Sequence
from typing import Any

from quorumlog.chaos.checkers import Verdict
from quorumlog.chaos.checkers.checker import facts_of
from quorumlog.chaos.checkers.wire.checker import CHECKER
from quorumlog.chaos.history import exchanges as wire
from quorumlog.chaos.history.exchanges import FINAL, LATEST, UNANSWERED, Exchange, Read, Sent
from tests.support.chaos.hand_made_histories import History

KEY = "t-0"
DIGEST = "1:2:3:4"
LEADER_EPOCH = 5
STEP_NS = 1_000


class WireHistory:
    """A builder: each request is sent after the last response, unless it is `piped` behind it.

    All are of connection 1 to node 1, open from the start, unless told otherwise.
    """

    def __init__(self) -> None:
        self.history = History()
        self.now_ns = STEP_NS
        self._places: dict[int, int] = {}

    def exchange(
        self,
        *,
        node: int = 1,
        connection: int = 1,
        since_ns: int = 0,
        piped: bool = False,
        answered: bool = True,
        version: int = 9,
    ) -> Exchange:
        place = self._places[connection] = self._places.get(connection, 0) + 1
        self.now_ns += 0 if piped else STEP_NS
        sent_ns = self.now_ns - STEP_NS // 2
        answered_ns = self.now_ns if answered else UNANSWERED
        return Exchange(node, connection, since_ns, place, sent_ns, answered_ns, version)

    def _add(self, f: str, kind: str, offset: int, told: dict[str, Any]) -> "WireHistory":
        self.history.op(1_000_000, f)
        self.history.ops[-1].micros = [wire.message(kind, KEY, offset, told)]
        return self

    def produce(
        self,
        values: Sequence[int],
        offset: int = -1,
        *,
        error: int | None = 0,
        acks: int = -1,
        producer: tuple[int, int, int] = (-1, -1, -1),
        leader_epoch: int = LEADER_EPOCH,
        is_received: bool = False,
        digest: str = DIGEST,
        **exchange: Any,
    ) -> "WireHistory":
        """Send a batch. `producer`: its id, epoch and base sequence."""
        told = {
            "exchange": self.exchange(answered=error is not None, **exchange),
            "acks": acks,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "base_sequence": producer[2],
            "error": error,
            "leader_epoch": leader_epoch,
            "is_received": is_received,
            "records": [Sent(value, digest) for value in values],
        }
        return self._add("wire_produce", wire.PRODUCED, offset, told)

    def fetch(
        self,
        offset: int,
        values: Sequence[int] = (),
        *,
        end: int = 1 << 20,
        first: int | None = None,
        spans: Sequence[tuple[int, int]] | None = None,
        error: int | None = 0,
        top_error: int = 0,
        session: tuple[int, int] = (0, -1),
        asked_epoch: int = -1,
        was_asked: bool = True,
        has_room: bool = True,
        corrupt: str = "",
        digest: str = DIGEST,
        pair: int = wire.NO_PAIR,
        f: str = "wire_fetch",
        **exchange: Any,
    ) -> "WireHistory":
        """Fetch; the records begin at `first`, or at the offset. `end`: the high watermark."""
        begin = offset if first is None else first
        records = [Read(begin + at, value, digest, LEADER_EPOCH) for at, value in enumerate(values)]
        if spans is None:
            spans = [(begin, begin + len(values) - 1)] if values else []
        told = {
            "exchange": self.exchange(**exchange),
            "session_id": session[0],
            "session_epoch": session[1],
            "asked_epoch": asked_epoch,
            "top_error": top_error,
            "error": error,
            "was_asked": was_asked,
            "has_room": has_room,
            "high_watermark": end,
            "records": records,
            "spans": spans,
            "corrupt": corrupt,
            "pair": pair,
        }
        return self._add(f, wire.FETCHED, offset, told)

    def look_up(
        self,
        offset: int,
        *,
        timestamp: int = LATEST,
        error: int | None = 0,
        asked_epoch: int = -1,
        found_timestamp: int = -1,
        pair: int = wire.NO_PAIR,
        f: str = "wire_lookup",
        **exchange: Any,
    ) -> "WireHistory":
        told = {
            "exchange": self.exchange(**exchange),
            "timestamp": timestamp,
            "asked_epoch": asked_epoch,
            "error": error,
            "found_timestamp": found_timestamp,
            "pair": pair,
        }
        return self._add(f, wire.LOOKED_UP, offset, told)

    def group_offset(
        self, offset: int, *, error: int = 0, pair: int = 1, version: int = 1
    ) -> "WireHistory":
        told = {
            "exchange": self.exchange(version=version),
            "group": "g",
            "error": error,
            "pair": pair,
        }
        return self._add("wire_group", wire.OFFSET_FETCHED, offset, told)

    def commit(
        self, offset: int, *, error: int = 0, is_ghost: bool = False, **exchange: Any
    ) -> "WireHistory":
        told = {
            "exchange": self.exchange(**exchange),
            "group": "g",
            "error": error,
            "is_ghost": is_ghost,
        }
        return self._add("wire_group", wire.COMMITTED, offset, told)

    def malformed(self, reason: str) -> "WireHistory":
        return self._add("wire_fetch", wire.MALFORMED, -1, {"reason": reason})

    def final(
        self, values: Sequence[int], *, leader_epoch: int = LEADER_EPOCH, digest: str = DIGEST
    ) -> "WireHistory":
        """Read the log from its beginning to its end, by another node."""
        apart: dict[str, Any] = {"node": 9, "connection": 99, "f": FINAL}
        self.fetch(0, values, end=len(values), digest=digest, **apart)
        return self.look_up(len(values), asked_epoch=leader_epoch, **apart)

    def verdict(self) -> Verdict:
        """Return the verdict by the rules of the protocol alone."""
        table = self.history.table()
        facts = facts_of(table.schema.metadata)
        return CHECKER.conclude([CHECKER.check(CHECKER.explode(table), facts)], [], facts)

    def found(self) -> set[str]:
        """Return the names of the anomalies."""
        return {result.name for result in self.verdict().results}
