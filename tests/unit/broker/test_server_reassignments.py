"""AlterPartitionReassignments and ListPartitionReassignments over a connection."""

from pathlib import Path

import pytest

from quorumlog.metadata_quorum.controller_client import ControllerUnavailable
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from quorumlog.wire.codec.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.groups.asking import asking, create, versions
from tests.unit.broker.test_server_elections import register_other

Outcomes = dict[tuple[str, int], str]


async def alter(
    connection: KafkaConnection,
    replicas: list[int] | None,
    index: int = 0,
    *,
    version: int = 1,
    allow: bool = True,
) -> tuple[ErrorCode, Outcomes]:
    partition = ReassignablePartition(partition_index=index, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name="t", partitions=[partition])],
        allow_replication_factor_change=allow,
        timeout_ms=1_000,
    )
    response = await connection.send(request, version=version)
    outcomes = {
        (topic.name, one.partition_index): ErrorCode(one.error_code).name
        for topic in response.responses
        for one in topic.partitions
    }
    return ErrorCode(response.error_code), outcomes


async def ongoing(
    connection: KafkaConnection, topics: dict[str, list[int]] | None
) -> list[tuple[str, int, list[int], list[int], list[int]]]:
    asked = None
    if topics is not None:
        asked = [
            ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
            for name, indexes in topics.items()
        ]
    response = await connection.send(ListPartitionReassignmentsRequest(topics=asked), version=0)
    assert response.error_code == ErrorCode.NONE
    return [
        (t.name, p.partition_index, p.replicas, p.adding_replicas, p.removing_replicas)
        for t in response.topics
        for p in t.partitions
    ]


async def test_a_reassignment_begins_is_listed_and_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "quorumlog.broker.handlers.list_partition_reassignments.LOOKED_AT_AT_ONCE", 1
    )
    async with asking(tmp_path) as (broker, connection):
        register_other(broker)
        await create(connection, "t", 2)
        none = ErrorCode.NONE
        for version in versions(45):
            assert await alter(connection, [2], version=version) == (none, {("t", 0): "NONE"})
            moving = [("t", 0, [2, 1], [2], [1])]
            assert await ongoing(connection, None) == moving
            assert await ongoing(connection, {"t": [0, 1, 7], "none": [0]}) == moving
            assert await ongoing(connection, {"t": [1]}) == []
            assert await alter(connection, None, version=version) == (none, {("t", 0): "NONE"})
            assert await ongoing(connection, None) == []
        refused = await alter(connection, None)
        assert refused == (none, {("t", 0): "NO_REASSIGNMENT_IN_PROGRESS"})


async def test_what_is_refused_is_told_partition_by_partition(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        register_other(broker)
        await create(connection, "t", 1)
        assert (await alter(connection, [1, 9]))[1] == {("t", 0): "INVALID_REPLICA_ASSIGNMENT"}
        assert (await alter(connection, [1], 5))[1] == {("t", 5): "UNKNOWN_TOPIC_OR_PARTITION"}
        grown = await alter(connection, [1, 2], allow=False)
        assert grown[1] == {("t", 0): "INVALID_REPLICATION_FACTOR"}
        assert await ongoing(connection, None) == []


async def test_without_a_controller_the_outcome_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: object, **__: object) -> None:
        raise ControllerUnavailable

    async with asking(tmp_path) as (broker, connection):
        monkeypatch.setattr(broker.controller, "alter_reassignments", unavailable)
        assert await alter(connection, [1]) == (ErrorCode.REQUEST_TIMED_OUT, {})
