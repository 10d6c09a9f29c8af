"""Settings, the cluster, ACLs, quotas, credentials, reassignments: the questions, the answers."""

import base64
import hmac
from typing import Any

import pytest

from quorumlog.client import Acl, AclFilter, ErrorCode, NewScramCredential
from quorumlog.client import descriptions as about
from quorumlog.client.admin import users
from tests.support.client.fake_admin import MOVED, U, cluster_and_admin
from tests.support.client.fake_cluster import T
from tests.support.client.refusals import refused

E = ErrorCode


async def test_settings_are_changed_one_by_one() -> None:
    async with cluster_and_admin() as (cluster, admin):
        resource = {"error_message": "said", "resource_type": 2, "resource_name": "t"}
        done = {"responses": [resource]}
        no = {"responses": [{**resource, "error_code": E.INVALID_CONFIG}]}
        cluster.offer("IncrementalAlterConfigs", done, done, no, {"responses": []})
        await admin.alter_configs(
            "topic",
            "t",
            {"retention.ms": 5},
            delete=["segment.ms"],
            append={"cleanup.policy": "compact"},
            subtract={"cleanup.policy": "delete"},
            validate_only=True,
        )
        (request,) = cluster.requests()
        assert request.validate_only
        (asked,) = request.resources
        assert (asked.resource_type, asked.resource_name) == (2, "t")
        assert [(one.name, one.config_operation, one.value) for one in asked.configs] == [
            ("retention.ms", 0, "5"),
            ("cleanup.policy", 2, "compact"),
            ("cleanup.policy", 3, "delete"),
            ("segment.ms", 1, None),
        ]
        await admin.alter_configs("broker", "2", {"log.retention.ms": 1})
        assert cluster.seen[-1][0] == 2  # the broker itself
        for text, definite in (("INVALID_CONFIG: t: said", True), ("left out", False)):
            with refused(text, definite=definite):
                await admin.alter_configs("topic", "t", {"retention.ms": "x"})
        with pytest.raises(ValueError, match="no setting is given"):
            await admin.alter_configs("topic", "t")


async def test_a_resource_that_cannot_be_is_refused_at_once() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer("DescribeConfigs", {"results": []})
        wrong: Any = "topicc"
        text = "a resource is one of 'topic', 'broker', 'client_metrics', 'group', not 'topicc'"
        with pytest.raises(ValueError, match=text):
            await admin.describe_configs(wrong, "t")
        with pytest.raises(ValueError, match="a broker is named by its id, not 'first'"):
            await admin.describe_configs("broker", "first")
        text = "broker 9 is not among the live ones: 1, 2"
        with refused(text, definite=True, code=E.BROKER_ID_NOT_REGISTERED):
            await admin.describe_configs("broker", "9")
        assert cluster.seen == []


async def test_what_has_settings_is_listed() -> None:
    async with cluster_and_admin() as (cluster, admin):
        found = [("t", 2), ("1", 4), ("?", 99)]
        resources = [{"resource_name": name, "resource_type": kind} for name, kind in found]
        cluster.offer("ListConfigResources", {"config_resources": resources})
        assert await admin.list_config_resources(["topic", "broker"]) == [
            about.ConfigResource("99", "?"),
            about.ConfigResource("broker", "1"),
            about.ConfigResource("topic", "t"),
        ]
        assert cluster.requests()[0].resource_types == [2, 4]
        with pytest.raises(ValueError, match="'disk' must be one of 'topic', 'broker'"):
            await admin.list_config_resources(["disk"])


def quorum(code: ErrorCode, leader_id: int = -1) -> dict[str, Any]:
    one = {
        "error_code": code,
        "leader_id": leader_id,
        "leader_epoch": 4,
        "high_watermark": 6,
        "current_voters": [{"replica_id": 1, "log_end_offset": 7, "last_fetch_timestamp": 3}],
        "observers": [],
    }
    return {"topics": [{"topic_name": "__cluster_metadata", "partitions": [one]}]}


