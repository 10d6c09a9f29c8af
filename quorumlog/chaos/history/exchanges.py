"""The exchanges of raw clients with brokers, in a history.

A micro-operation is one partition in one request: its key is the partition, its `text` the JSON of
facts (`checkers/wire/facts.py` reads them). Times are in ns of the history's clock.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from quorumlog.chaos.history.model import UNKNOWN_OFFSET, Message

PRODUCED: Final = "produced"
FETCHED: Final = "fetched"
LOOKED_UP: Final = "looked_up"
COMMITTED: Final = "offset_committed"
OFFSET_FETCHED: Final = "offset_fetched"
MALFORMED: Final = "malformed"
KINDS: Final = frozenset({PRODUCED, FETCHED, LOOKED_UP, COMMITTED, OFFSET_FETCHED, MALFORMED})
FINAL: Final = "wire_final"
OPERATIONS: Final = frozenset({"wire_produce", "wire_fetch", "wire_lookup", "wire_group", FINAL})
"""The operations. FINAL: a fetch or a lookup after all faults."""
UNANSWERED: Final = -1  # the time of a response that did not arrive
NO_PAIR: Final = -1
ALL: Final = -1  # acks
LATEST: Final = -1  # a timestamp in ListOffsets: the high watermark
INVENTED_SESSION: Final = 1_000_000_001
"""The session epoch of a fetch whose session id was never given out."""
OUT_OF_TURN: Final = 1_000_000_002
"""A session epoch that no client reaches."""
FAR_AHEAD: Final = 1_000_000  # leader epochs beyond all that a run can reach
FAR_OFFSET: Final = 1 << 40  # an offset beyond all that a run can reach
Json = Mapping[str, Any]


class Exchange(NamedTuple):
    """A request on a connection.

    since_ns: the first response arrived on this connection before; it is open from then on, so that
        the same process of the node answers until the connection ends.
    place: the number of the request on its connection.
    answered_ns: UNANSWERED without a response.
    """

    node: int
    connection: int
    since_ns: int
    place: int
    sent_ns: int
    answered_ns: int
    version: int

    @property
    def is_answered(self) -> bool:
        """Whether a response arrived."""
        return self.answered_ns != UNANSWERED

    def is_after(self, other: "Exchange") -> bool:
        """Whether the same process of a node answered `other`, and this request after it."""
        if self.node != other.node or not other.is_answered:
            return False
        return self.since_ns <= other.sent_ns and other.answered_ns <= self.sent_ns

    def is_behind(self, other: "Exchange") -> bool:
        """Whether it followed `other` on one connection: requests are handled in their order."""
        return self.connection == other.connection and self.place > other.place


class Sent(NamedTuple):
    """A record: its value is unique, `digest` has the checksums of its parts."""

    value: int
    digest: str


class Read(NamedTuple):
    """A record as it was read. `leader_epoch`: of its batch."""

    offset: int
    value: int
    digest: str
    leader_epoch: int


def message(kind: str, key: str, offset: int, facts: Json) -> Message:
    """Return the micro-operation of one partition in a request. `facts`: see `read_facts`."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return Message(key, max(offset, UNKNOWN_OFFSET), 0, text=text, f=kind)
