"""The requests of a transaction that concern a log: Produce, Fetch, ListOffsets, markers."""

from pathlib import Path

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.describe_producers import (
    DescribeProducersRequest,
    ProducerState,
    TopicRequest,
)
from quorumlog.wire.codec.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from quorumlog.wire.codec.messages.find_coordinator import FindCoordinatorRequest
from quorumlog.wire.codec.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from quorumlog.wire.codec.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from quorumlog.wire.codec.records import Record, encode_batch
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.broker.transactional import PRODUCER, idempotent, transactional
from tests.support.groups.asking import asking, coordinator_is_ready, create, versions

READ_UNCOMMITTED, READ_COMMITTED = 0, 1


async def produce(
    connection: KafkaConnection, records: bytes, version: int, transactional_id: str | None = "shop"
) -> tuple[int, int]:
    data = TopicProduceData(
        name="t", partition_data=[PartitionProduceData(index=0, records=records)]
    )
    response = await connection.send(
        ProduceRequest(
            transactional_id=transactional_id, acks=-1, timeout_ms=1000, topic_data=[data]
        ),
        version=version,
    )
    slot = response.responses[0].partition_responses[0]
    return slot.error_code, slot.base_offset


async def mark(connection: KafkaConnection, *names: str, version: int, epoch: int) -> list[int]:
    marker = WritableTxnMarker(
        producer_id=PRODUCER,
        producer_epoch=epoch,
        transaction_result=False,
        coordinator_epoch=7,
        transaction_version=version,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=[0]) for name in names],
    )
    response = await connection.send(WriteTxnMarkersRequest(markers=[marker]), version=version)
    (answered,) = response.markers
    assert (answered.producer_id, [one.name for one in answered.topics]) == (PRODUCER, [*names])
    return [one.partitions[0].error_code for one in answered.topics]


async def fetch(connection: KafkaConnection, version: int, isolation: int) -> PartitionData:
    topic = FetchTopic(
        topic="t", partitions=[FetchPartition(partition=0, partition_max_bytes=10_000)]
    )
    request = FetchRequest(
        max_bytes=10_000, session_epoch=-1, isolation_level=isolation, topics=[topic]
    )
    response = await connection.send(request, version=version)
    return response.responses[0].partitions[0]


async def latest(connection: KafkaConnection, isolation: int) -> int:
    topic = ListOffsetsTopic(
        name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)]
    )
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=[topic])
    response = await connection.send(request, version=6)
    return response.topics[0].partitions[0].offset


async def described(connection: KafkaConnection) -> ProducerState:
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
    response = await connection.send(request)
    (producer,) = response.topics[0].partitions[0].active_producers
    return producer


async def test_a_transaction_is_written_marked_read_and_described(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t", 1)
        assert await produce(connection, transactional(0), 12) == (ErrorCode.NONE, 0)
        (asked,) = broker.verifier.asked
        assert asked[:5] == ("shop", PRODUCER, 0, (TopicPartition("t", 0),), True)
        producer = await described(connection)
        assert (producer.current_txn_start_offset, producer.coordinator_epoch) == (0, -1)
        for version in range(4, 13):
            found = await fetch(connection, version, READ_COMMITTED)
            assert (found.high_watermark, found.last_stable_offset) == (1, 0)
            assert (found.aborted_transactions, found.records) == ([], b"")
            open_too = await fetch(connection, version, 0)
            assert open_too.aborted_transactions is None
            assert len(open_too.records or b"") > 0
        assert [await latest(connection, isolation) for isolation in (0, READ_COMMITTED)] == [1, 0]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for version in versions(27):  # version 1 says nothing of the transaction's version
            marked = await mark(connection, "t", "none", version=version, epoch=version)
            assert marked == [ErrorCode.NONE, unknown]
        producer = await described(connection)
        assert (producer.current_txn_start_offset, producer.coordinator_epoch) == (-1, 7)
        found = await fetch(connection, 12, READ_COMMITTED)
        aborted = [(one.producer_id, one.first_offset) for one in found.aborted_transactions or ()]
        assert aborted == [(PRODUCER, 0)]
        assert found.last_stable_offset == 3
        assert await latest(connection, READ_COMMITTED) == 3


async def test_a_marker_of_no_producer_or_for_no_partition_is_refused(tmp_path: Path) -> None:
    """Kafka fails at the first; the offsets of groups are no exception to the last."""
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t", 1)
        await coordinator_is_ready(connection)
        refusals = {
            (-1, 0, "t", 0): ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            (5, -1, "t", 0): ErrorCode.INVALID_PRODUCER_EPOCH,
            (5, 0, "t", -1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            (5, 0, OFFSETS_TOPIC, -2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            (5, 0, OFFSETS_TOPIC, 3): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        markers = [
            WritableTxnMarker(
                producer_id=producer_id,
                producer_epoch=epoch,
                topics=[WritableTxnMarkerTopic(name=name, partition_indexes=[index])],
            )
            for producer_id, epoch, name, index in refusals
        ]
        response = await connection.send(WriteTxnMarkersRequest(markers=markers))
        codes = [one.topics[0].partitions[0].error_code for one in response.markers]
        assert codes == [*refusals.values()]
        assert await latest(connection, READ_UNCOMMITTED) == 0


async def test_a_marker_of_a_coordinator_that_is_not_yet_there_is_refused(tmp_path: Path) -> None:
    """Written, it would fence the true one."""
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t", 1)
        await connection.send(FindCoordinatorRequest(key_type=1, coordinator_keys=["shop"]))
        outcomes = {
            2**31 - 1: ErrorCode.UNKNOWN_LEADER_EPOCH,
            1: ErrorCode.UNKNOWN_LEADER_EPOCH,
            0: ErrorCode.NONE,
        }
        for coordinator_epoch, code in outcomes.items():
            where = WritableTxnMarkerTopic(name="t", partition_indexes=[0])
            marker = WritableTxnMarker(
                producer_id=PRODUCER, coordinator_epoch=coordinator_epoch, topics=[where]
            )
            response = await connection.send(WriteTxnMarkersRequest(markers=[marker]))
            assert response.markers[0].topics[0].partitions[0].error_code == code
        assert (await described(connection)).coordinator_epoch == 0


async def test_who_adds_the_partition_depends_on_the_version(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t", 1)
        broker.verifier.says = ErrorCode.TRANSACTION_ABORTABLE
        told = [(await produce(connection, transactional(0), one))[0] for one in (10, 11, 12)]
        abortable = ErrorCode.TRANSACTION_ABORTABLE
        assert told == [ErrorCode.INVALID_TXN_STATE, abortable, abortable]
        assert [one.adds for one in broker.verifier.asked] == [False, False, True]


async def test_a_transactional_batch_needs_an_id_and_an_idempotent_one_does_not(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t", 1)
        refused = await produce(connection, transactional(0), 12, transactional_id=None)
        assert refused == (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)
        nobodys = encode_batch([Record(0, 1, None, b"v")], is_transactional=True)
        refused = await produce(connection, nobodys, 12, transactional_id=None)
        assert refused == (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)
        assert await produce(connection, idempotent(0), 12) == (ErrorCode.NONE, 0)
