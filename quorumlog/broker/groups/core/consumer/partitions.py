"""Partitions as the consumer protocol names them: by the id of their topic."""

from typing import Final, NamedTuple

from quorumlog.wire.codec.identifiers import TopicId


class TopicIdPartition(NamedTuple):
    """One partition of a topic that has this id; a topic that is created anew has another."""

    topic_id: TopicId
    partition: int


Partitions = frozenset[TopicIdPartition]
NO_PARTITIONS: Final[Partitions] = frozenset()
