"""A broker with an authorizer: hidden topics, changed ACLs, roles and the audit log."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.broker.authorization import access_control
from quorumlog.broker.authorization.access_control import host_of
from quorumlog.metadata_quorum.image.acls import AclOperation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID
from quorumlog.wire.codec.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from quorumlog.wire.codec.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from quorumlog.wire.codec.messages.create_topics import CreatableTopic, CreateTopicsRequest
from quorumlog.wire.codec.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from quorumlog.wire.codec.messages.describe_cluster import DescribeClusterRequest
from quorumlog.wire.codec.messages.describe_groups import DescribeGroupsRequest
from quorumlog.wire.codec.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    RequestCursor,
    TopicRequest,
)
from quorumlog.wire.codec.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ReplicaState,
)
from quorumlog.wire.codec.messages.init_producer_id import InitProducerIdRequest
from quorumlog.wire.codec.messages.list_groups import ListGroupsRequest
from quorumlog.wire.codec.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from quorumlog.wire.codec.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from quorumlog.wire.io.connection import ConnectionLost, KafkaConnection
from tests.support.broker.authorized import ADMIN, ALICE, acl, guarded_broker
from tests.support.broker.one_broker import BATCH
from tests.support.broker.requests import BY_NAME, list_offset, produce
from tests.support.broker.session_consumer import TOPIC, Consumer
from tests.support.groups.asking import coordinator_is_ready, create
from tests.support.groups.offset_requests import commit
from tests.support.groups.single_broker import SETTINGS

REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
UNASKED = -(2**31)  # a bit field that was not requested


async def metadata(
    client: KafkaConnection, *names: str, version: int | None = None, **more: bool
) -> MetadataResponse:
    topics: list[MetadataRequestTopic] | None = [MetadataRequestTopic(name=name) for name in names]
    if version != 0 and not names:
        topics = None  # all topics
    return await client.send(MetadataRequest(topics=topics, **more), version=version)


async def test_a_hidden_topic_looks_like_a_missing_topic(tmp_path: Path) -> None:
    async with guarded_broker(tmp_path) as guarded:
        admin, client = await guarded.connect(ADMIN), await guarded.connect()
        topic_id = await create(admin, "hidden")
        for topics in (
            [MetadataRequestTopic(name="hidden"), MetadataRequestTopic(name="missing")],
            [MetadataRequestTopic(topic_id=topic_id, name=None)],
        ):
            answer = await client.send(MetadataRequest(topics=topics))
            for asked, shown in zip(topics, answer.topics, strict=True):
                assert (shown.error_code, shown.topic_id) == (REFUSED, asked.topic_id)
                assert (shown.name, shown.partitions) == (asked.name, [])
        for name in ("hidden", "missing"):
            assert (await list_offset(client, -1, topic=name)).error_code == REFUSED
            request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=1000)
            [result] = (await client.send(request)).responses
            assert (result.error_code, result.name, result.topic_id) == (
                REFUSED,
                name,
                ZERO_TOPIC_ID,
            )
        by_id = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=topic_id, name=None)])
        [result] = (await client.send(by_id)).responses
        assert (result.error_code, result.name, result.topic_id) == (REFUSED, None, topic_id)
        guarded.use(acl("T DESCRIBE", name="missing"), acl("T DESCRIBE", name="hidden"))
        for name, code in (("hidden", REFUSED), ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)):
            request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=1000)
            [result] = (await client.send(request)).responses
            assert result.error_code == code
        assert "hidden" in guarded.broker.context.image.topics
        await admin.close()
        await client.close()


async def test_lists_leave_out_the_topics_that_a_client_may_not_describe(tmp_path: Path) -> None:
    async with guarded_broker(tmp_path) as guarded:
        admin, client = await guarded.connect(ADMIN), await guarded.connect()
        for name in ("a", "b", "c", "d"):
            await create(admin, name)
        for version in (0, 1, None):
            assert (await metadata(client, version=version)).topics == []
        assert (await metadata(client, "a", version=0)).topics[0].error_code == REFUSED
        guarded.use(acl("T READ", name="a"), acl("T DESCRIBE", name="d"))
        assert [topic.name for topic in (await metadata(client)).topics] == ["a", "d"]
        every = DescribeTopicPartitionsRequest(response_partition_limit=2)
        first = await client.send(every)
        assert [topic.name for topic in first.topics] == ["a"]
        assert first.next_cursor is not None
        assert first.next_cursor.topic_name == "d", "the cursor names no hidden topic"
        for at in ("b", "d"):
            every.cursor = RequestCursor(topic_name=at, partition_index=0)
            assert [topic.name for topic in (await client.send(every)).topics] == ["d"]
        guarded.use()
        assert (await client.send(every)).topics == []
        named = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="a")])
        [shown] = (await client.send(named)).topics
        assert (shown.error_code, shown.partitions, shown.topic_id) == (REFUSED, [], ZERO_TOPIC_ID)
        await admin.close()
        await client.close()


async def test_bit_fields_hold_the_operations_of_the_client(tmp_path: Path) -> None:
    def bits(*operations: AclOperation) -> int:
        return sum(1 << one for one in operations)

    async with guarded_broker(tmp_path) as guarded:
        admin, client = await guarded.connect(ADMIN), await guarded.connect()
        await create(admin, "t")
        await coordinator_is_ready(admin)
        guarded.permit("T READ", "G DESCRIBE", "C ALTER_CONFIGS")
        flags = {
            "include_topic_authorized_operations": True,
            "include_cluster_authorized_operations": True,
        }
        answer = await metadata(client, "t", version=10, **flags)
        read = bits(AclOperation.READ, AclOperation.DESCRIBE)
        assert answer.topics[0].topic_authorized_operations == read
        assert answer.cluster_authorized_operations == 0, "it may not describe the cluster"
        assert (await metadata(client, "t")).topics[0].topic_authorized_operations == UNASKED
        cluster = DescribeClusterRequest(include_cluster_authorized_operations=True)
        assert (await client.send(cluster)).cluster_authorized_operations == 0
        guarded.permit("G DESCRIBE", "C ALTER_CONFIGS", "C DESCRIBE")
        assert (await client.send(cluster)).cluster_authorized_operations == bits(
            AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS
        )
        request = DescribeGroupsRequest(groups=["g", "h"], include_authorized_operations=True)
        shown, hidden = (await client.send(request, version=5)).groups
        assert shown.authorized_operations == bits(AclOperation.DESCRIBE)
        assert (hidden.group_id, hidden.error_code) == ("h", ErrorCode.GROUP_AUTHORIZATION_FAILED)
        assert hidden.authorized_operations == UNASKED
        await admin.close()
        await client.close()


async def test_a_produce_request_is_permitted_in_parts(tmp_path: Path) -> None:
    async with guarded_broker(tmp_path) as guarded:
        admin, client = await guarded.connect(ADMIN), await guarded.connect()
        for name in ("a", "b"):
            await create(admin, name)
        guarded.use(acl("T WRITE", name="a"))
        data = [
            TopicProduceData(name=name, partition_data=[PartitionProduceData(records=BATCH)])
            for name in ("b", "a")
        ]
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=data)
        answer = await client.send(request, version=BY_NAME)
        codes = {one.name: one.partition_responses[0].error_code for one in answer.responses}
        assert codes == {"a": ErrorCode.NONE, "b": REFUSED}
        assert {one.partition_responses[0].base_offset for one in answer.responses} == {0, -1}
        request.acks = 0
        with pytest.raises(ConnectionLost):
            await client.send(request, version=BY_NAME, timeout_ms=2000)
        ends = [(await list_offset(admin, -1, topic=name)).offset for name in ("a", "b")]
        assert ends == [2, 0], "the permitted records of both requests are there"
        await admin.close()
        await client.close()


async def test_a_run_of_produce_requests_ends_with_the_right(tmp_path: Path) -> None:
    """Requests that repeat each other take a shorter way: it must check the right, too."""
    async with guarded_broker(tmp_path) as guarded:
        admin, client = await guarded.connect(ADMIN), await guarded.connect()
        topic_id = await create(admin, "t")
        for version in (BY_NAME, 13):
            for is_permitted in (True, False, True):
                guarded.permit(*(["T WRITE"] if is_permitted else []))
                answers = await asyncio.gather(
                    *(produce(client, BATCH, topic_id=topic_id, version=version) for _ in range(8))
                )
                expected = ErrorCode.NONE if is_permitted else REFUSED
                assert {one.error_code for one in answers} == {expected}
        await admin.close()
        await client.close()


@pytest.mark.parametrize("version", [12, 17])
async def test_a_fetch_session_follows_the_acls(tmp_path: Path, version: int) -> None:
    async with guarded_broker(tmp_path) as guarded:
        admin, client = await guarded.connect(ADMIN), await guarded.connect()
        topic_id = await create(admin, TOPIC)
        consumer = Consumer(client, topic_id, version)
        consumer.positions = {0: 0, 1: 0}
        for is_permitted in (False, True, False, True, True, False):
            guarded.use(*([acl("T READ", name=TOPIC)] if is_permitted else []))
            await produce(admin, BATCH, topic=TOPIC)
            told = await consumer.fetch()
            found = {index: (part.error_code, bool(part.records)) for index, part in told.items()}
            if is_permitted:
                assert found[0] == (ErrorCode.NONE, True)
            else:
                assert found == {0: (REFUSED, False), 1: (REFUSED, False)}
        await admin.close()
        await client.close()


async def test_a_fetch_session_gives_no_rights_to_another_client(tmp_path: Path) -> None:
    async with guarded_broker(tmp_path) as guarded:
        admin, client = await guarded.connect(ADMIN), await guarded.connect()
        consumer = Consumer(admin, await create(admin, TOPIC))
        consumer.positions = {0: 0}
        await produce(admin, BATCH, topic=TOPIC)
        assert (await consumer.fetch())[0].records
        consumer.connection = client
        assert (await consumer.fetch())[0].error_code == REFUSED
        await admin.close()
        await client.close()


async def test_the_session_of_a_follower_gives_no_right_to_read(tmp_path: Path) -> None:
    async with guarded_broker(tmp_path) as guarded:
        admin, client = await guarded.connect(ADMIN), await guarded.connect()
        topic_id = await create(admin, TOPIC)
        await produce(admin, BATCH, topic=TOPIC)
        guarded.permit("C CLUSTER_ACTION")
        topics = [FetchTopic(topic_id=topic_id, partitions=[FetchPartition(partition=0)])]
        follower = ReplicaState(replica_id=2, replica_epoch=1)
        first = FetchRequest(session_epoch=0, replica_state=follower, topics=topics)
        begun = await client.send(first, version=17)
        assert begun.session_id > 0
        assert begun.responses[0].partitions[0].error_code != REFUSED
        later = FetchRequest(session_id=begun.session_id, session_epoch=1, topics=[])
        answer = await client.send(later, version=17)
        [part] = answer.responses[0].partitions
        assert (part.error_code, part.records) == (REFUSED, b"")
        guarded.permit("T READ")
        refused = await client.send(first, version=17)
        assert refused.responses[0].partitions[0].error_code == REFUSED
        await admin.close()
        await client.close()


def heartbeat(**changes: object) -> ConsumerGroupHeartbeatRequest:
    values: dict[str, object] = {
        "group_id": "g",
        "member_id": "m",
        "rebalance_timeout_ms": 10_000,
        "topic_partitions": [],
    }
    return ConsumerGroupHeartbeatRequest(**{**values, **changes})  # type: ignore[arg-type]


def assigned(answer: ConsumerGroupHeartbeatResponse) -> set[bytes]:
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
    return (
        {one.topic_id for one in answer.assignment.topic_partitions} if answer.assignment else set()
    )


async def test_an_expression_matches_the_topics_that_the_member_may_describe(
    tmp_path: Path,
) -> None:
    async with guarded_broker(tmp_path, features={"group.version": 1}) as guarded:
        admin, client = await guarded.connect(ADMIN), await guarded.connect()
        topic_ids = {name: await create(admin, name) for name in ("log-a", "log-b", "log-c")}
        await coordinator_is_ready(admin)
        guarded.use(acl("G READ"), acl("T DESCRIBE", name="log-a"))
        request = heartbeat(subscribed_topic_regex="log-.*")
        assert assigned(await client.send(request)) == {topic_ids["log-a"]}
        guarded.use(acl("G READ"), acl("T READ", name="log-a"), acl("T READ", name="log-c"))
        again = heartbeat(member_epoch=1, topic_partitions=None, rebalance_timeout_ms=-1)
        assert assigned(await client.send(again)) == {topic_ids["log-a"], topic_ids["log-c"]}
        describe = ConsumerGroupDescribeRequest(group_ids=["g"])
        [shown] = (await client.send(describe)).groups
        assert (shown.error_code, len(shown.members)) == (ErrorCode.NONE, 1)
        guarded.use(acl("G READ"), acl("T READ", name="log-a"))
        [hidden] = (await client.send(describe)).groups
        assert (hidden.error_code, hidden.members) == (REFUSED, [])
        assert "not authorized to describe" in (hidden.error_message or "")
        await admin.close()
        await client.close()


async def test_offsets_and_groups_of_others_are_left_out_of_lists(tmp_path: Path) -> None:
    async with guarded_broker(tmp_path) as guarded:
        admin, client = await guarded.connect(ADMIN), await guarded.connect()
        await create(admin, "t")
        await coordinator_is_ready(admin)
        for group_id in ("g", "h"):
            assert await commit(admin, group_id) == ErrorCode.NONE
        every = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id="g", topics=None)], topics=None, group_id="g"
        )
        assert (await client.send(ListGroupsRequest())).groups == []
        for rights, names in ((["G DESCRIBE"], []), (["G DESCRIBE", "T DESCRIBE"], ["t"])):
            guarded.permit(*rights)
            assert [one.group_id for one in (await client.send(ListGroupsRequest())).groups] == [
                "g"
            ]
            [group] = (await client.send(every, version=9)).groups
            assert [topic.name for topic in group.topics] == names
            assert [one.name for one in (await client.send(every, version=7)).topics] == names
        guarded.permit("C DESCRIBE")
        assert {one.group_id for one in (await client.send(ListGroupsRequest())).groups} == {
            "g",
            "h",
        }
        await admin.close()
        await client.close()


async def test_an_idempotent_producer_needs_a_topic_to_write_to(tmp_path: Path) -> None:
    async with guarded_broker(tmp_path) as guarded:
        client = await guarded.connect()
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        for acls, code in (
            ([], ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
            ([acl("T WRITE", name="orders")], ErrorCode.NONE),
            (
                [
                    acl("T WRITE", name="orders"),
                    acl("T WRITE", name="ord", prefixed=True, allows=False),
                ],
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            ),
            ([acl("C IDEMPOTENT_WRITE")], ErrorCode.NONE),
        ):
            guarded.use(*acls)
            assert (await client.send(request)).error_code == code
        await client.close()


async def test_the_configuration_of_a_new_topic_is_for_those_who_may_see_it(tmp_path: Path) -> None:
    async with guarded_broker(tmp_path) as guarded:
        client = await guarded.connect()
        for name, rights, code in (
            ("ta", ["T CREATE"], REFUSED),
            ("tb", ["T CREATE", "T DESCRIBE_CONFIGS"], ErrorCode.NONE),
        ):
            guarded.permit(*rights)
            topics = [
                CreatableTopic(name=one, num_partitions=2, replication_factor=1)
                for one in (name, "other")
            ]
            made, other = (
                await client.send(CreateTopicsRequest(topics=topics, timeout_ms=1000))
            ).topics
            assert (made.error_code, made.topic_config_error_code) == (ErrorCode.NONE, code)
            assert (made.num_partitions, bool(made.configs)) == ((-1, False) if code else (2, True))
            assert (other.error_code, other.error_message) == (REFUSED, "Authorization failed.")
        await client.close()


async def test_a_missing_topic_is_created_for_those_who_may_create_it(tmp_path: Path) -> None:
    settings = replace(SETTINGS, auto_create_topics_enable=True)
    async with guarded_broker(tmp_path, settings) as guarded:
        client = await guarded.connect()
        for rights, code in (
            (["T DESCRIBE"], REFUSED),
            (["T DESCRIBE", "C CREATE"], ErrorCode.NONE),
        ):
            guarded.permit(*rights)
            answer = await metadata(client, "tn", allow_auto_topic_creation=True)
            assert answer.topics[0].error_code == code
        await client.close()


# --- The audit log ---


AUDIT = "kafka.authorizer.logger"


def audit_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == AUDIT]


async def test_the_audit_log_has_kafkas_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, AUDIT)
    async with guarded_broker(tmp_path) as guarded:
        client = await guarded.connect()
        await list_offset(client, -1, topic="orders")
        guarded.use(acl("T DESCRIBE", name="orders"))
        await list_offset(client, -1, topic="orders")
        await client.close()
        for _ in range(3):
            await metadata(await guarded.connect(), "a\nb")
    start = f"Principal = {ALICE} is "
    about = "operation = DESCRIBE from host = 127.0.0.1 on resource = Topic:LITERAL:"
    request = "for request = ListOffsets with resourceRefCount = 1 based on rule "
    denied, allowed, *others = audit_lines(caplog)
    assert denied == f"{start}Denied {about}orders {request}DefaultDeny"
    assert allowed == (
        f"{start}Allowed {about}orders {request}MatchingAcl(acl=StandardAcl(resourceType=TOPIC, "
        f"resourceName=orders, patternType=LITERAL, principal={ALICE}, host=*, "
        "operation=DESCRIBE, permissionType=ALLOW))"
    )
    assert all("\n" not in line for line in others)
    assert (guarded.access.allowed, guarded.access.denied) == (1, 4)


async def test_the_audit_log_is_bounded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(access_control, "monotonic_s", lambda: now_s)
    caplog.set_level(logging.INFO, AUDIT)
    async with guarded_broker(tmp_path) as guarded:
        client = await guarded.connect()
        names = [f"n{number}" for number in range(access_control.LINES_MAX + 20)]
        await metadata(client, *names)
        await metadata(client, *names)
        assert len(audit_lines(caplog)) == access_control.LINES_MAX
        for number in range(access_control.PRINCIPALS_MAX):  # the last one is left out
            other = await guarded.connect(f"User:other{number}")
            await metadata(other, "n0")
            await other.close()
        others = audit_lines(caplog)[access_control.LINES_MAX :]
        assert [line.split()[2] for line in others] == [
            f"User:other{number}" for number in range(access_control.PRINCIPALS_MAX - 1)
        ]
        now_s += 1
        await metadata(client, "n0")
        await client.close()
    left_out, line = audit_lines(caplog)[access_control.LINES_MAX + len(others) :]
    assert left_out == f"{21 + len(names)} more decisions, not listed"
    assert "Topic:LITERAL:n0" in line


async def test_long_names_are_in_no_cache_and_in_short_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A client chooses the names of groups and topics that do not exist: also long ones."""
    caplog.set_level(logging.INFO, AUDIT)
    user = f"User:a\n{'b' * 1000}"
    names = [f"x{number}{'g' * 10_000}" for number in range(20)]
    async with guarded_broker(tmp_path) as guarded:
        guarded.use(acl("X WRITE", name="x", prefixed=True), acl("T WRITE", name="orders"))
        for principal in (ALICE, user):
            client = await guarded.connect(principal)
            await client.send(DescribeGroupsRequest(groups=names))
            for _ in range(2):
                answer = await client.send(InitProducerIdRequest(transactional_id=None))
                assert bool(answer.error_code) == (principal == user)
            await client.close()
        for name in names:
            guarded.access.permit((ALICE, "/127.0.0.1", "orders", name))
    authorizer = guarded.access.authorizer
    kept = [*(one[-1] for one in authorizer._cache), *(one[0] for one in authorizer._cache)]
    kept += [text or "" for writes in authorizer.permitted for text in writes]
    assert sum(map(len, kept)) < 5_000
    lines = audit_lines(caplog)
    assert len(lines) > 20
    assert all(len(line) < 1200 and "\n" not in line for line in lines)


@pytest.mark.parametrize(
    ("client_host", "host"),
    [
        ("/127.0.0.1", "127.0.0.1"),
        ("/::1", "0:0:0:0:0:0:0:1"),
        ("/::ffff:10.0.0.7", "10.0.0.7"),
        ("/fe80::1%eth0", "fe80:0:0:0:0:0:0:1"),
        ("", ""),
    ],
)
def test_a_host_is_written_as_java_writes_it(client_host: str, host: str) -> None:
    assert host_of(client_host) == host
