"""The leader of a partition in the client's metadata."""

from typing import NamedTuple, Protocol

from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicPartition


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
