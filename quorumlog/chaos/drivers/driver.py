"""The protocol of a client library, as workloads need it.

The whole verdict rests on one distinction: a failed send is *definite* only if the record can
never appear. Every driver says "indefinite" when it does not know better.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol


class Record(NamedTuple):
    """One record, as a workload reads it."""

    topic: str
    partition: int
    offset: int
    value: bytes


class SendFailed(Exception):
    """A send that was not acknowledged.

    `definite`: the record is nowhere and will never be (`fail`); else it may be anywhere (`info`).
    """

    def __init__(self, reason: str, *, definite: bool) -> None:
        super().__init__(reason)
        self.definite: Final = definite


class DriverProducer(Protocol):
    """An idempotent producer with acks=all."""

    async def send(self, topic: str, partition: int, value: bytes) -> asyncio.Future[int]:
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

        Raises ConnectionError when the library reports an error; the next poll may succeed.
        """

    async def end_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the high watermark of each partition (exclusive). Raises ConnectionError."""

    async def close(self) -> None:
        """Let go of all resources."""


class Driver(Protocol):
    """One client library."""

    async def producer(self, bootstrap: str, client_id: str) -> DriverProducer:
        """Make a producer. Raises ConnectionError if no broker answers."""

    async def consumer(self, bootstrap: str, client_id: str) -> DriverConsumer:
        """Make a consumer. Raises ConnectionError if no broker answers."""

    async def create_topic(
        self, bootstrap: str, topic: str, *, partitions: int, replication_factor: int
    ) -> None:
        """Create a topic and return when its metadata is committed. Raises ConnectionError."""
