"""AlterReplicaLogDirs (API key 34): moves local replicas to other log directories (KIP-113)."""

from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(AlterReplicaLogDirsRequest, 1, 2)
async def handle(
    context: BrokerContext, header: RequestHeader, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Begin or cancel each move; DescribeLogDirs shows the progress."""
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                at = TopicPartition(topic.name, index)
                error_code = await context.replicas.moves.alter(at, directory.path)
                results.setdefault(topic.name, []).append(
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error_code)
                )
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
            for name, partitions in results.items()
        ]
    )