async def test_the_quorum_is_asked_until_it_has_a_leader() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer("DescribeQuorum", quorum(MOVED), quorum(E.NONE, 2), {"topics": []})
        told = await admin.describe_quorum()
        assert (told.leader_id, told.leader_epoch, told.high_watermark) == (2, 4, 6)
        assert [(one.replica_id, one.log_end_offset) for one in told.voters] == [(1, 7)]
        assert told.observers == ()
        with refused("the answer is empty"):
            await admin.describe_quorum()


async def test_a_refusal_to_unregister_is_raised_and_not_repeated() -> None:
    async with cluster_and_admin() as (cluster, admin):
        no = {"error_code": E.INVALID_REQUEST, "error_message": "in service"}
        cluster.offer("UnregisterBroker", no, {})
        with refused("in service", definite=True):
            await admin.unregister_broker(3)
        await admin.unregister_broker(3)
        assert [request.broker_id for request in cluster.requests()] == [3, 3]


async def test_every_broker_tells_its_log_directories() -> None:
    async with cluster_and_admin() as (cluster, admin):
        log = {"partition_index": 0, "partition_size": 9, "offset_lag": 1}
        one = {"log_dir": "/d", "total_bytes": 100, "usable_bytes": 50}
        topics = [{"name": "t", "partitions": [log]}]
        cluster.offer("DescribeLogDirs", {"results": [{**one, "topics": topics}]})
        told = await admin.describe_log_dirs()
        assert sorted(told) == [1, 2]
        size = about.ReplicaSize(size_bytes=9, offset_lag=1, is_future=False)
        assert told[1]["/d"].replicas == {T: size}
        assert (told[2]["/d"].total_bytes, told[2]["/d"].usable_bytes) == (100, 50)
        assert cluster.requests()[0].topics is None
        assert list(await admin.describe_log_dirs([2])) == [2]


# --- ACLs, quotas, credentials and features ---

READ = Acl(resource_type="topic", resource_name="t", principal="User:a", operation="read")
DENIED = Acl(
    resource_type="transactional_id",
    resource_name="x",
    pattern_type="prefixed",
    principal="User:a",
    host="::1",
    operation="write",
    permission="deny",
)


async def test_acls_are_created_by_their_codes() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer("CreateAcls", {"results": [{}, {}]})
        await admin.create_acls([READ, DENIED])
        [request] = cluster.requests()
        assert [
            (one.resource_type, one.resource_pattern_type, one.operation, one.permission_type)
            for one in request.creations
        ] == [(2, 3, 3, 3), (5, 4, 4, 2)]
        named = [(one.principal, one.host, one.resource_name) for one in request.creations]
        assert named == [("User:a", "*", "t"), ("User:a", "::1", "x")]


def _changed(acl: Acl, **fields: Any) -> Acl:
    return Acl(**{**{name: getattr(acl, name) for name in Acl.__slots__}, **fields})


@pytest.mark.parametrize(
    ("codes", "text", "is_definite"),
    [
        ((0, E.INVALID_REQUEST), "INVALID_REQUEST: .*User:a", False),
        ((E.INVALID_REQUEST, E.INVALID_REQUEST), "INVALID_REQUEST: .*User:a", True),
        ((), "left out", False),
    ],
)
async def test_the_first_acl_that_is_refused_or_left_out_is_raised(
    codes: tuple[int, ...], text: str, is_definite: bool
) -> None:
    async with cluster_and_admin() as (cluster, admin):
        results = [{"error_code": code, "error_message": "no"} for code in codes]
        cluster.offer("CreateAcls", {"results": results})
        with refused(text, definite=is_definite):
            await admin.create_acls([READ, _changed(READ, host="10.0.0.1")])  # one name each


async def test_acls_are_described_and_deleted_by_a_filter() -> None:
    async with cluster_and_admin() as (cluster, admin):
        whose = {"principal": "User:a", "host": "*", "permission_type": 3}
        at = {"resource_name": "t", "pattern_type": 3}
        acls = [{**whose, "operation": operation} for operation in (4, 3)]
        cluster.offer("DescribeAcls", {"resources": [{**at, "resource_type": 99, "acls": acls}]})
        gone = {"matching_acls": [{**whose, **at, "resource_type": 2, "operation": 3}]}
        cluster.offer("DeleteAcls", {"filter_results": [gone, gone]})
        found = await admin.describe_acls(AclFilter(resource_name="t", pattern_type="match"))
        kinds = [(one.resource_type, one.operation) for one in found]
        assert kinds == [("99", "read"), ("99", "write")]  # of a newer broker
        [request] = cluster.requests()
        assert (request.pattern_type_filter, request.resource_type_filter) == (2, 1)
        assert (request.resource_name_filter, request.principal_filter) == ("t", None)
        assert await admin.delete_acls([AclFilter(), AclFilter(host="*")]) == [READ]


