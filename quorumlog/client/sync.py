"""The same clients for code without an event loop.

All of them share one thread with one event loop, which is there while any of them is open. Every
method blocks until the asynchronous one is done, and raises what it raises. Threads may share a
producer or an admin. A call from a coroutine works, but its event loop stands still meanwhile.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, Final, Generic, Protocol, Self, TypeVar, Unpack

from quorumlog.client.admin import Admin, ResourceKind
from quorumlog.client.consumer import ITERATION_POLL_MS, Consumer, Records
from quorumlog.client.descriptions import (
    ClusterDescription,
    ConfigValue,
    GroupDescription,
    GroupListing,
    NewTopic,
    TopicDescription,
)
from quorumlog.client.producer import Delivery, Producer
from quorumlog.client.rebalance import RebalanceListener
from quorumlog.client.records import (
    ConsumerRecord,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    RecordMetadata,
    TopicPartition,
)
from quorumlog.client.settings import (
    AdminOptions,
    BootstrapServers,
    ConsumerOptions,
    ProducerOptions,
)

Result = TypeVar("Result")


async def _cancelled(tasks: set["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _LoopThread:
    """An event loop in a thread of its own. `users` counts the open clients."""

    shared: ClassVar["_LoopThread | None"] = None
    lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self.users = 0
        self._loop: Final = asyncio.new_event_loop()
        self._thread: Final = threading.Thread(
            target=self._serve, name="quorumlog-client", daemon=True
        )
        self._thread.start()

    def _serve(self) -> None:
        self._loop.run_forever()
        # A client whose end was interrupted leaves some.
        self._loop.run_until_complete(_cancelled(asyncio.all_tasks(self._loop)))
        self._loop.close()

    @classmethod
    def acquire(cls) -> "_LoopThread":
        """Return the shared one; start it if there is none."""
        with cls.lock:
            if cls.shared is None:
                cls.shared = cls()
            cls.shared.users += 1
            return cls.shared

    def release(self) -> None:
        """Say that one client is closed; the last one ends the thread."""
        with self.lock:
            self.users -= 1
            if self.users:
                return
            type(self).shared = None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def check_caller(self, work: Coroutine[Any, Any, Any]) -> None:
        """Raise RuntimeError if the caller runs on the loop that would do `work` for it."""
        if threading.current_thread() is self._thread:
            work.close()
            message = (
                "this code runs on the clients' own event loop, where a blocking call would wait"
                " for itself (in a RebalanceListener, say): use the asynchronous client there"
            )
            raise RuntimeError(message)

    def run(self, work: Coroutine[Any, Any, Result], timeout_s: float | None = None) -> Result:
        """Run `work` on the loop and wait for it. Raises TimeoutError, and then cancels it."""
        self.check_caller(work)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise


class _Client(Protocol):
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


ClientT = TypeVar("ClientT", bound=_Client)


class _Blocking(Generic[ClientT]):
    """What the three have in common: opened at construction, closed by `close` or `with`."""

    def __init__(self, client: ClientT) -> None:
        self._client: Final = client
        self._loop: Final = _LoopThread.acquire()
        self._is_open = True
        self._lock: Final = threading.Lock()
        try:
            self._run(client.start())
        except BaseException:
            self._close(client.stop())
            raise

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        if not self._is_open:
            work.close()
            raise RuntimeError("the client is closed")
        return self._loop.run(work)

    def close(self) -> None:
        """Close in good order; see the asynchronous client's `stop`."""
        self._close(self._client.stop())

    def _close(self, stop: Coroutine[Any, Any, None]) -> None:
        self._loop.check_caller(stop)
        with self._lock:
            was_open, self._is_open = self._is_open, False
        if not was_open:
            stop.close()
            return
        try:
            self._loop.run(stop)
        finally:
            self._loop.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is None:
            self.close()
        else:
            self._close(self._client.__aexit__(exc_type, exc, traceback))


