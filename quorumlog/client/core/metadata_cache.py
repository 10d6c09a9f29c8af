"""What a client knows of brokers, topics and leaders, and which of two answers it believes.

Leader epochs decide: an answer with an older epoch comes from a broker that lags behind, and
changes nothing (KIP-320). A topic id that changed is another topic of the same name: its epochs
start over (KIP-516). A view that is wrong does no harm: the broker refuses the request.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quorumlog.addresses import address_text
from quorumlog.client.core.leaders import Leader
from quorumlog.client.settings import Address
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicPartition
from quorumlog.wire.codec.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

NO_LEADER: Final = -1


class Node(NamedTuple):
    """A broker and where it listens."""

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
    """One partition; `leader_id` is -1 while there is none.

    `elr`, `last_known_elr` (KIP-966): None if the broker was not asked or does not tell.
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
    """One topic. `error_code` says why there are no partitions, if there are none."""

    name: str
    topic_id: bytes = ZERO_TOPIC_ID
    error_code: int = ErrorCode.NONE
    is_internal: bool = False
    partitions: dict[int, PartitionView] = field(default_factory=dict)


class MetadataCache:
    """The latest view.

    Invariants (by construction, checked by tests):
      1. A partition's leader epoch never decreases while its topic id stays the same.
      2. `topics` holds what was asked for and answered, no more.
    """

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.topics: dict[str, TopicView] = {}
        self.names: dict[bytes, str] = {}  # by topic id
        self.cluster_id: str | None = None
        self.controller_id = -1

    def update(self, response: MetadataResponse) -> bool:
        """Handle an answer. True if it brought another leader, or a topic that was not known."""
        if response.brokers:
            nodes = response.brokers
            self.nodes = {n.node_id: Node(n.node_id, n.host, n.port, n.rack) for n in nodes}
        self.cluster_id = response.cluster_id or self.cluster_id
        self.controller_id = response.controller_id
        changed = False
        for topic in response.topics:
            if topic.name:
                changed = self._update_topic(topic.name, topic) or changed
        return changed

    def _update_topic(self, name: str, answer: MetadataResponseTopic) -> bool:
        old = self.topics.get(name)
        if answer.error_code != ErrorCode.NONE and old is not None and old.partitions:
            old.error_code = answer.error_code  # a broker that lags behind must not erase leaders
            return False
        topic_id = answer.topic_id
        if topic_id == ZERO_TOPIC_ID and old is not None:
            topic_id = old.topic_id  # from a broker that is older than topic ids
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
        if old is not None and not is_same:
            self.names.pop(old.topic_id, None)
        self.topics[name] = topic
        if topic.topic_id != ZERO_TOPIC_ID:
            self.names[topic.topic_id] = name
        return changed

    def hint(self, topic_partition: TopicPartition, leader: Leader, nodes: Iterable[Node]) -> bool:
        """Handle the leader that a broker named in an error (KIP-951). True if it is a new one.

        An epoch of another topic of this name says nothing about this one.
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
        """Return the leader as far as we know; None while there is none, or no address."""
        topic = self.topics.get(topic_partition.topic)
        view = topic.partitions.get(topic_partition.partition) if topic else None
        if topic is None or view is None or view.leader_id not in self.nodes:
            return None
        return Leader(view.leader_id, view.leader_epoch, topic.topic_id)

    def topic_id(self, name: str) -> bytes:
        """Return the topic's id; zeros if the cluster has none or the topic is not known."""
        topic = self.topics.get(name)
        return topic.topic_id if topic else ZERO_TOPIC_ID

    def partition_counts(self, names: Iterable[str]) -> Mapping[str, int]:
        """How many partitions each known topic of `names` has."""
        views = {name: self.topics[name] for name in names if name in self.topics}
        return {name: len(view.partitions) for name, view in views.items() if view.partitions}


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
