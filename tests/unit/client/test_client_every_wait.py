"""Whatever a client waits for, its log says why: a walk through all requests that it sends."""

import ast
import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from quorumlog import client
from quorumlog.client import (
    Acl,
    AclFilter,
    Admin,
    Consumer,
    ErrorCode,
    KafkaError,
    NewScramCredential,
    NewTopic,
    Producer,
)
from quorumlog.client.core import absences, waits
from quorumlog.client.io import broker_connections, metadata_source, stalled_requests
from quorumlog.client.records import GroupMetadata
from quorumlog.client.sync import SyncAdmin, SyncConsumer, SyncProducer
from quorumlog.wire.codec.message import Response
from quorumlog.wire.codec.messages import APIS
from quorumlog.wire.codec.messages.api_versions import ApiVersion, ApiVersionsResponse
from quorumlog.wire.codec.schemas import response_class
from tests.support.client.fake_admin import KEYS, AdminCluster, built, only_cluster
from tests.support.client.fake_cluster import SILENCE, SPOKEN, FakeCluster, T, fake_cluster
from tests.support.client.fake_group import VERSIONS
from tests.support.client.fake_transactions import Coordinating, producer_of
from tests.support.client.opened import consuming, in_a_thread, producing

LOGGER = "quorumlog.client.io.lookout"
Said = Callable[[str], Awaitable[None]]
Call = Callable[[Admin], Awaitable[object]]
DIRECTORY_ID = bytes(range(16))


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Said:
    """Wait until the log has a WARNING with this text."""
    monkeypatch.setattr(absences, "REPORT_AFTER_MS", 60)
    monkeypatch.setattr(waits, "REPORT_AGAIN_MS", 60)  # another request may have been slow
    monkeypatch.setattr(waits, "OVERDUE_AFTER_MS", 20)
    monkeypatch.setattr(broker_connections, "OVERDUE_AFTER_MS", 20)
    monkeypatch.setattr(waits, "RECHECK_MS", 20)
    monkeypatch.setattr(stalled_requests, "OVERDUE_AFTER_MS", 20)
    monkeypatch.setattr(stalled_requests, "OVERDUE_CHECK_MS", 10)
    monkeypatch.setattr(metadata_source, "ANSWER_TIMEOUT_MS", 100)
    caplog.set_level(logging.WARNING, LOGGER)

    async def wait(text: str) -> None:
        while not any(text in record.getMessage() for record in caplog.records):
            await asyncio.sleep(0.001)

    return wait


async def before_an_outcome(said: Awaitable[None], call: asyncio.Future[object]) -> None:
    """Wait for what is said; raise what the call raises if it ends before."""
    waiting = asyncio.ensure_future(said)
    both: set[asyncio.Future[Any]] = {waiting, call}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if call.done():
        waiting.cancel()
        raise AssertionError("it ended, and nothing was said") from call.exception()


async def polling(consumer: Consumer) -> None:
    while True:
        await consumer.poll(10)


