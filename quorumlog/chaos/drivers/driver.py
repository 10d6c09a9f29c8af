"""The protocols of a client library, by capability, as workloads need them.

Every driver produces and reads assigned partitions. The other methods are capabilities: a workload
lists those that it requires, and a run with a driver that lacks one is refused before it starts.

The whole verdict rests on one distinction: a failed send, commit or change is *definite* only if it
can never take effect. Without proof of that, a driver reports "indefinite". An error's text begins
with its code, Kafka's name where there is one (`CORRUPT_MESSAGE: ...`): a checker reads the code,
never the prose.

Workloads reach a driver through `limits.limited`, which limits the time of every call. A driver
never blocks the event loop; a library that blocks has a thread (`worker`).
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, NotRequired, Protocol, TypedDict, Unpack

CAPABILITIES: Final[Mapping[str, str]] = {
    "groups": "join a group, commit offsets",
    "offsets": "look up offsets: the first, the last, the first at or after a time",
    "max-timestamp": "look up the offset of the greatest timestamp (KIP-734)",
    "topics": "create, describe and delete topics, with the broker's error",
    "transactions": "write in transactions, with a group's offsets; read committed records",
    "consumer-protocol": "join a group by the consumer protocol (KIP-848), too",
}

TRANSACTION_TIMEOUT_MS: Final = 10_000  # the broker aborts an open transaction after it

EARLIEST: Final = -2  # ListOffsets: the first offset of the log
LATEST: Final = -1  # the high watermark
MAX_TIMESTAMP: Final = -3  # the first record with the greatest timestamp (KIP-734)
NO_GENERATION: Final = -1  # no generation, or the library does not report it
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
    """A result of ListOffsets; -1: no such record, or no timestamp."""

    offset: int
    timestamp_ms: int


class Rebalance(NamedTuple):
    """A change of a member's partitions. `change`: assigned, revoked or lost."""

    change: str
    partitions: tuple[int, ...]
    generation: int


class DriverError(ConnectionError):
    """A call failed.

    code: Kafka's name of the error, or the library's own.
    definite: the call had no effect and never will; False if that is uncertain.
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

    `definite`: the record is in no log and never will be (`fail`); else it may be in the log
    (`info`). `reason` begins with the code of the error.
    """

    def __init__(self, reason: str, *, definite: bool) -> None:
        super().__init__(reason)
        self.definite: Final = definite


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """The batches of a producer: the time that it waits for more records, and the compression."""

    linger_ms: int = 0
    compression: str = "none"


