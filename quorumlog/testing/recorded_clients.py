"""Quorumlog's own clients, with every send and every poll in the history of the test.

Each delegates to the client that it wraps, and refuses calls that the history could not record.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from quorumlog.chaos.history import checksum_of
from quorumlog.client import Consumer, Producer, RecordMetadata
from quorumlog.client.sync import SyncConsumer, SyncProducer

if TYPE_CHECKING:
    from quorumlog.testing.history import History, RecordedOperation

_MOVING: Final = frozenset(
    ("assign", "subscribe", "unsubscribe", "seek", "seek_to_beginning", "seek_to_end")
)


class _RecordedClient:
    def __init__(self, history: "History", client: Any) -> None:
        self._history: Final = history
        self._client: Final = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class _RecordedProducer(_RecordedClient):
    def send(self, *_: object, **__: object) -> None:
        """Refuse: the history could not record the result. Raises TypeError."""
        raise TypeError("a recorded producer sends by send_and_wait")

    def _operation(self, topic: str, value: object, partition: int | None) -> "RecordedOperation":
        if partition is None and getattr(topic, "partitions", None) != 1:
            raise ValueError(f"a recorded send to {topic} needs partition=...")
        return self._history.send(f"{topic}-{partition or 0}", value)


def _checksum(
    metadata: RecordMetadata,
    key: bytes | None = None,
    headers: Iterable[tuple[str, bytes | None]] = (),
    **_: object,
) -> int:
    """Return the checksum of a record that was sent; `metadata` has its timestamp."""
    return checksum_of(key, headers, metadata.timestamp_ms)


class RecordedProducer(_RecordedProducer):
    """A Producer that sends by `send_and_wait`."""

    async def send_and_wait(
        self, topic: str, value: bytes, *args: Any, partition: int | None = None, **options: Any
    ) -> RecordMetadata:
        """Send a record and wait until it is acknowledged. Raises KafkaError."""
        with self._operation(topic, value, partition) as operation:
            metadata: RecordMetadata = await self._client.send_and_wait(
                topic, value, *args, partition=partition or 0, **options
            )
            operation.ok(offset=metadata.offset, checksum=_checksum(metadata, *args, **options))
        return metadata


class RecordedSyncProducer(_RecordedProducer):
    """A SyncProducer that sends by `send_and_wait`."""

    def send_and_wait(
        self, topic: str, value: bytes, *args: Any, partition: int | None = None, **options: Any
    ) -> RecordMetadata:
        """Send a record and wait until it is acknowledged. Raises KafkaError."""
        with self._operation(topic, value, partition) as operation:
            metadata: RecordMetadata = self._client.send_and_wait(
                topic, value, *args, partition=partition or 0, **options
            )
            operation.ok(offset=metadata.offset, checksum=_checksum(metadata, *args, **options))
        return metadata


class _RecordedConsumer(_RecordedClient):
    """Reports changes of the position, so that the history does not take them for gaps."""

    def __init__(self, history: "History", client: Any) -> None:
        super().__init__(history, client)
        self._assignment: frozenset[Any] = frozenset()

    def __getattr__(self, name: str) -> Any:
        if name in _MOVING:
            self._history.forget_positions(client=self)
        return super().__getattr__(name)

    def _note_assignment(self) -> None:
        assignment = self._client.assignment()
        if assignment != self._assignment:
            self._assignment = assignment
            self._history.forget_positions(client=self)


class RecordedConsumer(_RecordedConsumer):
    """A Consumer that reads by `poll`."""

    async def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> Any:
        """Return the next records."""
        with self._history.poll(client=self) as operation:
            polled = await self._client.poll(timeout_ms, max_records)
            self._note_assignment()
            operation.ok(polled)
        return polled


class RecordedSyncConsumer(_RecordedConsumer):
    """A SyncConsumer that reads by `poll`."""

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> Any:
        """Return the next records."""
        with self._history.poll(client=self) as operation:
            polled = self._client.poll(timeout_ms, max_records)
            self._note_assignment()
            operation.ok(polled)
        return polled


_WRAPPERS: Final[dict[type, type[_RecordedClient]]] = {
    Producer: RecordedProducer,
    SyncProducer: RecordedSyncProducer,
    Consumer: RecordedConsumer,
    SyncConsumer: RecordedSyncConsumer,
}


def recorded(history: "History", client: object) -> Any:
    """Return a recording wrapper of a client. Raises TypeError for another kind of client."""
    for kind, wrapper in _WRAPPERS.items():
        if isinstance(client, kind):
            return wrapper(history, client)
    names = ", ".join(kind.__name__ for kind in _WRAPPERS)
    raise TypeError(f"{type(client).__name__} is not one of {names}: record by history.send(...)")
