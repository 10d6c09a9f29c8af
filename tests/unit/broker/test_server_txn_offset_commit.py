"""TxnOffsetCommit, WriteTxnMarkers and OffsetFetch over a connection, in every version."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorumlog.wire.codec.error_codes import ErrorCode
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
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.groups.asking import asking, coordinator_is_ready, create, versions
from tests.support.groups.single_broker import SETTINGS

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
    values: dict[str, Any] = {
        "transactional_id": "tx",
        "group_id": "g",
        "producer_id": 7,
        "producer_epoch": 0,
    }
    request = TxnOffsetCommitRequest(**{**values, **changes})
    request.topics = [
        TxnOffsetCommitRequestTopic(
            name=name,
            partitions=[
                TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
                for index in indexes
            ],
        )
        for name, indexes in (topics or {"t": [0]}).items()
    ]
    answer = await connection.send(request, version=version)
    assert [topic.name for topic in answer.topics] == [topic.name for topic in request.topics]
    return [part.error_code for topic in answer.topics for part in topic.partitions]


async def end(
    connection: KafkaConnection,
    partition: int,
    *,
    commits: bool = True,
    producer_epoch: int = 0,
    coordinator_epoch: int = 0,
    transaction_version: int = 0,
) -> int:
    marker = WritableTxnMarker(
        producer_id=7,
        producer_epoch=producer_epoch,
        transaction_result=commits,
        coordinator_epoch=coordinator_epoch,
        transaction_version=transaction_version,
        topics=[WritableTxnMarkerTopic(name=OFFSETS_TOPIC, partition_indexes=[partition])],
    )
    version = 2 if transaction_version else 1
    answer = await connection.send(WriteTxnMarkersRequest(markers=[marker]), version=version)
    [result] = answer.markers
    return result.topics[0].partitions[0].error_code


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


async def test_a_marker_of_version_2_ends_offsets_only_with_a_newer_epoch(tmp_path: Path) -> None:
    """As in other partitions (KIP-1228): a late marker must not end the next transaction."""
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t")
        await coordinator_is_ready(connection)
        where = broker.groups.partition_of("g").partition
        assert await commit(connection, 5) == [0]
        late = await end(connection, where, transaction_version=2)
        assert late == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await fetch(connection, 9, is_stable=False) == (0, -1)
        assert await end(connection, where, producer_epoch=1, transaction_version=2) == 0
        assert await fetch(connection, 9, is_stable=True) == (0, 5)


async def test_an_offset_is_seen_with_the_marker_and_not_before(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t")
        await coordinator_is_ready(connection)
        where = broker.groups.partition_of("g").partition
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


async def test_all_offsets_of_a_group_are_the_committed_ones_unstable_or_not(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t")
        await coordinator_is_ready(connection)
        where = broker.groups.partition_of("g").partition
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
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t")
        await coordinator_is_ready(connection)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        codes = await commit(connection, 5, topics={"t": [0, 9, -1], "nope": [0]})
        assert codes == [0, unknown, unknown, unknown]
        broker.verifier.asked.clear()
        assert await commit(connection, 5, topics={"nope": [0]}) == [unknown]
        assert await commit(connection, 5, topics={"t": []}) == []
        assert broker.verifier.asked == []


async def test_producers_of_an_older_epoch_and_old_coordinators_are_fenced(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t")
        await coordinator_is_ready(connection)
        where = broker.groups.partition_of("g").partition
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
        wrong: list[tuple[dict[str, Any], ErrorCode]] = [
            ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
            ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
            ({"producer_id": -1}, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
            ({"producer_id": -(2**63)}, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
            ({"producer_epoch": -(2**15)}, ErrorCode.INVALID_PRODUCER_EPOCH),
            ({"generation_id": 3, "member_id": "m"}, ErrorCode.ILLEGAL_GENERATION),
        ]
        for changes, expected in wrong:
            assert await commit(connection, 1, **changes) == [expected], changes
        assert await commit(connection, -(2**63)) == [ErrorCode.NONE], "as OffsetCommit"
        codes = await commit(connection, 1, generation_id=3, member_id="m")
        assert codes == [ErrorCode.UNKNOWN_MEMBER_ID], "the group has a pending offset by now"


@pytest.mark.parametrize(
    ("said", "version", "told"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, 3, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 4, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.NETWORK_EXCEPTION, 1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NETWORK_EXCEPTION, 2, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.PRODUCER_FENCED, 5, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
async def test_an_error_is_one_that_the_version_knows(
    tmp_path: Path, said: ErrorCode, version: int, told: ErrorCode
) -> None:
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t")
        await coordinator_is_ready(connection)
        broker.verifier.says = said
        assert await commit(connection, 1, version=version) == [told]


async def test_a_client_does_not_wait_for_ever_for_the_transaction_coordinator(
    tmp_path: Path,
) -> None:
    settings = replace(SETTINGS, offsets_commit_timeout_ms=1)
    async with asking(tmp_path, settings) as (broker, connection):
        await create(connection, "t")
        await coordinator_is_ready(connection)
        broker.verifier.says = None
        assert await commit(connection, 1) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