async def test_words_that_there_are_not_are_told_with_those_there_are() -> None:
    async with cluster_and_admin() as (cluster, admin):
        with pytest.raises(ValueError, match="operation 'raed' must be one of 'all', 'read'"):
            await admin.describe_acls(AclFilter(operation="raed"))
        with pytest.raises(ValueError, match="pattern type 'match' must be one of"):
            await admin.create_acls([_changed(READ, pattern_type="match")])
        wrong: Any = [AclFilter()]
        with pytest.raises(TypeError, match="must be a list of Acl"):
            await admin.create_acls(wrong)
        with pytest.raises(ValueError, match="mechanism 'PLAIN' must be one of"):
            await admin.alter_user_scram_credentials(deletions=[("a", "PLAIN")])
        with pytest.raises(ValueError, match="no credential is given"):
            await admin.alter_user_scram_credentials()
        wrong = "sideways"
        with pytest.raises(ValueError, match="kind 'sideways' must be one of 'upgrade'"):
            await admin.update_features({"f": 1}, wrong)
        with pytest.raises(ValueError, match="no feature is given"):
            await admin.update_features({})
        with pytest.raises(ValueError, match="values or delete"):
            await admin.alter_client_quotas({"user": "a"})
        assert cluster.requests() == []


async def test_quotas_are_described_by_name_by_default_and_by_any_name() -> None:
    async with cluster_and_admin() as (cluster, admin):
        names = {"user": "a", "client-id": None}
        values = {"producer_byte_rate": 2.0, "consumer_byte_rate": 1.5}
        entity = [{"entity_type": kind, "entity_name": name} for kind, name in names.items()]
        rates = [{"key": key, "value": value} for key, value in values.items()]
        cluster.offer("DescribeClientQuotas", {"entries": [{"entity": entity, "values": rates}]})
        found = await admin.describe_client_quotas(names, any_of=["ip"], strict=True)
        assert found == [about.ClientQuota(entity=names, values=values)]
        [request] = cluster.requests()
        assert request.strict
        asked = [(one.entity_type, one.match_type, one.match) for one in request.components]
        assert asked == [("user", 0, "a"), ("client-id", 1, None), ("ip", 2, None)]


async def test_quotas_of_one_entity_are_set_and_deleted() -> None:
    async with cluster_and_admin() as (cluster, admin):
        no = {"error_code": E.INVALID_REQUEST, "error_message": "no"}
        cluster.offer("AlterClientQuotas", {"entries": [{}]}, {"entries": [no]}, {})
        await admin.alter_client_quotas({"user": None}, {"k": 3}, delete=["l"])
        [request] = cluster.requests()
        [asked] = request.entries
        changes = [(one.key, one.value, one.remove) for one in asked.ops]
        assert changes == [("k", 3.0, False), ("l", 0.0, True)]
        assert asked.entity[0].entity_name is None
        for text, definite in ((r"user \(default\): no", True), ("left out", False)):
            with refused(text, definite=definite):
                await admin.alter_client_quotas({"user": None}, {"k": 3})


