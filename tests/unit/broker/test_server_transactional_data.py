"""Requests in a transaction, over a connection: Produce, Fetch, ListOffsets, markers, offsets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from quorumlog.wire.codec.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from quorumlog.wire.codec.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from quorumlog.wire.codec.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from quorumlog.wire.codec.records import Record, encode_batch
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.broker.requests import list_offset, produce
from tests.support.broker.transactional import PRODUCER, idempotent, transactional
from tests.support.groups.asking import asking, coordinator_is_ready, create, versions
from tests.support.groups.single_broker import SETTINGS, SingleBroker

READ_UNCOMMITTED, READ_COMMITTED = 0, 1


async def write(connection: KafkaConnection, records: bytes, version: int = 12) -> ErrorCode:
    answer = await produce(connection, records, transactional_id="shop", version=version)
    return ErrorCode(answer.error_code)


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


async def fetch_data(connection: KafkaConnection, version: int, isolation: int) -> PartitionData:
    topic = FetchTopic(
        topic="t", partitions=[FetchPartition(partition=0, partition_max_bytes=10_000)]
    )
    request = FetchRequest(
        max_bytes=10_000, session_epoch=-1, isolation_level=isolation, topics=[topic]
    )
    response = await connection.send(request, version=version)
    return response.responses[0].partitions[0]


async def latest(connection: KafkaConnection, isolation: int) -> int:
    return (await list_offset(connection, -1, isolation_level=isolation)).offset


async def described_producer(connection: KafkaConnection) -> ProducerState:
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
    response = await connection.send(request)
    (producer,) = response.topics[0].partitions[0].active_producers
    return producer


async def test_a_transaction_is_written_marked_read_and_described(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t", 1)
        written = await produce(connection, transactional(0), transactional_id="shop")
        assert (written.error_code, written.base_offset) == (ErrorCode.NONE, 0)
        (asked,) = broker.verifier.asked
        assert (*asked[:4], asked.adds) == ("shop", PRODUCER, 0, (TopicPartition("t", 0),), True)
        producer = await described_producer(connection)
        assert (producer.current_txn_start_offset, producer.coordinator_epoch) == (0, -1)
        for version in range(4, 13):
            found = await fetch_data(connection, version, READ_COMMITTED)
            assert (found.high_watermark, found.last_stable_offset) == (1, 0)
            assert (found.aborted_transactions, found.records) == ([], b"")
            open_too = await fetch_data(connection, version, 0)
            assert open_too.aborted_transactions is None
            assert len(open_too.records or b"") > 0
        assert [await latest(connection, isolation) for isolation in (0, READ_COMMITTED)] == [1, 0]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for version in versions(27):  # version 1 says nothing of the transaction's version
            marked = await mark(connection, "t", "none", version=version, epoch=version)
            assert marked == [ErrorCode.NONE, unknown]
        producer = await described_producer(connection)
        assert (producer.current_txn_start_offset, producer.coordinator_epoch) == (-1, 7)
        found = await fetch_data(connection, 12, READ_COMMITTED)
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


async def test_a_marker_of_version_2_ends_a_transaction_only_with_a_newer_epoch(
    tmp_path: Path,
) -> None:
    """A late marker must not end the next transaction (KIP-1228)."""
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t", 1)
        assert await write(connection, transactional(0)) is ErrorCode.NONE
        late = await mark(connection, "t", version=2, epoch=0)
        assert late == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert await latest(connection, READ_COMMITTED) == 0
        assert await mark(connection, "t", version=2, epoch=1) == [ErrorCode.NONE]
        assert await latest(connection, READ_COMMITTED) == 2


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
        assert (await described_producer(connection)).coordinator_epoch == 0


async def test_who_adds_the_partition_depends_on_the_version_and_all_need_an_id(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t", 1)
        broker.verifier.says = ErrorCode.TRANSACTION_ABORTABLE
        told = [await write(connection, transactional(0), one) for one in (10, 11, 12)]
        abortable = ErrorCode.TRANSACTION_ABORTABLE
        assert told == [ErrorCode.INVALID_TXN_STATE, abortable, abortable]
        assert [one.adds for one in broker.verifier.asked] == [False, False, True]
        nobodys = encode_batch([Record(0, 1, None, b"v")], is_transactional=True)
        for records in (transactional(0), nobodys):
            refused = await produce(connection, records)
            assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            assert refused.base_offset == -1
        taken = await produce(connection, idempotent(0), transactional_id="shop")
        assert (taken.error_code, taken.base_offset) == (ErrorCode.NONE, 0)


TXN_OFFSET_COMMIT, REQUIRE_STABLE_SINCE, GROUPS_SINCE = 28, 7, 8
FETCHES_BY_NAME = range(1, 10)  # later versions of OffsetFetch name topics by id


async def commit(
    connection: KafkaConnection,
    offset: int,
    *,
    version: int = 5,
    topics: dict[str, list[int]] | None = None,
    **changes: Any,
) -> list[int]:
    """Commit in a transaction; return the error codes."""
    asked = [
        TxnOffsetCommitRequestTopic(
            name=name,
            partitions=[
                TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
                for index in indexes
            ],
        )
        for name, indexes in (topics or {"t": [0]}).items()
    ]
    values = {"transactional_id": "tx", "group_id": "g", "producer_id": 7, "producer_epoch": 0}
    request = TxnOffsetCommitRequest(topics=asked, **{**values, **changes})
    answer = await connection.send(request, version=version)
    assert [topic.name for topic in answer.topics] == [topic.name for topic in asked]
    return [part.error_code for topic in answer.topics for part in topic.partitions]


async def end(
    connection: KafkaConnection, partition: int, *, commits: bool = True, **changes: int
) -> int:
    marker = WritableTxnMarker(
        producer_id=7,
        transaction_result=commits,
        topics=[WritableTxnMarkerTopic(name=OFFSETS_TOPIC, partition_indexes=[partition])],
        **changes,
    )
    version = 2 if marker.transaction_version else 1
    answer = await connection.send(WriteTxnMarkersRequest(markers=[marker]), version=version)
    return answer.markers[0].topics[0].partitions[0].error_code


async def fetch(
    connection: KafkaConnection, version: int, *, is_stable: bool, names_partitions: bool = True
) -> tuple[int, int]:
    """Return (error code, offset) of the first partition that is answered; (-1, -1): none is."""
    single = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    many = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    request = OffsetFetchRequest(
        group_id="g",
        topics=single if names_partitions else None,
        groups=[OffsetFetchRequestGroup(group_id="g", topics=many if names_partitions else None)],
        require_stable=is_stable,
    )
    response = await connection.send(request, version=version)
    topics = response.topics if version < GROUPS_SINCE else response.groups[0].topics
    if not topics:
        return -1, -1
    part = topics[0].partitions[0]
    return part.error_code, part.committed_offset


@asynccontextmanager
async def ready(directory: Path) -> AsyncIterator[tuple[SingleBroker, KafkaConnection, int]]:
    """A broker that has topic t and coordinates the group; in which partition."""
    async with asking(directory) as (broker, connection):
        await create(connection, "t")
        await coordinator_is_ready(connection)
        yield broker, connection, broker.groups.partition_of("g").partition


async def test_a_marker_of_version_2_ends_offsets_only_with_a_newer_epoch(tmp_path: Path) -> None:
    """As in other partitions (KIP-1228): a late marker must not end the next transaction."""
    async with ready(tmp_path) as (_, connection, where):
        assert await commit(connection, 5) == [0]
        late = await end(connection, where, transaction_version=2)
        assert late == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await fetch(connection, 9, is_stable=False) == (0, -1)
        assert await end(connection, where, producer_epoch=1, transaction_version=2) == 0
        assert await fetch(connection, 9, is_stable=True) == (0, 5)


async def test_an_offset_is_seen_with_the_marker_and_not_before(tmp_path: Path) -> None:
    async with ready(tmp_path) as (broker, connection, where):
        before = -1
        for offset, version in enumerate(versions(TXN_OFFSET_COMMIT), 1):
            assert await commit(connection, offset, version=version) == [0]
            assert broker.verifier.asked[-1].adds == (version == 5)
            for fetched in FETCHES_BY_NAME:
                assert await fetch(connection, fetched, is_stable=False) == (0, before)
                if fetched >= REQUIRE_STABLE_SINCE:
                    unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
                    assert await fetch(connection, fetched, is_stable=True) == (unstable, -1)
            assert await end(connection, where) == ErrorCode.NONE
            for fetched in FETCHES_BY_NAME:
                is_stable = fetched >= REQUIRE_STABLE_SINCE
                assert await fetch(connection, fetched, is_stable=is_stable) == (0, offset)
            before = offset


async def test_all_offsets_of_a_group_are_the_committed_ones(tmp_path: Path) -> None:
    async with ready(tmp_path) as (_, connection, where):
        await commit(connection, 5)
        all_of_them = {"is_stable": True, "names_partitions": False}
        assert await fetch(connection, 9, **all_of_them) == (-1, -1)
        await end(connection, where)
        assert await fetch(connection, 9, **all_of_them) == (0, 5)
        await commit(connection, 6)
        unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert await fetch(connection, 9, **all_of_them) == (unstable, -1)
        assert await end(connection, where, commits=False) == ErrorCode.NONE
        assert await fetch(connection, 9, **all_of_them) == (0, 5)


async def test_partitions_that_do_not_exist_are_refused_alone(tmp_path: Path) -> None:
    async with ready(tmp_path) as (broker, connection, _):
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        codes = await commit(connection, 5, topics={"t": [0, 9, -1], "nope": [0]})
        assert codes == [0, unknown, unknown, unknown]
        broker.verifier.asked.clear()
        assert await commit(connection, 5, topics={"nope": [0]}) == [unknown]
        assert await commit(connection, 5, topics={"t": []}) == []
        assert broker.verifier.asked == []


async def test_producers_of_an_older_epoch_and_old_coordinators_are_fenced(tmp_path: Path) -> None:
    async with ready(tmp_path) as (_, connection, where):
        assert await commit(connection, 5) == [0]
        assert await end(connection, where, producer_epoch=1, coordinator_epoch=4) == 0
        fenced = ErrorCode.INVALID_PRODUCER_EPOCH
        assert await commit(connection, 6) == [fenced]
        assert await end(connection, where, producer_epoch=0, coordinator_epoch=4) == fenced
        assert await commit(connection, 7, producer_epoch=1) == [0]
        old = await end(connection, where, producer_epoch=1, coordinator_epoch=3)
        assert old == ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert await fetch(connection, 9, is_stable=False) == (0, 5)


async def test_who_asks_wrongly_is_told_so(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t")
        assert await commit(connection, 1) == [ErrorCode.NOT_COORDINATOR]
        await coordinator_is_ready(connection)
        assert await commit(connection, 1, group_id="") == [ErrorCode.INVALID_GROUP_ID]
        early = await commit(connection, 1, generation_id=3, member_id="m")
        assert early == [ErrorCode.ILLEGAL_GENERATION]
        assert await commit(connection, -(2**63)) == [ErrorCode.NONE], "as OffsetCommit"
        codes = await commit(connection, 1, generation_id=3, member_id="m")
        assert codes == [ErrorCode.UNKNOWN_MEMBER_ID], "the group has a pending offset by now"


async def test_an_error_is_one_that_the_version_knows(tmp_path: Path) -> None:
    async with ready(tmp_path) as (broker, connection, _):
        for said, version, told in (
            (ErrorCode.TRANSACTION_ABORTABLE, 3, ErrorCode.INVALID_TXN_STATE),
            (ErrorCode.TRANSACTION_ABORTABLE, 4, ErrorCode.TRANSACTION_ABORTABLE),
            (ErrorCode.NETWORK_EXCEPTION, 1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
            (ErrorCode.NETWORK_EXCEPTION, 2, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
            (ErrorCode.PRODUCER_FENCED, 5, ErrorCode.INVALID_PRODUCER_EPOCH),
        ):
            broker.verifier.says = said
            assert await commit(connection, 1, version=version) == [told]


async def test_a_client_waits_for_the_transaction_coordinator_not_for_ever(tmp_path: Path) -> None:
    settings = replace(SETTINGS, offsets_commit_timeout_ms=1)
    async with asking(tmp_path, settings) as (broker, connection):
        await create(connection, "t")
        await coordinator_is_ready(connection)
        broker.verifier.says = None
        assert await commit(connection, 1) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
