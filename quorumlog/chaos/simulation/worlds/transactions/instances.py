"""Producers and their transactions, as the oracle knows them."""

from dataclasses import dataclass, field
from typing import NamedTuple

from quorumlog.broker.transactions.core.requests import ProducerIdAndEpoch


@dataclass(slots=True, eq=False)
class Instance:
    """A producer from its InitProducerId on, until it begins anew.

    `came`: which request it was that its answer belongs to, in the order in which they came in.
    """

    transactional_id: str
    name: str
    timeout_ms: int
    producer: ProducerIdAndEpoch | None = None
    came: int = 0
    known_ms: int = 0  # by the slowest clock: its id was last changed at that time or later


class Asking(NamedTuple):
    """What was so when a producer sent a request: the slowest clock, and whether it was fenced."""

    sent_ms: int
    is_fenced: bool


@dataclass(slots=True, eq=False)
class Transaction:
    """One transaction. `tag` stands before its records; True is a commit.

    `number`: its place among all that was begun and asked for.
    """

    tag: str
    number: int
    instance: Instance
    producer: ProducerIdAndEpoch
    began_ms: int  # by the slowest clock
    asked: dict[bool, int] = field(default_factory=dict)  # for what, and when first (slowest clock)
    told: bool | None = None
    outcome: bool | None = None  # by the first marker that ended a record of it
    is_fenced: bool = False  # another producer was told its epoch
    is_refused: bool = False  # its producer was told that its time is over
    acknowledged: set[bytes] = field(default_factory=set)

    def ended_ms(self, *, commits: bool, has_rival: bool) -> int:
        """Return when it ended at the earliest, by the slowest clock: its producer was told how.

        An EndTxn that is answered so may have changed nothing: an earlier one has ended it, or the
        coordinator was ahead with an abort, for a rival or because its time was over (KIP-890).
        """
        if commits:
            return self.asked[True]
        lasts_ms = 0 if has_rival else self.instance.timeout_ms
        return min(self.asked[False], self.began_ms + lasts_ms)


def tag_of(content: bytes) -> str:
    """Return the tag of the transaction that a record is of; "": of none."""
    tag, colon, _ = content.partition(b":")
    return tag.decode() if colon else ""