async def test_a_password_is_salted_as_rfc_7677_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    message = (
        b"n=user,r=rOprNGfwEbeRWgbNEkqO,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,"
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    monkeypatch.setattr(users, "random_bytes", lambda _: salt)
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer("AlterUserScramCredentials", {"results": [{"user": "user"}]})
        new = NewScramCredential(user="user", password="pencil")
        assert "pencil" not in repr(new)
        await admin.alter_user_scram_credentials([new])
        [request] = cluster.requests()
        [one] = request.upsertions
        assert (one.mechanism, one.iterations, one.salt) == (1, 4096, salt)
        server_key = hmac.digest(one.salted_password, b"Server Key", "sha256")
        signature = base64.b64encode(hmac.digest(server_key, message, "sha256"))
        assert signature == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


async def test_users_without_credentials_are_described_as_such() -> None:
    async with cluster_and_admin() as (cluster, admin):
        with_one = {"user": "b", "credential_infos": [{"mechanism": 2, "iterations": 8192}]}
        without = {"user": "a", "error_code": int(E.RESOURCE_NOT_FOUND)}
        cluster.offer("DescribeUserScramCredentials", {"results": [with_one, without]})
        assert await admin.describe_user_scram_credentials(["a", "b"]) == {
            "a": (),
            "b": (about.ScramCredential(mechanism="SCRAM-SHA-512", iterations=8192),),
        }
        assert [one.name for one in cluster.requests()[0].users] == ["a", "b"]


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_features_are_updated_and_a_refusal_is_raised(version: int) -> None:
    async with cluster_and_admin() as (cluster, admin):
        no = {"error_code": int(E.INVALID_UPDATE_VERSION), "error_message": "no"}
        refusal = no if version == 2 else {"results": [{**no, "feature": "f"}]}
        cluster.offer("UpdateFeatures", {}, refusal, version=version)
        await admin.update_features({"f": 2}, "unsafe_downgrade")
        with refused("no", code=E.INVALID_UPDATE_VERSION):
            await admin.update_features({"f": 2}, validate_only=version > 0)
        [down, _] = cluster.requests()
        [update] = down.feature_updates
        assert (update.feature, update.max_version_level) == ("f", 2)
        assert update.allow_downgrade if version == 0 else update.upgrade_type == 3


async def test_a_cluster_without_features_has_none() -> None:
    async with cluster_and_admin() as (_, admin):
        assert await admin.describe_features() == dict[str, about.FeatureDescription]()


# --- reassignments ---


def reassigned(*codes: ErrorCode) -> dict[str, Any]:
    partitions = [
        {"partition_index": index, "error_code": code} for index, code in enumerate(codes)
    ]
    return {"responses": [{"name": "t", "partitions": partitions}]}


async def test_replicas_are_asked_for_and_none_cancels() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer("AlterPartitionReassignments", reassigned(E.NONE, E.NONE))
        await admin.alter_partition_reassignments({T: [2, 3], U: None})
        [request] = cluster.requests()
        [topic] = request.topics
        asked = [(one.partition_index, one.replicas) for one in topic.partitions]
        assert asked == [(0, [2, 3]), (1, None)]


@pytest.mark.parametrize(
    ("codes", "text", "is_definite"),
    [
        ((E.NONE, E.INVALID_REPLICA_ASSIGNMENT), "^INVALID_REPLICA_ASSIGNMENT", False),
        (
            (E.NO_REASSIGNMENT_IN_PROGRESS, E.INVALID_REPLICA_ASSIGNMENT),
            "^NO_REASSIGNMENT_IN_PROGRESS",
            True,
        ),
        ((E.NONE,), "left out", False),  # it may be moving
    ],
)
async def test_the_first_reassignment_that_is_refused_or_left_out_is_raised(
    codes: tuple[ErrorCode, ...], text: str, is_definite: bool
) -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer("AlterPartitionReassignments", reassigned(*codes))
        with refused(text, definite=is_definite):
            await admin.alter_partition_reassignments({T: [2], U: [9]})
        wrong: Any = [T]
        with pytest.raises(TypeError, match="a dict of TopicPartition"):
            await admin.alter_partition_reassignments(wrong)


async def test_those_that_move_are_listed() -> None:
    async with cluster_and_admin() as (cluster, admin):
        moves = {"replicas": [2, 1], "adding_replicas": [2], "removing_replicas": [1]}
        topic = {"name": "t", "partitions": [{"partition_index": 1, **moves}]}
        cluster.offer("ListPartitionReassignments", {"topics": [topic]})
        moving = about.PartitionReassignment(
            replicas=(2, 1), adding_replicas=(2,), removing_replicas=(1,)
        )
        assert await admin.list_partition_reassignments() == {U: moving}
        assert await admin.list_partition_reassignments([T, U]) == {U: moving}
        first, second = cluster.requests()
        assert first.topics is None
        assert [(one.name, one.partition_indexes) for one in second.topics] == [("t", [0, 1])]
