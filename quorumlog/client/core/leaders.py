"""The leader of a partition, as far as the client knows."""

from typing import NamedTuple, Protocol

from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicPartition


class Leader(NamedTuple):
    """The broker that a partition's requests go to, and the epoch that it leads in.

    The epoch counts within the topic of this id; zeros: the cluster has no topic ids.
    """

    broker_id: int
    leader_epoch: int
    topic_id: bytes = ZERO_TOPIC_ID


class Leaders(Protocol):
    """What is known of the cluster while a producer's batches are drained."""

    def leader(self, topic_partition: TopicPartition) -> Leader | None:
        """Return the leader; None while it is unknown or unreachable: then it is looked for."""

    def has_room(self, broker_id: int) -> bool:
        """Tell whether one more request may be sent to this broker now."""
