"""The APIs of transactions through a socket, and a broker's connection to itself without one."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.handlers import add_partitions_to_txn
from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.broker.partitions.log.verified_appends import TransactionProducer
from quorumlog.broker.server.api import ApiHandler, BrokerContext, Disconnect, Reply, answers
from quorumlog.broker.server.own_connection import OwnConnection
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition
from quorumlog.wire.codec.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from quorumlog.wire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from quorumlog.wire.codec.messages.describe_transactions import (
    DescribeTransactionsRequest,
    TransactionState,
)
from quorumlog.wire.codec.messages.end_txn import EndTxnRequest, EndTxnResponse
from quorumlog.wire.codec.messages.find_coordinator import FindCoordinatorRequest
from quorumlog.wire.codec.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from quorumlog.wire.codec.messages.list_transactions import ListTransactionsRequest
from quorumlog.wire.codec.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from quorumlog.wire.io.connection import ConnectionLost, KafkaConnection, RequestTimedOut
from tests.support.broker.requests import describe_configs
from tests.support.groups.asking import asking, create, versions
from tests.support.groups.single_broker import BROKER, SingleBroker, single_broker

WAIT = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS}


@answers(WriteTxnMarkersRequest, 1, 2)
def write_nothing(
    _context: BrokerContext, _header: RequestHeader, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """Answer as a leader that has written all markers."""
    markers = []
    for marker in request.markers:
        topics = []
        for topic in marker.topics:
            written = [
                WritableTxnMarkerPartitionResult(partition_index=index)
                for index in topic.partition_indexes
            ]
            topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=written))
        markers.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
    return WriteTxnMarkersResponse(markers=markers)


@pytest.fixture(autouse=True)
def _markers(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = {**HANDLERS, write_nothing.api_key: write_nothing}
    monkeypatch.setattr("tests.support.groups.single_broker.HANDLERS", handlers)


async def answered(connection: KafkaConnection, request: Any, version: int | None = None) -> Any:
    """Ask until the coordinator has loaded, and the end of a transaction is complete."""
    async with asyncio.timeout(30):
        while True:
            answer = await connection.send(request, version=version)
            if answer.error_code not in WAIT:
                return answer
            await asyncio.sleep(0.001)


async def begun(connection: KafkaConnection, name: str = "x") -> InitProducerIdResponse:
    finder = FindCoordinatorRequest(key_type=1, key=name, coordinator_keys=[name])
    assert (await connection.send(finder)).coordinators[0].error_code == 0
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    answer: InitProducerIdResponse = await answered(connection, request)
    assert answer.error_code == 0
    return answer


def adding(
    producer: InitProducerIdResponse, *topics: tuple[str, Iterable[int]]
) -> AddPartitionsToTxnRequest:
    """As an older client."""
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=_topics(topics),
    )


def _topics(topics: Iterable[tuple[str, Iterable[int]]]) -> list[AddPartitionsToTxnTopic]:
    return [AddPartitionsToTxnTopic(name=name, partitions=[*those]) for name, those in topics]


def codes(results: Iterable[AddPartitionsToTxnTopicResult]) -> dict[TopicPartition, str]:
    return {
        TopicPartition(topic.name, one.partition_index): ErrorCode(one.partition_error_code).name
        for topic in results
        for one in topic.results_by_partition
    }


async def added(
    connection: KafkaConnection, producer: InitProducerIdResponse, version: int = 3
) -> None:
    async with asyncio.timeout(30):
        while True:
            answer = await connection.send(adding(producer, ("t", [0])), version=version)
            [code] = codes(answer.results_by_topic_v3_and_below).values()
            if code != "CONCURRENT_TRANSACTIONS":
                assert code == "NONE"
                return
            await asyncio.sleep(0.001)


async def ended(
    connection: KafkaConnection, producer: InitProducerIdResponse, version: int, *, commit: bool
) -> EndTxnResponse:
    request = EndTxnRequest(
        transactional_id="x",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=commit,
    )
    answer: EndTxnResponse = await answered(connection, request, version)
    return answer


async def described(connection: KafkaConnection, name: str = "x") -> TransactionState:
    answer = await connection.send(DescribeTransactionsRequest(transactional_ids=[name]))
    [state] = answer.transaction_states
    return state


async def complete(connection: KafkaConnection, state: str) -> None:
    async with asyncio.timeout(30):
        while (await described(connection)).transaction_state != state:
            await asyncio.sleep(0.001)


async def test_the_first_search_for_a_coordinator_creates_its_topic(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        for version in versions(10)[1:]:
            request = FindCoordinatorRequest(key_type=1, key="x", coordinator_keys=["x"])
            answer = await connection.send(request, version=version)
            found = answer.coordinators[0] if version >= 4 else answer
            assert (found.error_code, found.node_id, found.port) == (0, BROKER, broker.port)
        assert broker.controller.topics_created == 1
        topic = broker.controller.image.topics[TRANSACTIONS_TOPIC]
        assert len(topic.partitions) == 3
        assert topic.configs == {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": "2",
            "segment.bytes": "104857600",
            "unclean.leader.election.enable": "false",
        }
        shown = await describe_configs(connection, 2, TRANSACTIONS_TOPIC, ["cleanup.policy"])
        assert [one.value for one in shown.configs] == ["compact"]


async def test_a_client_of_each_version_commits_and_aborts(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t")
        producer = await begun(connection)
        for version in versions(26):
            for commit, state in ((True, "CompleteCommit"), (False, "CompleteAbort")):
                await added(connection, producer, min(version, 3))
                ongoing = await described(connection)
                assert ongoing.transaction_state == "Ongoing"
                assert [(one.topic, one.partitions) for one in ongoing.topics] == [("t", [0])]
                answer = await ended(connection, producer, version, commit=commit)
                assert answer.error_code == 0
                await complete(connection, state)
                if version >= 5:  # every transaction has an epoch of its own
                    assert answer.producer_epoch == producer.producer_epoch + 1
                    producer.producer_epoch = answer.producer_epoch


async def test_a_second_producer_fences_the_first(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t")
        first = await begun(connection)
        await added(connection, first)
        second = await begun(connection)
        assert second.producer_id == first.producer_id
        assert second.producer_epoch > first.producer_epoch
        for version, code in ((1, "INVALID_PRODUCER_EPOCH"), (4, "PRODUCER_FENCED")):
            answer = await ended(connection, first, version, commit=True)
            assert ErrorCode(answer.error_code).name == code
        assert (await described(connection)).transaction_state == "Empty"


async def test_what_cannot_be_added_keeps_all_from_being_added(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t")
        producer = await begun(connection)
        for version in (0, 3):
            request = adding(producer, ("t", [0, 9]), ("u", [0]), (TRANSACTIONS_TOPIC, [0]))
            answer = await connection.send(request, version=version)
            assert codes(answer.results_by_topic_v3_and_below) == {
                TopicPartition("t", 0): "OPERATION_NOT_ATTEMPTED",
                TopicPartition("t", 9): "UNKNOWN_TOPIC_OR_PARTITION",
                TopicPartition("u", 0): "UNKNOWN_TOPIC_OR_PARTITION",
                TopicPartition(TRANSACTIONS_TOPIC, 0): "TOPIC_AUTHORIZATION_FAILED",
            }
        assert (await described(connection)).transaction_state == "Empty"


async def test_a_broker_verifies_and_adds_for_many_transactions(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t")
        producers = {name: await begun(connection, name) for name in ("x", "y")}
        where = TopicPartition("t", 0)

        def of(name: str, *, verify_only: bool) -> AddPartitionsToTxnTransaction:
            return AddPartitionsToTxnTransaction(
                transactional_id=name,
                producer_id=producers[name].producer_id,
                producer_epoch=producers[name].producer_epoch,
                verify_only=verify_only,
                topics=_topics([("t", [0])]),
            )

        for version, absent in ((4, "INVALID_TXN_STATE"), (5, "TRANSACTION_ABORTABLE")):
            transactions = [of("x", verify_only=False), of("y", verify_only=True)]
            request = AddPartitionsToTxnRequest(transactions=transactions)
            answer = await connection.send(request, version=version)
            assert answer.error_code == 0
            results = answer.results_by_transaction
            found = {one.transactional_id: codes(one.topic_results) for one in results}
            assert found == {"x": {where: "NONE"}, "y": {where: absent}}
        y = TransactionProducer("y", producers["y"].producer_id, producers["y"].producer_epoch)
        verify = broker.transactions.verifier.verify
        for adds, code in ((False, ErrorCode.TRANSACTION_ABORTABLE), (True, ErrorCode.NONE)):
            assert await verify(y, [where], adds=adds) == {where: code}
        topic_id = broker.metadata.image.topics["t"].topic_id
        for of_topic, code in (
            (topic_id, ErrorCode.NONE),
            (TopicId(bytes(15) + b"1"), ErrorCode.NOT_ENOUGH_REPLICAS),
        ):
            for adds in (False, True):
                found_here = await verify(y, [where], topic_id=of_topic, adds=adds)
                assert found_here == {where: code}


async def test_a_request_that_names_too_many_partitions_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(add_partitions_to_txn, "PARTITIONS_MAX", 100)
    monkeypatch.setattr(add_partitions_to_txn, "REFUSED_MAX", 200)
    monkeypatch.setattr(add_partitions_to_txn, "PARTITIONS_AT_ONCE", 50)
    async with asking(tmp_path) as (_, connection):
        too_many = _topics([("t", range(100)), ("u", [0])])
        of_a_broker = AddPartitionsToTxnTransaction(transactional_id="x", topics=too_many)
        request = AddPartitionsToTxnRequest(transactions=[of_a_broker])
        answer = await connection.send(request, version=4)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert answer.results_by_transaction == []
        for version in range(4):
            of_a_client = AddPartitionsToTxnRequest(v3_and_below_topics=too_many)
            answer = await connection.send(of_a_client, version=version)
            refused = codes(answer.results_by_topic_v3_and_below)
            assert [*refused.values()] == ["INVALID_REQUEST"] * 101
        just_enough = AddPartitionsToTxnRequest(v3_and_below_topics=too_many[:1])
        answer = await connection.send(just_enough, version=3)
        refused = codes(answer.results_by_topic_v3_and_below)
        assert [*refused.values()] == ["UNKNOWN_TOPIC_OR_PARTITION"] * 100
        absurd = AddPartitionsToTxnRequest(v3_and_below_topics=_topics([("t", range(201))]))
        with pytest.raises(ConnectionLost):  # more than any cluster has
            await connection.send(absurd, version=3)


async def test_the_offsets_of_a_group_belong_to_a_transaction(tmp_path: Path) -> None:
    """Also those of a group that nobody has asked for: its topic is created."""
    async with asking(tmp_path) as (broker, connection):
        producer = await begun(connection)
        for version in versions(25):
            request = AddOffsetsToTxnRequest(
                transactional_id="x",
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                group_id="g",
            )
            assert (await answered(connection, request, version)).error_code == 0
        [topic] = (await described(connection)).topics
        where = broker.groups.partition_of("g")
        assert (topic.topic, topic.partitions) == (OFFSETS_TOPIC, [where.partition])


async def test_transactions_are_described_and_listed(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        assert ErrorCode((await described(connection)).error_code).name == "NOT_COORDINATOR"
        await create(connection, "t")
        producer = await begun(connection)
        other = await begun(connection, "y")
        await added(connection, producer)
        absent = await described(connection, "z")
        assert ErrorCode(absent.error_code).name == "TRANSACTIONAL_ID_NOT_FOUND"
        ongoing = await described(connection)
        assert (ongoing.producer_id, ongoing.producer_epoch) == (producer.producer_id, 0)
        assert (ongoing.transaction_timeout_ms, ongoing.error_code) == (60_000, 0)
        assert ongoing.transaction_start_time_ms > 0

        async def listed(**filters: Any) -> list[str]:
            answer = await answered(connection, ListTransactionsRequest(**filters))
            return [one.transactional_id for one in answer.transaction_states]

        assert sorted(await listed()) == ["x", "y"]
        assert await listed(state_filters=["Ongoing"]) == ["x"]
        assert await listed(producer_id_filters=[other.producer_id]) == ["y"]
        assert await listed(duration_filter=3_600_000, state_filters=["Ongoing"]) == []
        assert await listed(transactional_id_pattern="") == await listed()
        assert await listed(transactional_id_pattern="[ab]|y") == ["y"]
        assert await listed(transactional_id_pattern="xy*", state_filters=["Ongoing"]) == ["x"]
        assert await listed(transactional_id_pattern="xy") == []
        bad = await connection.send(ListTransactionsRequest(transactional_id_pattern="x("))
        assert ErrorCode(bad.error_code).name == "INVALID_REGULAR_EXPRESSION"
        odd = await connection.send(ListTransactionsRequest(state_filters=["Odd", "Empty"]))
        assert odd.unknown_state_filters == ["Odd"]


ANSWER = WriteTxnMarkersResponse()


def connection_to(broker: SingleBroker, reply: Any) -> OwnConnection:
    """Return a connection whose broker answers WriteTxnMarkers so; an exception is raised."""

    def handle(*_: object) -> Reply:
        if isinstance(reply, Exception):
            raise reply
        return reply  # type: ignore[no-any-return]

    key = WriteTxnMarkersRequest.API_KEY
    handler = ApiHandler(
        api_key=key, min_version=1, max_version=2, handle=handle, advertised_min_version=1
    )
    settings = replace(broker.context.settings, replica_socket_timeout_ms=20)
    context = replace(broker.context, handlers={key: handler}, settings=settings)
    return OwnConnection(context)


async def test_an_answer_comes_now_later_from_a_coroutine_or_is_given_up(tmp_path: Path) -> None:
    async with single_broker(tmp_path) as broker:
        later: asyncio.Future[WriteTxnMarkersResponse] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(later.set_result, ANSWER)

        async def coroutine() -> WriteTxnMarkersResponse:
            return ANSWER

        for reply in (ANSWER, later, coroutine()):
            connection = connection_to(broker, reply)
            assert await connection.send(WriteTxnMarkersRequest()) is ANSWER
            await connection.close()
            assert connection.closed.done()
        never: asyncio.Future[WriteTxnMarkersResponse] = asyncio.get_running_loop().create_future()
        with pytest.raises(RequestTimedOut):
            await connection_to(broker, never).send(WriteTxnMarkersRequest())
        assert never.cancelled()  # the handler learns that no caller waits


async def test_a_handler_that_fails_loses_the_connection_and_a_broken_invariant_stops_the_node(
    tmp_path: Path,
) -> None:
    async with single_broker(tmp_path) as broker:
        for error in (ValueError("a bug"), Disconnect("no")):
            with pytest.raises(ConnectionLost):
                await connection_to(broker, error).send(WriteTxnMarkersRequest())
        with pytest.raises(InvariantViolation):
            await connection_to(broker, InvariantViolation("ours")).send(WriteTxnMarkersRequest())


async def test_a_coordinator_asks_its_own_broker_without_a_socket(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t")
        producer = await begun(connection)
        await added(connection, producer)
        await ended(connection, producer, 4, commit=True)
        await complete(connection, "CompleteCommit")
        asked = broker.server.stats.requests
        assert asked[EndTxnRequest.API_KEY]
        assert asked[AddPartitionsToTxnRequest.API_KEY] == 1  # ours, not one of the broker's
        assert WriteTxnMarkersRequest.API_KEY not in asked