ADMIN: dict[str, Call] = {
    "AddRaftVoter": lambda admin: admin.add_raft_voter(4, DIRECTORY_ID, "h:1"),
    "AlterClientQuotas": lambda admin: admin.alter_client_quotas(
        {"user": "u"}, {"producer_byte_rate": 1.0}
    ),
    "AlterPartitionReassignments": lambda admin: admin.alter_partition_reassignments({T: [1]}),
    "AlterReplicaLogDirs": lambda admin: admin.alter_replica_log_dirs(1, {T: "/d"}),
    "AlterUserScramCredentials": lambda admin: admin.alter_user_scram_credentials(
        [NewScramCredential(user="u", password="p")]
    ),
    "ApiVersions": lambda admin: admin.describe_features(),
    "ConsumerGroupDescribe": lambda admin: admin.describe_consumer_groups(["g"]),
    "CreateAcls": lambda admin: admin.create_acls(
        [Acl(resource_type="topic", resource_name="t", principal="User:u", operation="read")]
    ),
    "CreatePartitions": lambda admin: admin.create_partitions({"t": 2}),
    "CreateTopics": lambda admin: admin.create_topics([NewTopic("x")]),
    "DeleteAcls": lambda admin: admin.delete_acls([AclFilter()]),
    "DeleteGroups": lambda admin: admin.delete_consumer_groups(["g"]),
    "DeleteRecords": lambda admin: admin.delete_records({T: 0}),
    "DeleteTopics": lambda admin: admin.delete_topics(["t"]),
    "DescribeAcls": lambda admin: admin.describe_acls(),
    "DescribeClientQuotas": lambda admin: admin.describe_client_quotas(),
    "DescribeConfigs": lambda admin: admin.describe_configs("topic", "t"),
    "DescribeGroups": lambda admin: admin.describe_consumer_groups(["g"]),
    "DescribeLogDirs": lambda admin: admin.describe_log_dirs([1]),
    "DescribeProducers": lambda admin: admin.describe_producers([T]),
    "DescribeQuorum": lambda admin: admin.describe_quorum(),
    "DescribeTopicPartitions": lambda admin: admin.describe_topics(["t"]),
    "DescribeTransactions": lambda admin: admin.transactions.describe(["tx"]),
    "DescribeUserScramCredentials": lambda admin: admin.describe_user_scram_credentials(),
    "ElectLeaders": lambda admin: admin.elect_leaders(),
    "FindCoordinator": lambda admin: admin.describe_consumer_groups(["g"]),
    "IncrementalAlterConfigs": lambda admin: admin.alter_configs("topic", "t", {"a": "b"}),
    "ListConfigResources": lambda admin: admin.list_config_resources(),
    "ListGroups": lambda admin: admin.list_consumer_groups(),
    "ListOffsets": lambda admin: admin.list_offsets({T: "latest"}),
    "ListPartitionReassignments": lambda admin: admin.list_partition_reassignments(),
    "ListTransactions": lambda admin: admin.transactions.list(),
    "Metadata": lambda admin: admin.list_topics(),
    "OffsetCommit": lambda admin: admin.alter_consumer_group_offsets("g", {T: 1}),
    "OffsetDelete": lambda admin: admin.delete_consumer_group_offsets("g", [T]),
    "OffsetFetch": lambda admin: admin.list_consumer_group_offsets("g"),
    "RemoveRaftVoter": lambda admin: admin.remove_raft_voter(3, DIRECTORY_ID),
    "UnregisterBroker": lambda admin: admin.unregister_broker(3),
    "UpdateFeatures": lambda admin: admin.update_features({"kraft.version": 1}),
    "WriteTxnMarkers": lambda admin: admin.transactions.abort(T, 1, 1, 1),
}
MEMBER = {
    "ConsumerGroupHeartbeat": "consumer",
    "JoinGroup": "classic",
    "SyncGroup": "classic",
    "Heartbeat": "classic",
}
TRANSACTION = [
    "InitProducerId",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "TxnOffsetCommit",
    "EndTxn",
]
DATA = {
    "Produce": "t-0: its leader, broker 1, does not answer Produce",
    "Fetch": "t-0: its leader, broker 1, does not answer Fetch",
}
NOT_WAITED_FOR = {"LeaveGroup"}  # a member that leaves waits 2 s at most


def silent(api: str) -> Callable[[int, int], str | None]:
    return lambda _, key: SILENCE if key == KEYS[api] else None


def test_the_walk_meets_every_request_that_the_client_sends() -> None:
    sources = Path(client.__file__).parent.rglob("*.py")
    names = {
        node.id if isinstance(node, ast.Name) else node.attr
        for source in sources
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Name | ast.Attribute)
    }
    sent = {name.removesuffix("Request") for name in names if name.endswith("Request")}
    walked = ADMIN.keys() | MEMBER.keys() | {*TRANSACTION} | DATA.keys() | NOT_WAITED_FOR
    assert sent & KEYS.keys() == walked


@asynccontextmanager
async def offering() -> AsyncIterator[AdminCluster]:
    """Yield two brokers that offer all APIs of administrators and members."""
    async with asyncio.timeout(20), only_cluster() as cluster:
        for name in {*ADMIN, *MEMBER}:
            if KEYS[name] not in SPOKEN.keys() | VERSIONS.keys():
                cluster.offer(name, {})
        dead = {"group_id": "g", "group_state": "Dead"}
        cluster.offer("DescribeGroups", {"groups": [dead]})
        yield cluster


