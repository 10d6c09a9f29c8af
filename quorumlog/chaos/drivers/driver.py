"""The protocols of a client library, by capability, as workloads need them.

Every driver produces and reads assigned partitions. The rest are capabilities: a workload says
which it requires, and a run with a driver that lacks one is refused before anything starts.

The whole verdict rests on one distinction: a failed send, commit or change is *definite* only if
it can never take effect. Every driver says "indefinite" when it does not know better. An error's
text begins with its code, Kafka's name where there is one (`CORRUPT_MESSAGE: ...`): a checker
reads the code, never the prose.

Workloads reach a driver through `limits.limited`: no call lasts for ever. A driver never blocks
the event loop; a library that blocks has a thread (`worker`).
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

CAPABILITIES: Final[Mapping[str, str]] = {
    "groups": "join a group, commit offsets",
    "offsets": "ask for offsets by time: the first, the last, the first at or after a time",
    "max-timestamp": "ask for the offset of the greatest timestamp (KIP-734)",
    "topics": "create, describe and delete topics, with the broker's error",
    "transactions": "write in transactions, with a group's offsets; read what is committed",
    "consumer-protocol": "join a group by the consumer protocol (KIP-848), too",
}

TRANSACTION_TIMEOUT_MS: Final = 10_000  # an open transaction is aborted then

EARLIEST: Final = -2  # ListOffsets: the first offset of the log
LATEST: Final = -1  # the high watermark
MAX_TIMESTAMP: Final = -3  # the first record with the greatest timestamp (KIP-734)
NO_GENERATION: Final = -1  # a member that is in no generation, or a library that does not tell
Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """One record, as a workload reads it."""

    topic: str
    partition: int
    offset: int
    value: bytes
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int = -1


class OffsetAt(NamedTuple):
    """An answer of ListOffsets: -1 and -1 if there is no such record, or no time was asked for."""

    offset: int
    timestamp_ms: int


class Rebalance(NamedTuple):
    """A change of what a member owns. `change`: assigned, revoked or lost."""

    change: str
    partitions: tuple[int, ...]
    generation: int


class DriverError(ConnectionError):
    """A call failed.

    code: Kafka's name of the error, or a name of the library's own.
    definite: it had no effect and never will; False if the driver does not know.
    """

    def __init__(self, code: str, text: str = "", *, definite: bool = False) -> None:
        super().__init__(f"{code}: {text}" if text else code)
        self.code: Final = code
        self.definite: Final = definite


class CallTimedOut(DriverError, TimeoutError):
    """A call did not return within its limit; it may still take effect. Discard the client."""

    def __init__(self, call: str, limit_s: float) -> None:
        super().__init__("NO_ANSWER", f"{call} did not return within {limit_s:g} s")


class SendFailed(Exception):
    """A send that was not acknowledged.

    `definite`: the record is nowhere and will never be (`fail`); else it may be anywhere (`info`).
    `reason` begins with the code of the error.
    """

    def __init__(self, reason: str, *, definite: bool) -> None:
        super().__init__(reason)
        self.definite: Final = definite


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How a producer makes batches: how long it waits for more records, and its compression."""

    linger_ms: int = 0
    compression: str = "none"


AT_ONCE: Final = Batching()


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """How a consumer is a member of its group. `instance_id`: of a static member (KIP-345).

    protocol: classic, or consumer (KIP-848), which needs the capability `consumer-protocol`.
    """

    group_id: str
    protocol: str = "classic"
    instance_id: str | None = None
    session_timeout_ms: int = 6_000
    max_poll_interval_ms: int = 6_000


class DriverProducer(Protocol):
    """An idempotent producer with acks=all."""

    async def send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[int]:
        """Put a record in line behind those sent before; its future gives the acknowledged offset.

        Both raise SendFailed. A call that is cancelled may or may not have sent the record.
        """

    async def close(self) -> None:
        """Give up what is in flight and let go of all resources."""


class DriverConsumer(Protocol):
    """A consumer of assigned partitions, without a group."""

    async def assign(self, topic: str, partitions: Sequence[int]) -> None:
        """Take these partitions from their beginning."""

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Return what arrived, in order per partition; an empty list after the timeout.

        Raises ConnectionError (DriverError) when the library reports an error; nothing was
        returned then, no position has moved, and the next poll may succeed. An error that comes
        together with records is raised by the next poll.
        """

    async def end_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the high watermark of each partition (exclusive). Raises ConnectionError."""

    async def close(self) -> None:
        """Let go of all resources."""


class OffsetLookup(Protocol):
    """Asks leaders for offsets by time (ListOffsets)."""

    async def ask(self, topic: str, timestamps: Mapping[int, int]) -> dict[int, OffsetAt]:
        """Ask each partition's leader for a time in ms, EARLIEST, LATEST or MAX_TIMESTAMP.

        The last needs the capability `max-timestamp`. Raises DriverError.
        """

    async def close(self) -> None:
        """Let go of all resources."""