AT_ONCE: Final = Batching()


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The membership of a consumer in its group. `instance_id`: of a static member (KIP-345).

    protocol: classic, or consumer (KIP-848), which needs the capability `consumer-protocol`.
    """

    group_id: str
    protocol: str = "classic"
    instance_id: str | None = None
    session_timeout_ms: int = 6_000
    max_poll_interval_ms: int = 6_000


class SendOptions(TypedDict, total=False):
    """The optional parts of a record to send."""

    key: bytes | None
    headers: Headers
    timestamp_ms: int | None


class TopicOptions(TypedDict):
    """The properties of a topic to create."""

    partitions: int
    replication_factor: int
    config: NotRequired[Mapping[str, str]]


class DriverProducer(Protocol):
    """An idempotent producer with acks=all."""

    async def send(
        self, topic: str, partition: int, value: bytes, **options: Unpack[SendOptions]
    ) -> asyncio.Future[int]:
        """Queue a record after those sent before; its future returns the acknowledged offset.

        Both raise SendFailed. A cancelled call may or may not have sent the record.
        """

    async def close(self) -> None:
        """Discard the records in flight and release all resources."""


class DriverConsumer(Protocol):
    """A consumer of assigned partitions, without a group."""

    async def assign(self, topic: str, partitions: Sequence[int]) -> None:
        """Assign these partitions, from their beginning."""

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Return the records that arrived, in order per partition; an empty list after the timeout.

        Raises ConnectionError (DriverError) when the library reports an error; the poll then
        returned no record, no position has moved, and the next poll may succeed. An error that
        comes together with records is raised by the next poll.
        """

    async def end_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the high watermark of each partition (exclusive). Raises ConnectionError."""

    async def close(self) -> None:
        """Release all resources."""


class OffsetLookup(Protocol):
    """Looks up offsets by time at the leaders (ListOffsets)."""

    async def ask(self, topic: str, timestamps: Mapping[int, int]) -> dict[int, OffsetAt]:
        """Look up a time in ms, EARLIEST, LATEST or MAX_TIMESTAMP in each partition.

        MAX_TIMESTAMP needs the capability `max-timestamp`. Raises DriverError.
        """

    async def close(self) -> None:
        """Release all resources."""


class GroupMember(Protocol):
    """A consumer in a group that commits only by `commit`; it starts at the first record."""

    async def subscribe(self, topic: str) -> None:
        """Join the group, from the next polls on."""

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Return new records of the partitions owned now; as DriverConsumer.poll."""

    def rebalances(self) -> list[Rebalance]:
        """Return the rebalances since the last call, in order."""

    def generation(self) -> int:
        """Return the member's current generation, or NO_GENERATION."""

    async def commit(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit the next offset to read of each partition. Raises DriverError."""

    async def committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the group's committed offsets, of the partitions that have one.

        Raises DriverError.
        """

    async def close(self) -> None:
        """Leave the group (a static member stays in it) without a commit; release all resources."""


class TransactionalProducer(DriverProducer, Protocol):
    """The producer of a transactional id. It sends in transactions only, one after the other.

    After an error that is not `definite`, discard it: its transaction may end either way.
    """

    async def begin(self) -> None:
        """Begin a transaction. Raises DriverError."""

    async def send_offsets(self, group_id: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit a group's offsets if the transaction commits, as no member. Raises DriverError."""

    async def commit(self) -> None:
        """Commit once every record is acknowledged.

        Raises DriverError; `definite`: the transaction is not committed and never will be.
        """

    async def abort(self) -> None:
        """Abort. Raises DriverError."""


class CommittedReader(DriverConsumer, Protocol):
    """A consumer of assigned partitions with isolation level read_committed.

    Its group has committed offsets, and no members. `end_offsets` has no common meaning: libraries
    return the high watermark or the last stable offset.
    """

    async def seek(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Seek all assigned partitions to these offsets. Raises DriverError."""

    async def committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the group's committed offsets, of the partitions that have one.

        Raises DriverError.
        """


class TopicAdmin(Protocol):
    """Changes and describes topics; every error is a DriverError with the broker's code."""

    async def create(self, topic: str, **options: Unpack[TopicOptions]) -> None:
        """Create a topic; TOPIC_ALREADY_EXISTS if there is one of this name."""

    async def delete(self, topic: str) -> None:
        """Delete a topic; UNKNOWN_TOPIC_OR_PARTITION if there is none of this name."""

    async def exists(self, topic: str) -> bool:
        """Return whether a broker has the topic."""

    async def close(self) -> None:
        """Release all resources."""


class Driver(Protocol):
    """One client library. `capabilities`: names of CAPABILITIES."""

    @property
    def capabilities(self) -> frozenset[str]:
        """Its capabilities besides producing and reading assigned partitions."""

    async def producer(
        self, bootstrap: str, client_id: str, batching: Batching = AT_ONCE
    ) -> DriverProducer:
        """Make a producer. Raises ConnectionError if no broker answers."""

    async def consumer(self, bootstrap: str, client_id: str) -> DriverConsumer:
        """Make a consumer. Raises ConnectionError if no broker answers."""

    async def create_topic(
        self, bootstrap: str, topic: str, **options: Unpack[TopicOptions]
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

        Raises ConnectionError if that fails.
        """

    async def reader(self, bootstrap: str, client_id: str, group_id: str) -> CommittedReader:
        """Make a read_committed reader. Raises ConnectionError if no broker answers."""


class OffsetsDriver(Driver, Protocol):
    """A driver with the capability `offsets`."""

    async def offsets(self, bootstrap: str, client_id: str) -> OffsetLookup:
        """Make a client that looks up offsets. Raises ConnectionError if no broker answers."""


class TopicDriver(Driver, Protocol):
    """A driver with the capability `topics`."""

    async def admin(self, bootstrap: str, client_id: str) -> TopicAdmin:
        """Make an administrator of topics. Raises ConnectionError if no broker answers."""


class AnyDriver(GroupDriver, TransactionsDriver, OffsetsDriver, TopicDriver, Protocol):
    """A driver with every method; `capabilities` lists the methods that may be called."""