@pytest.mark.parametrize("api", sorted(ADMIN))
async def test_a_request_of_an_administrator_that_waits_is_said(api: str, said: Said) -> None:
    # ApiVersions is the first request of each connection.
    is_first = api == "ApiVersions"
    text = "does not answer a connection attempt" if is_first else f"does not answer {api}"
    async with offering() as cluster, Admin(cluster.bootstrap) as admin:
        cluster.fault = silent(api)
        call = asyncio.ensure_future(ADMIN[api](admin))
        await before_an_outcome(said(text), call)
        call.cancel()


@pytest.mark.parametrize(("api", "protocol"), sorted(MEMBER.items()))
async def test_a_request_of_a_member_that_waits_is_said(
    api: str, protocol: str, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumlog.client.io.group_session.REBALANCE_EXPECTED_MS", 50)
    options: Any = {"group_protocol": protocol}
    if protocol == "classic":
        options["heartbeat_interval_ms"] = 10
    async with offering() as cluster:
        cluster.fault = silent(api)
        async with Consumer(cluster.bootstrap, group_id="g", **options) as consumer:
            consumer.subscribe(["t"])
            reader = asyncio.ensure_future(polling(consumer))
            await said(f"does not answer {api}")
            reader.cancel()
            cluster.fault = lambda _, __: None


def answer_of(api: str, **fields: Any) -> Response:
    answer: Response = built(response_class(KEYS[api]), fields)
    return answer


class Coordinators(Coordinating):
    """Takes the offsets of a group, too."""

    def handle(self, broker: int, api: int, request: Any, fault: object) -> Response | None:
        match APIS[api].name:
            case "ApiVersions":
                answer = self.api_versions(request)
                assert isinstance(answer, ApiVersionsResponse)
                answer.api_keys.append(ApiVersion(api_key=KEYS["AddOffsetsToTxn"], max_version=3))
                return answer
            case "FindCoordinator":
                host, port = self.addresses[1]
                found = {"key": request.coordinator_keys[0], "node_id": 1, "host": host}
                return answer_of("FindCoordinator", coordinators=[{**found, "port": port}])
            case "AddOffsetsToTxn":
                return answer_of("AddOffsetsToTxn")
            case "TxnOffsetCommit":
                topic = {"name": "t", "partitions": [{"partition_index": 0}]}
                return answer_of("TxnOffsetCommit", topics=[topic])
            case _:
                return super().handle(broker, api, request, fault)


async def one_transaction(producer: Producer) -> None:
    await producer.init_transactions()
    producer.begin_transaction()
    await producer.send_and_wait("t", b"")
    await producer.send_offsets_to_transaction({T: 1}, GroupMetadata("g", 1, "m", None))
    await producer.commit_transaction()


@pytest.mark.parametrize(
    ("api", "level"),  # of transaction.version: at 2, brokers add partitions and groups
    [
        *((api, 1) for api in [*TRANSACTION, "FindCoordinator"]),
        *((api, 2) for api in TRANSACTION if not api.startswith("Add")),
    ],
)
async def test_a_waiting_request_of_a_transaction_is_said(api: str, level: int, said: Said) -> None:
    cluster = Coordinators()
    cluster.level = level
    await cluster.start(1)
    async with asyncio.timeout(20):
        cluster.fault = silent(api)
        async with producer_of(cluster, max_block_ms=1_000) as producer:
            call = asyncio.ensure_future(one_transaction(producer))
            await said(f"transactional id tx: broker 1 at 127.0.0.1:{cluster.addresses[1][1]} does")
            call.cancel()
            cluster.fault = lambda _, __: None
    await cluster.kill(1)


@pytest.mark.parametrize("options", [{}, {"enable_idempotence": False}, {"acks": 1}], ids=str)
async def test_a_leader_that_answers_no_produce_request_is_said(options: Any, said: Said) -> None:
    async with producing(**options) as (cluster, producer):
        cluster.fault = silent("Produce")
        await producer.send("t", b"")
        await said(DATA["Produce"])
        await producer.stop(timeout_ms=0)


async def test_a_leader_that_is_read_and_does_not_answer_is_said(said: Said) -> None:
    options: Any = {"fetch_max_wait_ms": 10, "auto_offset_reset": "earliest"}
    async with consuming(**options) as (cluster, consumer):
        consumer.assign([T])
        await consumer.position(T)
        cluster.fault = silent("Fetch")
        await said(DATA["Fetch"])


async def test_a_leader_that_takes_connections_and_answers_none_is_said(said: Said) -> None:
    async with producing(enable_idempotence=False) as (cluster, producer):
        cluster.fault = silent("ApiVersions")
        await producer.send("t", b"")
        await said("t-0: its leader, broker 1, cannot be reached: 127.0.0.1")
        await said("no answer to a connection attempt (for 0 s)")
        await producer.stop(timeout_ms=0)


async def test_a_client_that_finds_no_cluster_says_so_while_it_tries(said: Said) -> None:
    async with asyncio.timeout(20), fake_cluster() as cluster:
        cluster.fault = silent("ApiVersions")
        opening = asyncio.ensure_future(Admin(cluster.bootstrap).start())
        await said("the cluster: no broker answers: 127.0.0.1")
        opening.cancel()


# --- every loop that repeats a request, with a broker that answers an error ---

LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_an_error_that_is_answered_again_and_again_is_said(said: Said) -> None:
    async with offering() as cluster, Admin(cluster.bootstrap) as admin:
        cluster.offer("DescribeQuorum", {"error_code": ErrorCode.REQUEST_TIMED_OUT})
        call = asyncio.ensure_future(admin.describe_quorum())
        await said("DescribeQuorum: REQUEST_TIMED_OUT")
        call.cancel()


def refuse(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, **answers: Any) -> None:
    for name, answer in answers.items():
        monkeypatch.setattr(cluster, name, lambda *_, it=answer: it)


async def test_a_group_without_joins_is_said(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    async with offering() as cluster, Consumer(cluster.bootstrap, group_id="g") as consumer:
        refuse(cluster, monkeypatch, join=answer_of("JoinGroup", error_code=LOADING))
        consumer.subscribe(["t"])
        reader = asyncio.ensure_future(polling(consumer))
        await said("group g: JoinGroup: COORDINATOR_LOAD_IN_PROGRESS")
        reader.cancel()


@pytest.mark.parametrize("api", ["OffsetFetch", "OffsetCommit"])
@pytest.mark.parametrize("is_found", [False, True])
async def test_offsets_that_a_coordinator_refuses_are_said(
    api: str, is_found: bool, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with offering() as cluster, Admin(cluster.bootstrap) as admin:
        lost = answer_of("FindCoordinator", error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        loading = answer_of("OffsetFetch", error_code=LOADING)
        refuse(cluster, monkeypatch, **({"offsets": loading} if is_found else {"find": lost}))
        cluster.refusals = [LOADING] * 10_000
        call = asyncio.ensure_future(ADMIN[api](admin))
        await said(LOADING.name if is_found else "the coordinator of group g: COORDINATOR_NOT_AV")
        call.cancel()


async def test_a_producer_without_id_is_said(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    async with producing() as (cluster, producer):
        handle, refused = cluster.handle, answer_of("InitProducerId", error_code=LOADING)
        monkeypatch.setattr(
            cluster,
            "handle",
            lambda broker, api, *rest: refused if api == 22 else handle(broker, api, *rest),
        )
        await producer.send("t", b"")
        await said("a producer id: COORDINATOR_LOAD_IN_PROGRESS")
        await producer.stop(timeout_ms=0)


# --- the clients without an event loop ---


@pytest.mark.parametrize("kind", ["producer", "consumer", "admin"])
async def test_a_blocking_client_says_what_it_waits_for(kind: str, said: Said) -> None:
    def call(bootstrap: str) -> None:
        if kind == "producer":
            options: Any = {"request_timeout_ms": 100, "delivery_timeout_ms": 300}
            with SyncProducer(bootstrap, linger_ms=0, **options) as producer:
                producer.send("t", b"")
        elif kind == "consumer":
            with (
                SyncConsumer(bootstrap, default_api_timeout_ms=300) as consumer,
                pytest.raises(KafkaError),
            ):
                consumer.end_offsets([T])
        else:
            with (
                SyncAdmin(bootstrap, default_api_timeout_ms=300) as admin,
                pytest.raises(KafkaError),
            ):
                admin.describe_quorum()

    apis = {"producer": "InitProducerId", "consumer": "ListOffsets", "admin": "DescribeQuorum"}
    with in_a_thread(only_cluster()) as cluster:
        cluster.offer("DescribeQuorum", {})
        cluster.fault = silent(apis[kind])
        await asyncio.to_thread(call, cluster.bootstrap)
        async with asyncio.timeout(20):
            await said(f"does not answer {apis[kind]}")
