"""The state of producers, and their pending requests."""

from dataclasses import dataclass
from typing import Any

from quorumlog.broker.transactions.core.requests import ProducerIdAndEpoch
from tests.support.transactions.model import NOBODY, Answer, Change, Model, Producer


@dataclass
class Client:
    """The state of one producer, in its own view. `version`: its transaction.version."""

    name: str  # its transactional id
    version: int
    producer: Producer = NOBODY
    number: int = -1  # of the transaction that it believes to be in
    is_replaced: bool = False  # another has begun since

    @property
    def known_as(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(*self.producer)


@dataclass
class UnderWay:
    """A change that is being written, or waits for a producer id.

    `request_id` None: by itself, or for requests that have waited for their turn (`held`).
    """

    change: Change
    request_id: int | None = None
    held: tuple[int, ...] = ()
    after: Model | None = None  # once its record is appended
    is_tombstone: bool = False
    changed_ms: int = 0  # the time in its record
    behind: "UnderWay | None" = None  # the next change, in the same batch


@dataclass
class Asked:
    """A request. `producer`, `number`, `is_replaced`: of the client, when it first sent it."""

    client: Client
    request: Any
    producer: Producer
    number: int
    is_late: bool
    is_replaced: bool
    expected: Answer | None = None

    @classmethod
    def by(cls, client: Client, request: Any) -> "Asked":
        return cls(client, request, client.producer, client.number, False, client.is_replaced)
