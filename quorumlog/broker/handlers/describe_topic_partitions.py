"""DescribeTopicPartitions (75): partitions with their ELRs, page by page. Source: KIP-966.

A page lists the topics in the order of their names and ends with a cursor, which the next request
returns. The `last_known_elr` is empty: elections do not use it here.
"""

from heapq import nsmallest

from quorumlog.broker.responses.cluster_view import ALL_OF_TOPIC, hide_leaders, offline_replicas
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.image import ClusterImage, TopicImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    RequestCursor,
    ResponseCursor,
)
from quorumlog.wire.codec.topic_names import INTERNAL_TOPICS, is_topic_name


@answers(DescribeTopicPartitionsRequest, 0, 0)
def handle(
    context: BrokerContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Return one page: at most `max.request.partition.size.limit` partitions, at least one.

    Without topics it lists all of them. The cursor's topic must be among the requested topics, and
    its partition must not be negative: otherwise INVALID_REQUEST.
    """
    asked = {topic.name for topic in request.topics}
    first_name, first_index = _position(request.cursor)
    is_astray = request.cursor is not None and asked and first_name not in asked
    if first_index < 0 or is_astray:
        return _refused(asked)
    limit = min(request.response_partition_limit, context.settings.max_request_partition_size_limit)
    page = _Page(context.image, limit=max(limit, 1), names_unknown=bool(asked))
    left = (name for name in asked or context.image.topics if name >= first_name)
    # Every topic takes at least one place (but the first, if the cursor is beyond its end). One
    # more topic is the start of the next page.
    for name in sorted(left) if asked else nsmallest(page.room + 2, left):
        page.add(name, first_index if name == first_name else 0)
        if page.next_cursor is not None:
            break
    hide_leaders(
        context,
        (partition for topic in page.topics for partition in topic.partitions),
        ErrorCode.LISTENER_NOT_FOUND,
    )
    return DescribeTopicPartitionsResponse(topics=page.topics, next_cursor=page.next_cursor)


def _position(cursor: RequestCursor | None) -> tuple[str, int]:
    return ("", 0) if cursor is None else (cursor.topic_name, cursor.partition_index)


def _refused(asked: set[str]) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=name)
            for name in sorted(asked)
        ]
    )


class _Page:
    """One response; full when there is no `room`. `next_cursor`: the start of the next page."""

    def __init__(self, image: ClusterImage, *, limit: int, names_unknown: bool) -> None:
        self.topics: list[DescribeTopicPartitionsResponseTopic] = []
        self.next_cursor: ResponseCursor | None = None
        self.room = limit
        self._image, self._names_unknown = image, names_unknown

    def add(self, name: str, first_index: int) -> None:
        """Add the topic's partitions from `first_index` on, while there is room."""
        if self.room <= 0:
            self.next_cursor = ResponseCursor(topic_name=name, partition_index=0)
            return
        topic = self._image.topics.get(name)
        if topic is None:
            if self._names_unknown:
                self.topics.append(_unknown(name))
            return
        end = min(first_index + self.room, len(topic.partitions))
        self.topics.append(_topic(self._image, topic, range(first_index, end)))
        if end < len(topic.partitions):
            self.next_cursor = ResponseCursor(topic_name=name, partition_index=end)
        self.room -= max(end - first_index, 0)


def _unknown(name: str) -> DescribeTopicPartitionsResponseTopic:
    is_legal = is_topic_name(name)
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if is_legal
        else ErrorCode.INVALID_TOPIC_EXCEPTION,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=ALL_OF_TOPIC,
    )


def _topic(
    image: ClusterImage, topic: TopicImage, indexes: range
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[_partition(image, topic, index) for index in indexes],
        topic_authorized_operations=ALL_OF_TOPIC,
    )


def _partition(
    image: ClusterImage, topic: TopicImage, index: int
) -> DescribeTopicPartitionsResponsePartition:
    partition = topic.partitions[index]
    return DescribeTopicPartitionsResponsePartition(
        partition_index=index,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        replica_nodes=[*partition.replicas],
        isr_nodes=[*partition.isr],
        # Empty, never null: Apache Kafka's Java client fails at null.
        eligible_leader_replicas=[*partition.elr],
        last_known_elr=[*partition.last_known_elr],
        offline_replicas=[*offline_replicas(image, partition)],
    )
