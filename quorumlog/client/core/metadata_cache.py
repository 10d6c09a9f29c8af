"""A client's metadata: brokers, topics and leaders; the newest leader epoch wins.

A response with an older epoch comes from a broker that lags behind, and changes nothing (KIP-320).
A changed topic id means a re-created topic of the same name, whose epochs start over (KIP-516).
Wrong metadata does no harm: the broker refuses the request.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from quorumlog.addresses import address_text
from quorumlog.client.settings import Address
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicPartition
from quorumlog.wire.codec.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


class Leader(NamedTuple):
    """A partition's leader and its leader epoch.

    Epochs compare only within one topic id; zeros: the cluster has no topic ids.
    """

    broker_id: int
    leader_epoch: int
    topic_id: bytes = ZERO_TOPIC_ID


class Leaders(Protocol):
    """The leaders that `Accumulator.drain` may send to."""

    def leader(self, topic_partition: TopicPartition) -> Leader | None:
        """Return the leader; None while it is unknown or unreachable."""

    def has_room(self, broker_id: int) -> bool:
        """Return whether one more request may be sent to this broker now."""


NO_LEADER: Final = -1


class Node(NamedTuple):
    """A broker and its address."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> Address:
        """Host and port."""
        return self.host, self.port

    def __str__(self) -> str:
        return address_text(self.host, self.port)


@dataclass(slots=True, kw_only=True)
class PartitionView:
    """One partition; `leader_id` is -1 while it has no leader.

    `elr`, `last_known_elr` (KIP-966): None if not requested, or not supported by the broker.
    """

    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    elr: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None


@dataclass(slots=True, kw_only=True)
class TopicView:
    """One topic. `error_code`: why `partitions` is empty, or the error of the last response."""

    name: str
    topic_id: bytes = ZERO_TOPIC_ID
    error_code: int = ErrorCode.NONE
    is_internal: bool = False
    partitions: dict[int, PartitionView] = field(default_factory=dict)


