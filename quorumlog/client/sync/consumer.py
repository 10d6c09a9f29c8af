"""The consumer without an event loop."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Unpack

from quorumlog.client.consumer import ITERATION_POLL_MS, Consumer, Records
from quorumlog.client.rebalance_listener import RebalanceListener
from quorumlog.client.records import (
    ConsumerRecord,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from quorumlog.client.settings import BootstrapServers, ConsumerOptions
from quorumlog.client.sync.blocking import Blocking


class SyncConsumer(Blocking[Consumer]):
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
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        timeout_ms: float | None = None,
    ) -> None:
        """Commit `offsets`, or the place of every partition."""
        self._run(self._client.commit(offsets, timeout_ms))

    def partitions_for(self, topic: str) -> list[int]:
        """Return the topic's partitions."""
        return self._run(self._client.partitions_for(topic))

    def subscription(self) -> frozenset[str]:
        """Return the topics of `subscribe`."""
        return self._client.subscription()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these from `poll` until `resume`."""

        async def work() -> None:
            self._client.pause(partitions)

        self._run(work())

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`."""

        async def work() -> None:
            self._client.resume(partitions)

        self._run(work())

    def highwater(self, partition: TopicPartition) -> int:
        """Return the partition's high watermark as of the last fetch; -1 before."""
        return self._client.highwater(partition)

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
