"""Producers and their transactions, as the oracle records them."""

from dataclasses import dataclass, field
from typing import NamedTuple

from quorumlog.broker.transactions.core.requests import ProducerIdAndEpoch


@dataclass(slots=True, eq=False)
class Instance:
    """A producer, from one InitProducerId to the next one that begins anew.

    `came`: the number of the answered InitProducerId, by arrival.
    """

    transactional_id: str
    name: str
    timeout_ms: int
    producer: ProducerIdAndEpoch | None = None
    came: int = 0
    known_ms: int = 0  # by the slowest clock: the last change of its id was then or later


class Asking(NamedTuple):
    """The slowest clock, and whether the producer was fenced, when it sent a request."""

    sent_ms: int
    is_fenced: bool


@dataclass(slots=True, eq=False)
class Transaction:
    """One transaction. `tag` is the prefix of its records; as an outcome, True is a commit.

    `number`: its place among all requests and begun transactions.
    """

    tag: str
    number: int
    instance: Instance
    producer: ProducerIdAndEpoch
    began_ms: int  # by the slowest clock
    asked: dict[bool, int] = field(default_factory=dict)  # first request by outcome (slowest clock)
    told: bool | None = None
    outcome: bool | None = None  # by the first marker that ended a record of it
    is_fenced: bool = False  # a newer producer has received its epoch
    is_refused: bool = False  # its producer was fenced: the transaction timed out
    acknowledged: set[bytes] = field(default_factory=set)

    def ended_ms(self, *, commits: bool, has_rival: bool) -> int:
        """Return its earliest possible end, by the slowest clock, after a successful EndTxn.

        That EndTxn may have changed nothing: an earlier one has ended the transaction, or the
        coordinator had aborted it before, for a rival or after its timeout (KIP-890).
        """
        if commits:
            return self.asked[True]
        lasts_ms = 0 if has_rival else self.instance.timeout_ms
        return min(self.asked[False], self.began_ms + lasts_ms)


def tag_of(content: bytes) -> str:
    """Return the tag of a record's transaction; "" for a record outside of any."""
    tag, colon, _ = content.partition(b":")
    return tag.decode() if colon else ""