class MetadataCache:
    """The latest metadata.

    Invariants (by construction, checked by tests):
      1. A partition's leader epoch never decreases while its topic id stays the same.
      2. `topics` has exactly the topics of the responses.
    """

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.topics: dict[str, TopicView] = {}
        self.names: dict[bytes, str] = {}  # by topic id
        self.listed: frozenset[str] | None = None
        """The cluster's topics but for internal ones, since the last list that changed them."""
        self.rack_changes = 0
        """Counts changes of the racks of a partition's replicas, without broker failures."""
        self.cluster_id: str | None = None
        self.controller_id = -1

    def update(self, response: MetadataResponse) -> bool:
        """Apply a response. True if it has a new leader, leader epoch or partition."""
        if response.brokers:
            nodes, known = response.brokers, self.nodes
            self.nodes = {n.node_id: Node(n.node_id, n.host, n.port, n.rack) for n in nodes}
            same = known.keys() & self.nodes.keys()
            self.rack_changes += any(known[n].rack != self.nodes[n].rack for n in same)
        self.cluster_id = response.cluster_id or self.cluster_id
        self.controller_id = response.controller_id
        changed = False
        for topic in response.topics:
            if topic.name:
                changed = self._update_topic(topic.name, topic) or changed
        return changed

    def complete(self, response: MetadataResponse, needed: Collection[str]) -> None:
        """Prepare a response with all topics for `update`: drop the topics that it lacks.

        A needed topic that it lacks gets the error that a response to a request by name has.
        """
        names = {topic.name for topic in response.topics}
        response.topics += [
            MetadataResponseTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            for name in sorted({*needed} - names)
        ]
        for name in self.topics.keys() - names - {*needed}:
            self.names.pop(self.topics.pop(name).topic_id, None)
        listed = frozenset(
            topic.name or ""
            for topic in response.topics
            if topic.error_code == ErrorCode.NONE and not topic.is_internal
        )
        if listed != self.listed:
            self.listed = listed

    def _update_topic(self, name: str, answer: MetadataResponseTopic) -> bool:
        old = self.topics.get(name)
        if answer.error_code != ErrorCode.NONE and old is not None and old.partitions:
            old.error_code = answer.error_code  # a lagging broker must not erase leaders
            return False
        topic_id = answer.topic_id
        if topic_id == ZERO_TOPIC_ID and old is not None:
            topic_id = old.topic_id  # the broker's version has no topic ids
        is_same = old is not None and old.topic_id in {topic_id, ZERO_TOPIC_ID}
        known = old.partitions if old is not None and is_same else {}
        topic = TopicView(
            name=name,
            topic_id=topic_id,
            error_code=answer.error_code,
            is_internal=answer.is_internal,
        )
        changed = False
        for partition in sorted(answer.partitions, key=lambda one: one.partition_index):
            before = known.get(partition.partition_index)
            view = _newer(before, partition)
            topic.partitions[partition.partition_index] = view
            changed = changed or before is None or _leader(view) != _leader(before)
            if before is not None and before.replicas != view.replicas:
                self.rack_changes += racks_of(before.replicas, self.nodes) != racks_of(
                    view.replicas, self.nodes
                )
        if old is not None:
            self.names.pop(old.topic_id, None)
        self.topics[name] = topic
        if topic.topic_id != ZERO_TOPIC_ID:
            self.names[topic.topic_id] = name
        return changed

    def hint(self, topic_partition: TopicPartition, leader: Leader, nodes: Iterable[Node]) -> bool:
        """Apply the leader that an error response carries (KIP-951). True if it is newer.

        A leader of another topic id is ignored: its epochs do not compare.
        """
        topic = self.topics.get(topic_partition.topic)
        if topic is None or topic.topic_id != leader.topic_id:
            return False
        view = topic.partitions.get(topic_partition.partition)
        if view is None or leader.broker_id < 0 or leader.leader_epoch <= view.leader_epoch:
            return False
        self.nodes.update({node.broker_id: node for node in nodes})
        if leader.broker_id not in self.nodes:
            return False
        view.leader_id, view.leader_epoch = leader.broker_id, leader.leader_epoch
        return True

    def leader(self, topic_partition: TopicPartition) -> Leader | None:
        """Return the latest leader; None while there is none, or no address for it."""
        topic = self.topics.get(topic_partition.topic)
        view = topic.partitions.get(topic_partition.partition) if topic else None
        if topic is None or view is None or view.leader_id not in self.nodes:
            return None
        return Leader(view.leader_id, view.leader_epoch, topic.topic_id)

    def topic_id(self, name: str) -> bytes:
        """Return the topic's id; zeros if the cache does not have it."""
        topic = self.topics.get(name)
        return topic.topic_id if topic else ZERO_TOPIC_ID

    def partition_counts(self, names: Iterable[str]) -> Mapping[str, int]:
        """Return the partition count of each topic of `names` that is in the cache."""
        views = {name: self.topics[name] for name in names if name in self.topics}
        return {name: len(view.partitions) for name, view in views.items() if view.partitions}


def racks_of(replicas: Iterable[int], nodes: Mapping[int, Node]) -> frozenset[str]:
    """Return the racks of brokers; an unknown broker has none."""
    racks = [nodes[broker_id].rack for broker_id in replicas if broker_id in nodes]
    return frozenset(rack for rack in racks if rack)


def _leader(view: PartitionView) -> Leader:
    return Leader(view.leader_id, view.leader_epoch)


def _newer(old: PartitionView | None, answer: MetadataResponsePartition) -> PartitionView:
    if old is not None and answer.leader_epoch < old.leader_epoch and answer.leader_epoch >= 0:
        return old
    return PartitionView(
        leader_id=answer.leader_id,
        leader_epoch=answer.leader_epoch,
        replicas=tuple(answer.replica_nodes),
        isr=tuple(answer.isr_nodes),
        offline=tuple(answer.offline_replicas),
    )
