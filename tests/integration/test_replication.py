"""Three brokers' data paths in one process, with real logs and sockets; the controller is ours.

What is produced with acks=all survives: a follower that dies, a leader that dies, a leader that
was cut off and wrote what nobody else has.
"""

import asyncio
from dataclasses import replace
from pathlib import Path

from quorumlog.metadata_quorum.image import ClusterDelta
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, Epoch
from quorumlog.wire.codec.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from quorumlog.wire.codec.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from quorumlog.wire.codec.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from quorumlog.wire.codec.records import decode_batches
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.cluster.replication_cluster import (
    AT,
    BROKERS,
    TOPIC_ID,
    Cluster,
    batch,
    three_brokers,
    until,
)


async def test_acks_all_is_on_every_replica(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        for number in range(20):
            produced = await cluster.produce(BROKERS[0], b"%d" % number)
            assert produced == (ErrorCode.NONE, number, -1, 0, None, ())
            for node in cluster.nodes.values():
                assert node.offsets()[1] == number + 1
        await until(lambda: all(node.offsets() == (20, 20) for node in cluster.nodes.values()))
        logs = [node.records() for node in cluster.nodes.values()]
        assert logs == [[b"%d" % number for number in range(20)]] * 3


async def test_a_dead_follower_leaves_the_isr_and_comes_back(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.produce(BROKERS[0], b"a")
        await cluster.stop_node(BROKERS[2])
        produced = await cluster.produce(BROKERS[0], b"b")  # waits until the ISR has shrunk
        assert produced.error_code is ErrorCode.NONE
        assert cluster.partition.isr == BROKERS[:2]
        await cluster.start_node(BROKERS[2], broker_epoch=2)
        await until(lambda: cluster.partition.isr == BROKERS)
        assert dict(cluster.asked[-1].new_isr)[BROKERS[2]] == 2
        assert cluster.nodes[BROKERS[2]].records() == [b"a", b"b"]


async def test_a_deposed_leader_gives_up_what_nobody_else_has(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.produce(BROKERS[0], b"a")
        cluster.deaf.add(BROKERS[0])
        cluster.elect(2, (2, 3))
        lost = [cluster.produce(BROKERS[0], b"lost %d" % number) for number in range(3)]
        waiting = [asyncio.ensure_future(one) for one in lost]
        kept = await cluster.produce(BROKERS[1], b"kept")
        assert kept.error_code is ErrorCode.NONE
        assert not any(one.done() for one in waiting)
        assert cluster.nodes[BROKERS[0]].offsets() == (1, 4)
        cluster.deaf.clear()
        cluster.publish(ClusterDelta(partitions=frozenset({AT})))
        refused = {(await one).error_code for one in waiting}
        assert refused == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
        await until(lambda: cluster.partition.isr in {BROKERS, (2, 3, 1)})
        assert [node.records() for node in cluster.nodes.values()] == [[b"a", b"kept"]] * 3


async def test_too_small_an_isr_refuses_and_a_timeout_says_so(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.stop_node(BROKERS[1])
        await cluster.stop_node(BROKERS[2])
        timed_out = await cluster.produce(BROKERS[0], b"a", timeout_ms=30)
        assert timed_out.error_code is ErrorCode.REQUEST_TIMED_OUT
        await until(lambda: cluster.partition.isr == BROKERS[:1])
        refused = await cluster.produce(BROKERS[0], b"b")
        assert refused.error_code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await cluster.produce(BROKERS[0], b"c", acks=1)).base_offset == 1
        assert cluster.nodes[BROKERS[0]].offsets() == (0, 2)  # strict min ISR


async def test_deletion_answers_who_waits_and_removes_the_logs(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.produce(BROKERS[0], b"a")  # a log has no files before its first record
        await cluster.stop_node(BROKERS[2])
        waiting = asyncio.ensure_future(cluster.produce(BROKERS[0], b"b"))
        await asyncio.sleep(0)
        cluster.set_partition(None)
        assert (await waiting).error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not (tmp_path / "1" / "orders-0").exists()
        assert (tmp_path / "3" / "orders-0").exists()
        await cluster.start_node(BROKERS[2], broker_epoch=2)  # it was down: now a stray
        assert [path.name[:9] for path in (tmp_path / "3").glob("*-stray")] == ["orders-0."]


async def test_a_cluster_that_stops_cleanly_starts_with_all_it_had(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.produce(BROKERS[0], b"a")
        for who in BROKERS:
            await cluster.stop_node(who)
        no_leader = replace(cluster.partition, leader_id=NO_LEADER, leader_epoch=Epoch(1))
        cluster.set_partition(replace(no_leader, partition_epoch=Epoch(9)))
        for who in BROKERS:
            await cluster.start_node(who, broker_epoch=2)
            assert cluster.nodes[who].replicas.clean_shutdown_epoch == 1
        cluster.elect(3, (1, 2, 3))
        assert (await cluster.produce(BROKERS[2], b"b")).base_offset == 1


async def connect(cluster: Cluster) -> KafkaConnection:
    return await KafkaConnection.open("127.0.0.1", cluster.nodes[BROKERS[0]].port, client_id="test")


async def send(client: KafkaConnection, records: bytes, acks: int = -1) -> tuple[int, int]:
    data = PartitionProduceData(index=0, records=records)
    topic = TopicProduceData(name=AT.topic, topic_id=TOPIC_ID, partition_data=[data])
    request = ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[topic])
    answer = (await client.send(request)).responses[0].partition_responses[0]
    return answer.error_code, answer.base_offset


async def read(client: KafkaConnection, offset: int, max_wait_ms: int = 0) -> tuple[int, bytes]:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1000)
    topic = FetchTopic(topic=AT.topic, topic_id=TOPIC_ID, partitions=[partition])
    request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=[topic])
    answer = (await client.send(request)).responses[0].partitions[0]
    assert isinstance(answer.records, bytes | memoryview)
    return answer.error_code, bytes(answer.records)


async def offset_for(client: KafkaConnection, timestamp: int) -> tuple[int, int, int]:
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topic = ListOffsetsTopic(name=AT.topic, partitions=[partition])
    answer = (await client.send(ListOffsetsRequest(topics=[topic]))).topics[0].partitions[0]
    return answer.error_code, answer.offset, answer.timestamp


async def test_a_producer_through_the_socket(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        client = await connect(cluster)
        first = batch(b"a", b"b", producer_id=7, producer_epoch=0, base_sequence=0)
        assert await send(client, first) == (ErrorCode.NONE, 0)
        assert await send(client, first) == (ErrorCode.NONE, 0)  # a duplicate
        gap = batch(b"z", producer_id=7, producer_epoch=0, base_sequence=9)
        assert (await send(client, gap))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        torn = bytearray(batch(b"c"))
        torn[-1] ^= 1
        assert (await send(client, bytes(torn)))[0] == ErrorCode.CORRUPT_MESSAGE
        assert (await send(client, batch(b"c"), acks=2))[0] == ErrorCode.INVALID_REQUIRED_ACKS
        await client.close()


async def test_a_producer_without_answers_is_told_by_the_end_of_its_connection(
    tmp_path: Path,
) -> None:
    async with three_brokers(tmp_path) as cluster:
        client = await connect(cluster)
        topic = TopicProduceData(
            name=AT.topic,
            topic_id=TOPIC_ID,
            partition_data=[PartitionProduceData(index=0, records=batch(b"a"))],
        )
        request = ProduceRequest(acks=0, timeout_ms=5000, topic_data=[topic])
        client.send_no_reply(request)
        assert (await read(client, 0, 5000))[1]
        cluster.elect(2, (2, 3))
        client.send_no_reply(request)
        async with asyncio.timeout(10):
            await client.closed
        assert cluster.nodes[BROKERS[1]].records() == [b"a"]
        await client.close()


async def test_a_fetch_that_asks_for_more_than_fits_is_answered_with_what_fits(
    tmp_path: Path,
) -> None:
    async with three_brokers(tmp_path) as cluster:
        client = await connect(cluster)
        for _ in range(3):
            await cluster.produce(BROKERS[0], b"x" * 100)
        size = len(batch(b"x" * 100))
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topic = FetchTopic(topic=AT.topic, topic_id=TOPIC_ID, partitions=[partition])
        for max_bytes, expected in ((2 * size, 2 * size), (0, size), (-1, size)):
            request = FetchRequest(
                max_wait_ms=2**31 - 1, min_bytes=2**31 - 1, max_bytes=max_bytes, topics=[topic]
            )
            async with asyncio.timeout(10):
                [answer] = (await client.send(request)).responses[0].partitions
            assert isinstance(answer.records, bytes | memoryview)
            assert len(answer.records) == expected
        await client.close()


async def test_a_consumer_through_the_socket(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        client = await connect(cluster)
        await cluster.produce(BROKERS[0], b"a", b"b")
        _, records = await read(client, 0)
        values = [record.value for _, all_of in decode_batches(records) for record in all_of]
        assert values == [b"a", b"b"]
        assert await read(client, 99) == (ErrorCode.OFFSET_OUT_OF_RANGE, b"")
        assert await read(client, 2, 20) == (ErrorCode.NONE, b"")  # a long poll that ends empty
        poll = asyncio.ensure_future(read(client, 2, 5000))
        await asyncio.sleep(0.01)
        await cluster.produce(BROKERS[0], b"c")
        assert b"c" in (await poll)[1]
        await client.close()


async def test_offsets_through_the_socket(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        client = await connect(cluster)
        await cluster.produce(BROKERS[0], b"a", b"b")
        assert await offset_for(client, -1) == (ErrorCode.NONE, 2, -1)
        assert await offset_for(client, -2) == (ErrorCode.NONE, 0, -1)
        assert await offset_for(client, -3) == (ErrorCode.NONE, 1, 1001)
        assert await offset_for(client, 1001) == (ErrorCode.NONE, 1, 1001)
        assert await offset_for(client, 5000) == (ErrorCode.NONE, -1, -1)
        asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=0, leader_epoch=0)
        topic = OffsetForLeaderTopic(topic=AT.topic, partitions=[asked])
        end = await client.send(OffsetForLeaderEpochRequest(topics=[topic]))
        assert end.topics[0].partitions[0].end_offset == 2
        await client.close()
