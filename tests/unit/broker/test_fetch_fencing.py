"""A consumer that knows another leader epoch is told so, and reads nothing (KIP-320)."""

from dataclasses import replace
from pathlib import Path

from quorumlog.metadata_quorum.image import ClusterDelta
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, TopicId, TopicPartition
from quorumlog.wire.codec.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.support.broker.one_broker import BATCH
from tests.support.broker.replica_calls import append_to
from tests.support.groups.asking import asking, create
from tests.support.groups.single_broker import TestController

AT = TopicPartition("orders", 0)


def raise_leader_epoch(controller: TestController, epoch: int) -> None:
    topic = controller.image.topics[AT.topic]
    newer = replace(topic.partitions[0], leader_epoch=Epoch(epoch), partition_epoch=Epoch(epoch))
    topics = {**controller.image.topics, AT.topic: replace(topic, partitions=(newer,))}
    controller.publish(ClusterDelta(partitions=frozenset({AT})), topics=topics)


async def test_a_consumer_of_another_leader_epoch_reads_nothing(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        topic_id = TopicId(await create(connection, AT.topic, partitions=1))
        raise_leader_epoch(broker.controller, 3)
        assert append_to(broker.replicas, AT, BATCH, acks=1, timeout_ms=0).done()
        for known_epoch, expected in (
            (-1, ErrorCode.NONE),
            (2, ErrorCode.FENCED_LEADER_EPOCH),
            (3, ErrorCode.NONE),
            (4, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ):
            for version in (9, 12, 17):
                wanted = FetchPartition(current_leader_epoch=known_epoch, partition_max_bytes=1000)
                topic = FetchTopic(topic=AT.topic, topic_id=topic_id, partitions=[wanted])
                request = FetchRequest(max_wait_ms=0, max_bytes=1000, topics=[topic])
                response = await connection.send(request, version=version)
                [data] = response.responses[0].partitions
                assert data.error_code == expected
                assert bool(data.records) == (expected is ErrorCode.NONE)
