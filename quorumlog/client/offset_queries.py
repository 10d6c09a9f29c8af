"""What a consumer may ask about any partition, assigned to it or not."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Final

from quorumlog.client.checks import checked_partitions, checked_timestamps
from quorumlog.client.core.positions import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from quorumlog.client.io.cluster import Cluster
from quorumlog.client.io.list_offsets import list_offsets
from quorumlog.client.records import OffsetAndTimestamp
from quorumlog.client.settings import ConsumerSettings
from quorumlog.wire.codec.identifiers import TopicPartition


class OffsetQueries(ABC):
    """The part of Consumer that only asks."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self.settings: Final = settings

    @abstractmethod
    def _running_cluster(self) -> Cluster:
        """Return the cluster. Raises RuntimeError if there is none."""

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition. Raises KafkaError."""
        return await self._offsets_at(partitions, EARLIEST_TIMESTAMP)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of the next record to become visible, each. Raises KafkaError."""
        return await self._offsets_at(partitions, LATEST_TIMESTAMP)

    async def _offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, int]:
        found = await self._list_offsets(dict.fromkeys(checked_partitions(partitions), timestamp))
        return {partition: place.offset for partition, place in found.items()}

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record at or after each time (ms); None if there is none that young."""
        found = await self._list_offsets(checked_timestamps(timestamps))
        return {name: place if place.offset >= 0 else None for name, place in found.items()}

    async def _list_offsets(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        cluster = self._running_cluster()
        timeout_ms = self.settings.default_api_timeout_ms
        return await list_offsets(cluster, timestamps, self.settings.isolation_level, timeout_ms)

    async def partitions_for(self, topic: str) -> list[int]:
        """Return the topic's partitions.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION after some seconds if there is no such topic.
        """
        cluster = self._running_cluster()
        return [*(await cluster.topic(topic, self.settings.default_api_timeout_ms)).partitions]
