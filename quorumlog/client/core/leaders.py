"""The leader of a partition, as far as the client knows."""

from typing import NamedTuple, Protocol

from quorumlog.wire.codec.identifiers import TopicPartition


class Leader(NamedTuple):
    """The broker that a partition's requests go to, and the epoch that it leads in."""

    broker_id: int
    leader_epoch: int


class Leaders(Protocol):
    """What is known of the cluster while a producer's batches are drained."""

    def leader(self, topic_partition: TopicPartition) -> Leader | None:
        """Return the leader; None while it is unknown or unreachable: then it is looked for."""

    def has_room(self, broker_id: int) -> bool:
        """Tell whether one more request may be sent to this broker now."""
