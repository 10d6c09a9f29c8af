"""The families of consumer groups: kafka_exporter's, on the node of each group's coordinator.

A lag compares a committed offset with the high watermark of the partition's leader. A scrape
requests it with ListOffsets if another broker leads. It reads the committed offsets first: a
consumer cannot have committed beyond a high watermark that is read later, so no lag is negative.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from quorumlog.broker.partitions.log.offset_lookup import LATEST
from quorumlog.broker.peer_addresses import PeerAddresses, connecting
from quorumlog.metadata_quorum.image import BrokerImage
from quorumlog.node.metrics.exposition import Family, Sample, labels
from quorumlog.node.node_broker import NodeBroker
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, TopicPartition
from quorumlog.wire.codec.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from quorumlog.wire.io.connection import ConnectionLost, RequestTimedOut, UnsupportedVersion

LEADER_TIMEOUT_MS: Final = 1_000  # of a scrape; the lag of an unanswered partition is left out
GROUPS_AT_ONCE: Final = 100  # in one turn of the event loop
_GROUP: Final = "kafka_consumergroup_"


class Groups:
    """The groups of this broker's coordinators, as of the start of a scrape."""

    def __init__(self, broker: NodeBroker, peer_addresses: Mapping[int, str]) -> None:
        self._broker: Final = broker
        self._addresses: Final = PeerAddresses(peer_addresses)
        self._members: Final[dict[str, int]] = {}
        self._states: Final[Counter[str]] = Counter()
        self._offsets: Final[dict[str, list[tuple[TopicPartition, int]]]] = {}
        self._ends: dict[TopicPartition, int] = {}

    def count(self) -> Iterator[None]:
        """Read members and committed offsets; between the steps, other work may be done."""
        number = 0
        for coordinator in [*self._broker.groups.coordinators()]:
            if isinstance(coordinator, ErrorCode):
                continue  # it is loading, or has just resigned
            consumer_groups = coordinator.consumer_groups.coordinator.groups
            for group_id in coordinator.known_groups():
                group = consumer_groups.get(group_id) or coordinator.groups.get(group_id)
                self._members[group_id] = 0 if group is None else len(group.members)
                self._states["Empty" if group is None else group.state.value] += 1
                offsets = coordinator.committed.offsets.get(group_id)
                if offsets:
                    self._offsets[group_id] = sorted(
                        (at, committed.offset) for at, committed in offsets.items()
                    )
                number += 1
                if number % GROUPS_AT_ONCE == 0:
                    yield

    @property
    def offset_count(self) -> int:
        """The number of committed offsets."""
        return sum(map(len, self._offsets.values()))

    async def look_up_ends(self) -> None:
        """Look up the high watermarks of all partitions with committed offsets, after `count`."""
        replicas, remote = self._broker.replicas, dict[BrokerId, list[TopicPartition]]()
        for at in sorted({at for offsets in self._offsets.values() for at, _ in offsets}):
            partition, driver = replicas.image.partition(at), replicas.drivers.get(at)
            if driver is not None and driver.partition.state.is_leader:
                self._ends[at] = driver.partition.state.high_watermark
            elif partition is not None and partition.leader_id != replicas.broker_id:
                remote.setdefault(partition.leader_id, []).append(at)
        brokers = replicas.image.brokers
        await asyncio.gather(
            *(
                self._ask(brokers[leader_id], asked)
                for leader_id, asked in remote.items()
                if leader_id in brokers and not brokers[leader_id].fenced
            )
        )

    async def _ask(self, leader: BrokerImage, asked: list[TopicPartition]) -> None:
        """Request high watermarks of a leader; without a response in time, they stay unknown."""
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for at in asked:
            partition = ListOffsetsPartition(partition_index=at.partition, timestamp=LATEST)
            topics.setdefault(at.topic, []).append(partition)
        request = ListOffsetsRequest(
            topics=[ListOffsetsTopic(name=name, partitions=each) for name, each in topics.items()]
        )
        replicas = self._broker.replicas
        client_id = f"broker-{replicas.broker_id}-metrics"
        connect = connecting(client_id, replicas.security, replicas.settings)
        with suppress(ConnectionLost, RequestTimedOut, UnsupportedVersion, TimeoutError):
            async with asyncio.timeout(LEADER_TIMEOUT_MS / 1000):
                connection = await connect(*self._addresses.of(leader))
                try:
                    response = await connection.send(request)
                finally:
                    await connection.close()
            for topic in response.topics:
                for end in topic.partitions:
                    if end.error_code == ErrorCode.NONE:
                        at = TopicPartition(topic.name, end.partition_index)
                        self._ends[at] = end.offset

    def families(self, *, with_partitions: bool) -> Iterator[Family]:
        """Yield the groups; `with_partitions`: also a sample for each partition of each."""
        members = [(_of(group_id), count) for group_id, count in self._members.items()]
        yield Family(f"{_GROUP}members", "gauge", "Members of a group.", members)
        states = [(labels({"state": state}), count) for state, count in self._states.items()]
        name = "kafka_server_group_coordinator_metrics_group_count"
        yield Family(name, "gauge", "Groups of this broker's coordinators.", states)
        sums = [*self._sums()]
        yield Family(
            f"{_GROUP}current_offset_sum", "gauge", "Sum of a group's offsets in a topic.",
            ((where, offsets) for where, offsets, _ in sums),
        )  # fmt: skip
        yield Family(
            f"{_GROUP}lag_sum", "gauge", "Records of a topic that a group has not consumed.",
            ((where, lag) for where, _, lag in sums if lag is not None),
        )  # fmt: skip
        if not with_partitions:
            return
        text = "The next offset that a group consumes."
        yield Family(f"{_GROUP}current_offset", "gauge", text, self._each(lag=False))
        text = "Records that a group has not consumed."
        yield Family(f"{_GROUP}lag", "gauge", text, self._each(lag=True))

    def _sums(self) -> Iterator[tuple[str, int, int | None]]:
        """Yield labels, the sum of offsets and of lags; None: a leader has not answered."""
        for group_id, offsets in self._offsets.items():
            sums: dict[str, tuple[int, int | None]] = {}
            for at, offset in offsets:
                total, lag = sums.get(at.topic, (0, 0))
                more = self._lag(at, offset)
                unknown = lag is None or more is None
                sums[at.topic] = total + offset, None if unknown else (lag or 0) + (more or 0)
            for topic, (total, lag) in sums.items():
                yield labels({"consumergroup": group_id, "topic": topic}), total, lag

    def _each(self, *, lag: bool) -> Iterator[Sample]:
        for group_id, offsets in self._offsets.items():
            for at, offset in offsets:
                value = self._lag(at, offset) if lag else offset
                if value is not None:
                    yield _of(group_id, at), value

    def _lag(self, at: TopicPartition, offset: int) -> int | None:
        """Return the lag; 0 for an offset beyond the end: the topic is new, or lost its tail."""
        end = self._ends.get(at)
        return None if end is None else max(end - offset, 0)


def _of(group_id: str, at: TopicPartition | None = None) -> str:
    where: dict[str, object] = {"consumergroup": group_id}
    if at is not None:
        where |= {"topic": at.topic, "partition": at.partition}
    return labels(where)