class SyncDelivery:
    """The future of one record that a SyncProducer sent."""

    def __init__(self, delivery: Delivery, loop: _LoopThread) -> None:
        self._delivery: Final = delivery
        self._loop: Final = loop

    def done(self) -> bool:
        """Tell whether `result` returns at once."""
        return self._delivery.done()

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Wait until the record is acknowledged. Raises KafkaError, or TimeoutError."""
        if self._delivery.done():
            return self._delivery.result()
        return self._loop.run(_await(self._delivery), timeout_s)


async def _await(delivery: Delivery) -> RecordMetadata:
    return await delivery


class SyncProducer(_Blocking[Producer]):
    """Producer without an event loop: `with SyncProducer("host:port") as producer: ...`."""

    def __init__(
        self, bootstrap_servers: BootstrapServers, **options: Unpack[ProducerOptions]
    ) -> None:
        super().__init__(Producer(bootstrap_servers, **options))

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
    ) -> SyncDelivery:
        """Put a record in line; its `result()` waits until it is acknowledged."""
        delivery = self._run(
            self._client.send(
                topic, value, key, partition=partition, headers=headers, timestamp_ms=timestamp_ms
            )
        )
        return SyncDelivery(delivery, self._loop)

    def flush(self) -> None:
        """Wait until all that was sent is acknowledged or failed."""
        self._run(self._client.flush())


class SyncConsumer(_Blocking[Consumer]):
    """Consumer without an event loop. Use it in one thread."""

    def __init__(
        self, bootstrap_servers: BootstrapServers, **options: Unpack[ConsumerOptions]
    ) -> None:
        self._unseen: Records = {}  # taken for a caller that was interrupted (Ctrl-C)
        super().__init__(Consumer(bootstrap_servers, **options))

    def close(self) -> None:
        """Close in good order; see the asynchronous client's `stop`."""
        if self._unseen:  # then the last poll's records are not processed
            interrupted = KeyboardInterrupt()
            self._close(self._client.__aexit__(type(interrupted), interrupted, None))
        else:
            super().close()

    def subscribe(self, topics: Iterable[str], listener: RebalanceListener | None = None) -> None:
        """Read these topics as a member of the group. The listener runs on the shared loop."""

        async def work() -> None:
            self._client.subscribe(topics, listener)

        self._run(work())

    def unsubscribe(self) -> None:
        """Leave the group, or drop what was assigned."""
        self._run(self._client.unsubscribe())

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions."""

        async def work() -> None:
            self._client.assign(partitions)

        self._run(work())

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that are read now."""
        return self._client.assignment()

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> Records:
        """Return records as soon as there are any; {} after `timeout_ms` without.

        What was fetched for a call that an exception ended (Ctrl-C) is returned by the next one.
        """

        async def work() -> None:
            self._unseen = await self._client.poll(timeout_ms, max_records)

        if not self._unseen:
            self._run(work())
        records, self._unseen = self._unseen, {}
        return records

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yield record after record, for ever. One is processed when the next is asked for.

        `poll` is many times faster: here, every record crosses from one thread to another.
        """
        while True:
            for records in self.poll(ITERATION_POLL_MS, 1).values():
                yield from records

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on from `offset`."""

        async def work() -> None:
            self._client.seek(partition, offset)

        self._run(work())

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Read on from the first record there is; all partitions if none is named."""

        async def work() -> None:
            self._client.seek_to_beginning(*partitions)

        self._run(work())

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Read on from the next record to be written; all partitions if none is named."""

        async def work() -> None:
            self._client.seek_to_end(*partitions)

        self._run(work())

    def position(self, partition: TopicPartition) -> int:
        """Return the offset that is read next."""
        return self._run(self._client.position(partition))

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None
    ) -> None:
        """Commit `offsets`, or the place of every partition."""
        self._run(self._client.commit(offsets))

    def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what the group has committed."""
        return self._run(self._client.committed(partitions))

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        return self._run(self._client.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of the next record to become visible, each."""
        return self._run(self._client.end_offsets(partitions))

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record at or after each time."""
        return self._run(self._client.offsets_for_times(timestamps))


class SyncAdmin(_Blocking[Admin]):
    """Admin without an event loop."""

    def __init__(
        self, bootstrap_servers: BootstrapServers, **options: Unpack[AdminOptions]
    ) -> None:
        super().__init__(Admin(bootstrap_servers, **options))

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        """Create topics."""
        self._run(self._client.create_topics(topics, validate_only=validate_only))

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics."""
        self._run(self._client.delete_topics(names))

    def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._run(self._client.list_topics(include_internal=include_internal))

    def describe_topics(self, names: Iterable[str] | None = None) -> dict[str, TopicDescription]:
        """Describe topics, None: all."""
        return self._run(self._client.describe_topics(names))

    def describe_cluster(self) -> ClusterDescription:
        """Describe the cluster as one broker sees it now."""
        return self._run(self._client.describe_cluster())

    def describe_configs(self, kind: ResourceKind, name: str) -> dict[str, ConfigValue]:
        """Return the settings of a topic or broker."""
        return self._run(self._client.describe_configs(kind, name))

    def list_consumer_groups(self) -> list[GroupListing]:
        """List all groups."""
        return self._run(self._client.list_consumer_groups())

    def describe_consumer_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """Describe classic groups."""
        return self._run(self._client.describe_consumer_groups(group_ids))

    def list_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what a group has committed."""
        return self._run(self._client.list_consumer_group_offsets(group_id, partitions))

    def delete_consumer_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups without members."""
        self._run(self._client.delete_consumer_groups(group_ids))