class GroupMember(Protocol):
    """A consumer in a group that commits only when it is told to; it begins at the beginning."""

    async def subscribe(self, topic: str) -> None:
        """Join the group, from the next polls on."""

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Return what arrived of the partitions owned now; as DriverConsumer.poll."""

    def rebalances(self) -> list[Rebalance]:
        """Return what has changed since the last call, in order."""

    def generation(self) -> int:
        """Return the generation that the member is in, or NO_GENERATION."""

    async def commit(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit the next offset to read of each partition. Raises DriverError."""

    async def committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return what the group has committed; nothing for a partition without an offset.

        Raises DriverError.
        """

    async def close(self) -> None:
        """Commit nothing, leave the group (a static member stays in it), let go of all."""


class TransactionalProducer(DriverProducer, Protocol):
    """The producer of a transactional id. It sends in transactions only, one after the other.

    After an error that is not `definite` it is discarded: its transaction may end either way.
    """

    async def begin(self) -> None:
        """Begin a transaction. Raises DriverError."""

    async def send_offsets(self, group_id: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit a group's offsets if the transaction commits, as no member. Raises DriverError."""

    async def commit(self) -> None:
        """Commit once everything is acknowledged.

        Raises DriverError; `definite`: nothing of the transaction is or will be committed.
        """

    async def abort(self) -> None:
        """Abort. Raises DriverError."""


class CommittedReader(DriverConsumer, Protocol):
    """A consumer of assigned partitions that sees what is committed (read_committed).

    Its group has committed offsets, and no members. `end_offsets` is of no use: libraries answer
    the high watermark or the last stable offset.
    """

    async def seek(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Read on from these offsets, of all partitions that are assigned. Raises DriverError."""

    async def committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return what the group has committed; nothing for a partition without an offset.

        Raises DriverError.
        """


class TopicAdmin(Protocol):
    """Changes and describes topics; every error is a DriverError with the broker's code."""

    async def create(self, topic: str, *, partitions: int, replication_factor: int) -> None:
        """Create a topic; TOPIC_ALREADY_EXISTS if there is one of this name."""

    async def delete(self, topic: str) -> None:
        """Delete a topic; UNKNOWN_TOPIC_OR_PARTITION if there is none of this name."""

    async def exists(self, topic: str) -> bool:
        """Ask a broker whether the topic exists."""

    async def close(self) -> None:
        """Let go of all resources."""


class Driver(Protocol):
    """One client library. `capabilities`: names of CAPABILITIES."""

    @property
    def capabilities(self) -> frozenset[str]:
        """What it can do besides producing and reading assigned partitions."""

    async def producer(
        self, bootstrap: str, client_id: str, batching: Batching = AT_ONCE
    ) -> DriverProducer:
        """Make a producer. Raises ConnectionError if no broker answers."""

    async def consumer(self, bootstrap: str, client_id: str) -> DriverConsumer:
        """Make a consumer. Raises ConnectionError if no broker answers."""

    async def create_topic(
        self,
        bootstrap: str,
        topic: str,
        *,
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic and return when its metadata is committed. Raises ConnectionError."""


class GroupDriver(Driver, Protocol):
    """A driver with the capability `groups`."""

    async def member(self, bootstrap: str, client_id: str, membership: Membership) -> GroupMember:
        """Make a consumer that can join a group. Raises ConnectionError if no broker answers."""


class TransactionsDriver(Driver, Protocol):
    """A driver with the capability `transactions`."""

    async def transactional(
        self, bootstrap: str, client_id: str, transactional_id: str
    ) -> TransactionalProducer:
        """Make the producer of an id; its predecessors are fenced, and their transactions ended.

        Raises ConnectionError if that could not be done.
        """

    async def reader(self, bootstrap: str, client_id: str, group_id: str) -> CommittedReader:
        """Make a reader of what is committed. Raises ConnectionError if no broker answers."""


class OffsetsDriver(Driver, Protocol):
    """A driver with the capability `offsets`."""

    async def offsets(self, bootstrap: str, client_id: str) -> OffsetLookup:
        """Make a client that asks for offsets. Raises ConnectionError if no broker answers."""


class TopicDriver(Driver, Protocol):
    """A driver with the capability `topics`."""

    async def admin(self, bootstrap: str, client_id: str) -> TopicAdmin:
        """Make an administrator of topics. Raises ConnectionError if no broker answers."""


class AnyDriver(GroupDriver, TransactionsDriver, OffsetsDriver, TopicDriver, Protocol):
    """A driver with every method; `capabilities` lists the methods that may be called."""
