"""DescribeLogDirs (35, KIP-113, KIP-827), AlterReplicaLogDirs (34, KIP-113).

No directory is cordoned (KIP-1066): every directory takes new replicas.
"""

from itertools import groupby

from quorumlog.broker.partitions.io.descriptions import LogDirectoryDescription, ReplicaSize
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from quorumlog.wire.codec.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


@answers(DescribeLogDirsRequest, 1, 5)
async def handle_describe(
    context: BrokerContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """Describe each log directory; requested replicas that are not here are left out."""
    wanted = None
    if request.topics is not None:
        wanted = {
            TopicPartition(topic.topic, index)
            for topic in request.topics
            for index in topic.partitions
        }
    described = await context.replicas.descriptions.log_directories(wanted)
    return DescribeLogDirsResponse(results=[*map(_result, described)])


def _result(directory: LogDirectoryDescription) -> DescribeLogDirsResult:
    by_topic = groupby(directory.replicas, key=lambda replica: replica.topic_partition.topic)
    return DescribeLogDirsResult(
        error_code=directory.error_code,
        log_dir=directory.path,
        topics=[
            DescribeLogDirsTopic(name=name, partitions=[*map(_partition, replicas)])
            for name, replicas in by_topic
        ],
        total_bytes=directory.total_bytes,
        usable_bytes=directory.usable_bytes,
    )


def _partition(replica: ReplicaSize) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(
        partition_index=replica.topic_partition.partition,
        partition_size=replica.size,
        offset_lag=replica.offset_lag,
        is_future_key=replica.is_future,
    )


@answers(AlterReplicaLogDirsRequest, 1, 2)
async def handle_alter(
    context: BrokerContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Begin or cancel each move; DescribeLogDirs shows the progress."""
    results: dict[str, AlterReplicaLogDirTopicResult] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            empty = AlterReplicaLogDirTopicResult(topic_name=topic.name)
            for index in topic.partitions:
                at = TopicPartition(topic.name, index)
                error_code = await context.replicas.moves.alter(at, directory.path)
                results.setdefault(topic.name, empty).partitions.append(
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error_code)
                )
    return AlterReplicaLogDirsResponse(results=[*results.values()])
