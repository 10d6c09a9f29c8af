"""Changes of the cluster's metadata over a connection: brokers, ACLs, quotas, features, voters."""

from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.responses.controller_answers import MESSAGE_MAX
from quorumlog.broker.responses.features import FEATURES, KRAFT_VERSION
from quorumlog.broker.responses.java_maps import entity_hash, in_map_order, names_in_map_order
from quorumlog.metadata_quorum.controller_client import NewVoter, VoterChangeResult
from quorumlog.metadata_quorum.image import ClusterDelta
from quorumlog.metadata_quorum.image.features import METADATA_FEATURE, SUPPORTED
from quorumlog.metadata_quorum.image.scram import credential_of
from quorumlog.storage.io.checkpoints import uuid_to_text
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Offset
from quorumlog.wire.codec.messages.add_raft_voter import AddRaftVoterRequest, Listener
from quorumlog.wire.codec.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    OpData,
    RequestEntityData,
    RequestEntryData,
)
from quorumlog.wire.codec.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from quorumlog.wire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from quorumlog.wire.codec.messages.create_acls import AclCreation, CreateAclsRequest
from quorumlog.wire.codec.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from quorumlog.wire.codec.messages.describe_acls import DescribeAclsRequest
from quorumlog.wire.codec.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
)
from quorumlog.wire.codec.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from quorumlog.wire.codec.messages.remove_raft_voter import RemoveRaftVoterRequest
from quorumlog.wire.codec.messages.unregister_broker import UnregisterBrokerRequest
from quorumlog.wire.codec.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.broker.requests import lose_controller
from tests.support.groups import single_broker
from tests.support.groups.asking import asking, versions
from tests.unit.broker.test_server_elections import OTHER, register_other


async def test_a_broker_is_unregistered_or_the_answer_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(tmp_path) as (broker, connection):
        request = UnregisterBrokerRequest(broker_id=OTHER)
        response = await connection.send(request)
        assert response.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
        register_other(broker)
        response = await connection.send(request)
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert "in service" in str(response.error_message)
        register_other(broker, fenced=True)
        response = await connection.send(request)
        assert (response.error_code, response.error_message) == (0, None)
        assert OTHER not in broker.context.image.brokers
        lose_controller(monkeypatch, broker)
        response = await connection.send(request)
        assert response.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "may be unregistered" in str(response.error_message)


def creation(name: str, operation: int = 3) -> AclCreation:
    return AclCreation(
        resource_type=2,
        resource_name=name,
        principal="User:ann",
        host="*",
        operation=operation,
        permission_type=3,
    )


EVERY_ACL: dict[str, Any] = {
    "resource_type_filter": 1,
    "pattern_type_filter": 1,
    "operation": 1,
    "permission_type": 1,
}


@pytest.mark.parametrize("version", versions(30))
async def test_acls_are_created_described_and_deleted(tmp_path: Path, version: int) -> None:
    async with asking(tmp_path) as (_, connection):
        creations = [creation("t"), creation("t", 4), creation("s"), creation("s", 1)]
        created = await connection.send(CreateAclsRequest(creations=creations), version=version)
        assert [one.error_code for one in created.results] == [0, 0, 0, ErrorCode.INVALID_REQUEST]
        assert created.results[3].error_message == "Invalid operation 1"
        described = await connection.send(DescribeAclsRequest(**EVERY_ACL), version=version)
        kinds = [(one.resource_type, one.resource_name) for one in described.resources]
        assert kinds == [(2, "s"), (2, "t")]
        assert [one.pattern_type for one in described.resources] == [3, 3]
        assert [[a.operation for a in one.acls] for one in described.resources] == [[3], [3, 4]]
        wanted = DeleteAclsFilter(**{**EVERY_ACL, "resource_name_filter": "t"})
        wrong = DeleteAclsFilter(**{**EVERY_ACL, "operation": 0})
        deleted = await connection.send(DeleteAclsRequest(filters=[wanted, wrong]), version=version)
        done, refused = deleted.filter_results
        gone = [(one.error_code, one.resource_name, one.operation) for one in done.matching_acls]
        assert gone == [(0, "t", 3), (0, "t", 4)]
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        left = await connection.send(DescribeAclsRequest(**EVERY_ACL), version=version)
        assert [one.resource_name for one in left.resources] == ["s"]
        unknown = DescribeAclsRequest(**{**EVERY_ACL, "permission_type": 9})
        refusal = await connection.send(unknown, version=version)
        assert refusal.error_code == ErrorCode.INVALID_REQUEST


def entry(name: str | None, value: float, *, remove: bool = False) -> RequestEntryData:
    entity = [RequestEntityData(entity_type="user", entity_name=name)]
    op = OpData(key="producer_byte_rate", value=value, remove=remove)
    return RequestEntryData(entity=entity, ops=[op])


async def quotas(
    connection: KafkaConnection, *components: tuple[str, int, str | None], strict: bool = False
) -> Any:
    request = DescribeClientQuotasRequest(
        components=[
            ComponentData(entity_type=kind, match_type=match, match=name)
            for kind, match, name in components
        ],
        strict=strict,
    )
    response = await connection.send(request)
    if response.entries is None:
        return ErrorCode(response.error_code).name, response.error_message
    return {
        tuple((one.entity_type, one.entity_name) for one in entry.entity): {
            one.key: one.value for one in entry.values
        }
        for entry in response.entries
    }


async def test_quotas_are_altered_and_described(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        for version in versions(49):
            request = AlterClientQuotasRequest(
                entries=[entry("ann", 5.0), entry(None, 6.0), entry("bob", -1.0)]
            )
            altered = await connection.send(request, version=version)
            assert {one.entity[0].entity_name: one.error_code for one in altered.entries} == {
                "ann": 0,
                None: 0,
                "bob": ErrorCode.INVALID_REQUEST,
            }
        ann, default = (("user", "ann"),), (("user", None),)
        rates = {ann: {"producer_byte_rate": 5.0}, default: {"producer_byte_rate": 6.0}}
        assert await quotas(connection) == rates
        assert await quotas(connection, strict=True) == {}
        assert await quotas(connection, ("user", 0, "ann")) == {ann: rates[ann]}
        assert await quotas(connection, ("user", 1, None)) == {default: rates[default]}
        assert await quotas(connection, ("user", 2, None), strict=True) == rates
        assert await quotas(connection, ("user", 2, None), ("client-id", 2, None)) == {}
        for wrong, message in (
            ([("host", 2, None)], "Unsupported entity type host"),
            ([("", 2, None)], "Invalid empty entity type"),
            ([("user", 2, None), ("user", 2, None)], "twice"),
            ([("user", 2, None), ("ip", 2, None)], "combination"),
            ([("user", 7, None)], "Unknown match type 7"),
            ([("user", 0, None)], "A name goes with match type 0"),
            ([("user", 1, "ann")], "A name goes with match type 0"),
        ):
            code, said = await quotas(connection, *wrong)
            assert code == "INVALID_REQUEST"
            assert message in said
        await connection.send(AlterClientQuotasRequest(entries=[entry("ann", 0, remove=True)]))
        assert await quotas(connection) == {default: rates[default]}


async def test_answers_about_quotas_are_in_kafkas_order(tmp_path: Path) -> None:
    names = ["request_percentage", "producer_byte_rate", "consumer_byte_rate"]
    async with asking(tmp_path) as (_, connection):
        for added, order in (
            (names, ["consumer", "request", "producer"]),
            (["controller_mutation_rate"], ["producer", "consumer", "controller", "request"]),
        ):
            pair = [("user", "ann"), ("client-id", "c")]
            request = RequestEntryData(
                entity=[RequestEntityData(entity_type=a, entity_name=b) for a, b in pair],
                ops=[OpData(key=name, value=1.0) for name in added],
            )
            altered = await connection.send(AlterClientQuotasRequest(entries=[request]))
            [answer] = altered.entries
            assert [one.entity_type for one in answer.entity] == ["client-id", "user"]
            [described] = (await connection.send(DescribeClientQuotasRequest())).entries or []
            assert [one.entity_type for one in described.entity] == ["client-id", "user"]
            assert [one.key.split("_")[0] for one in described.values] == order


def upsertion(name: str, mechanism: int = 1, iterations: int = 4096) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=b"s", salted_password=b"p"
    )


async def test_credentials_are_altered_and_described_without_their_keys(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):

        async def alter(request: AlterUserScramCredentialsRequest) -> dict[str, str]:
            response = await connection.send(request)
            return {one.user: ErrorCode(one.error_code).name for one in response.results}

        async def describe(*users: str) -> dict[str, Any]:
            request = DescribeUserScramCredentialsRequest(
                users=[UserName(name=user) for user in users] or None
            )
            response = await connection.send(request)
            return {
                one.user: [(info.mechanism, info.iterations) for info in one.credential_infos]
                if one.error_code == ErrorCode.NONE
                else ErrorCode(one.error_code).name
                for one in response.results
            }

        some = [upsertion("ann"), upsertion("ann", 2, 5000), upsertion("bob", 7)]
        altered = await alter(AlterUserScramCredentialsRequest(upsertions=some))
        assert altered == {"ann": "NONE", "bob": "UNSUPPORTED_SASL_MECHANISM"}
        ann = {"ann": [(1, 4096), (2, 5000)]}
        assert await describe() == ann
        assert await describe("ann", "bob", "bob") == {**ann, "bob": "DUPLICATE_RESOURCE"}
        assert await describe("bob") == {"bob": "RESOURCE_NOT_FOUND"}
        stored = broker.context.image.access.credentials["ann", 1]
        assert stored == credential_of(1, iterations=4096, salt=b"s", salted_password=b"p")
        gone = ScramCredentialDeletion(name="ann", mechanism=1)
        assert await alter(AlterUserScramCredentialsRequest(deletions=[gone])) == {"ann": "NONE"}
        assert await describe() == {"ann": [(2, 5000)]}


ASK = ApiVersionsRequest(client_software_name="test-client.2", client_software_version="1.0-rc1")


def levels(answer: ApiVersionsResponse) -> dict[str, tuple[int, int]]:
    return {
        one.name: (one.min_version_level, one.max_version_level)
        for one in answer.finalized_features
    }


async def test_a_level_is_raised_and_lowered_over_a_connection(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        for version in versions(57):
            up = FeatureUpdateKey(feature=METADATA_FEATURE, max_version_level=2)
            down = FeatureUpdateKey(
                feature=METADATA_FEATURE, max_version_level=1, allow_downgrade=True, upgrade_type=2
            )
            for wanted, level in ((up, 2), (down, 1)):
                request = UpdateFeaturesRequest(feature_updates=[wanted])
                response = await connection.send(request, version=version)
                assert (response.error_code, response.error_message) == (0, None)
                answer = await connection.send(ASK, version=4)
                assert levels(answer)[METADATA_FEATURE] == (level, level)
            for name, level in (("share.version", 1), ("metadata.version", 28)):
                fixed = FeatureUpdateKey(feature=name, max_version_level=level)
                request = UpdateFeaturesRequest(feature_updates=[fixed])
                response = await connection.send(request, version=version)
                assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
                named = [(one.feature, one.error_code) for one in response.results]
                assert named == ([(name, response.error_code)] if version < 2 else [])


async def test_features_are_named_at_the_levels_that_are_true_here(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        broker.controller.publish(ClusterDelta(), end_offset=Offset(7))
        for version in (0, 1, 2):
            answer = await connection.send(ASK, version=version)
            assert answer.supported_features == []
            assert answer.finalized_features == []
        for version in (3, 4):
            answer = await connection.send(ASK, version=version)
            found = answer.supported_features
            ranges = {one.name: (one.min_version, one.max_version) for one in found}
            least = 0 if version == 4 else 1  # older clients take no range that begins at 0
            assert ranges == {
                "eligible.leader.replicas.version": (1, 1),
                "group.version": (least, 1),
                "kraft.version": (least, 1),
                "metadata.version": (27, 27),
                "transaction.version": (least, 2),
                METADATA_FEATURE: (1, 7),
            }
            assert levels(answer) == {
                "eligible.leader.replicas.version": (1, 1),
                "metadata.version": (27, 27),
                METADATA_FEATURE: (1, 1),
            }
            assert answer.finalized_features_epoch == 6


def test_nothing_is_promised_that_makes_a_client_choose_a_protocol_that_is_not_there() -> None:
    names = {feature.name for feature in FEATURES} | {*SUPPORTED}
    assert names.isdisjoint({"share.version", "streams.version"})


async def test_a_client_that_says_who_it_is_in_another_form_is_refused(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        for text in ("", "a b", "-a", "a.", "é", "a\n", "x" * 30_000 + "-"):
            for name, software_version in ((text, "1"), ("test", text)):
                request = ApiVersionsRequest(
                    client_software_name=name, client_software_version=software_version
                )
                for version in (3, 4):
                    refused = await connection.send(request, version=version)
                    assert (refused.error_code, refused.api_keys) == (ErrorCode.INVALID_REQUEST, [])
                older = await connection.send(request, version=2)
                assert older.error_code == ErrorCode.NONE


DIRECTORY = bytes(range(16))


def addition(host: str = "there", **fields: object) -> AddRaftVoterRequest:
    listeners = [Listener(name="CONTROLLER", host=host, port=9093), Listener(name="B", host="b")]
    given: dict[str, object] = {"voter_id": 4, "voter_directory_id": DIRECTORY}
    return AddRaftVoterRequest(**{**given, "listeners": listeners, **fields})  # type: ignore[arg-type]


def removal(cluster_id: str | None = None) -> RemoveRaftVoterRequest:
    return RemoveRaftVoterRequest(cluster_id=cluster_id, voter_id=4, voter_directory_id=DIRECTORY)


async def test_the_leader_is_asked_and_its_refusal_or_silence_is_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(tmp_path) as (broker, connection):
        seen = broker.controller.voter_changes
        text = uuid_to_text(DIRECTORY)
        for version in versions(80):
            for host, address in (("there", "there:9093"), ("::1", "[::1]:9093")):
                request = addition(host, cluster_id="test", ack_when_committed=version == 0)
                response = await connection.send(request, version=version)
                assert (response.error_code, response.error_message) == (0, None)
                voter = NewVoter(voter_id=BrokerId(4), directory_id=text, address=address)
                assert seen[-1] == (voter, version == 0)
        removed = await connection.send(removal(), version=0)
        assert (removed.error_code, seen[-1]) == (0, (BrokerId(4), text))
        broker.controller.voter_change_result = VoterChangeResult(
            error_code=ErrorCode.DUPLICATE_VOTER, error_message="x" * 10_000
        )
        added = await connection.send(addition(), version=1)
        assert added.error_code == ErrorCode.DUPLICATE_VOTER
        assert len(str(added.error_message)) < MESSAGE_MAX + 10
        removed = await connection.send(removal(), version=0)
        assert removed.error_code == ErrorCode.DUPLICATE_VOTER
        lose_controller(monkeypatch, broker)
        for lost in (
            await connection.send(addition(), version=1),
            await connection.send(removal(), version=0),
            await connection.send(upgrade(1), version=2),
        ):
            assert lost.error_code == ErrorCode.REQUEST_TIMED_OUT
            assert "may have" in str(lost.error_message)


async def test_a_request_of_another_cluster_or_no_address_goes_no_further(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        added = await connection.send(addition(cluster_id="other"), version=1)
        removed = await connection.send(removal("other"), version=0)
        homeless = await connection.send(addition(listeners=[]), version=1)
        assert added.error_code == removed.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
        assert homeless.error_code == ErrorCode.INVALID_REQUEST
        assert broker.controller.voter_changes == []


# --- kraft.version ---


def upgrade(level: int, *others: str, validate_only: bool = False) -> UpdateFeaturesRequest:
    updates = [FeatureUpdateKey(feature=KRAFT_VERSION, max_version_level=level, upgrade_type=1)]
    updates += [
        FeatureUpdateKey(feature=name, max_version_level=2, upgrade_type=1) for name in others
    ]
    return UpdateFeaturesRequest(feature_updates=updates, validate_only=validate_only)


async def test_kraft_version_is_raised_by_the_leader_and_shown(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        answer = await connection.send(ASK, version=4)
        assert KRAFT_VERSION not in levels(answer)  # 0 is "off"
        [supported] = [one for one in answer.supported_features if one.name == KRAFT_VERSION]
        assert (supported.min_version, supported.max_version) == (0, 1)
        response = await connection.send(upgrade(1, validate_only=True), version=2)
        assert (response.error_code, broker.controller.quorum_level) == (0, 0)
        response = await connection.send(upgrade(1), version=2)
        assert (response.error_code, broker.controller.quorum_level) == (0, 1)
        answer = await connection.send(ASK, version=4)
        assert levels(answer)[KRAFT_VERSION] == (1, 1)


@pytest.mark.parametrize("validate_only", [True, False])
async def test_kraft_version_waits_for_brokers_that_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validate_only: bool
) -> None:
    monkeypatch.setattr(single_broker, "ANNOUNCED", {METADATA_FEATURE: (1, 3)})
    async with asking(tmp_path) as (broker, connection):
        response = await connection.send(upgrade(1, validate_only=validate_only), version=2)
        assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert "does not support kraft.version 1" in str(response.error_message)
        assert broker.controller.quorum_level == 0


async def test_kraft_version_never_falls_has_an_end_and_is_changed_alone(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        for version in (1, 2):
            response = await connection.send(upgrade(1, METADATA_FEATURE), version=version)
            assert response.error_code == ErrorCode.INVALID_REQUEST
        assert (broker.controller.quorum_level, broker.context.image.features) == (0, {})
        broker.controller.quorum_level = 1
        for level in (-1, 0, 2):
            response = await connection.send(upgrade(level), version=2)
            assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
            assert broker.controller.quorum_level == 1


@pytest.mark.parametrize(
    ("names", "buckets", "expected"),
    [
        ("user client-id ip", 16, "ip client-id user"),
        ("user client-id", 2, "client-id user"),
        (
            "ann bob carl dora emil fay gus hal ina joe kim leo max",  # more than 12: 32 buckets
            16,
            "ann joe emil gus max kim hal bob dora carl leo ina fay",
        ),
        (
            "consumer_byte_rate controller_mutation_rate producer_byte_rate request_percentage",
            0,
            "producer_byte_rate consumer_byte_rate controller_mutation_rate request_percentage",
        ),
        (
            "consumer_byte_rate controller_mutation_rate request_percentage",
            0,
            "consumer_byte_rate controller_mutation_rate request_percentage",
        ),
        ("", 0, ""),
    ],
)
def test_names_are_in_the_order_of_a_map(names: str, buckets: int, expected: str) -> None:
    assert names_in_map_order(names.split(), buckets=buckets) == expected.split()


def test_a_map_grows_with_its_keys() -> None:
    keys = [f"key-{number}" for number in range(40)]
    order = [int(key[4:]) for key in names_in_map_order(keys, buckets=0)]
    expected = "18 17 39 19 14 36 13 35 16 38 15 37 1 10 32 0 31 12 34 11"
    expected += " 33 5 4 3 30 2 9 8 7 6 29 28 25 24 27 26 21 20 23 22"
    assert order == [int(number) for number in expected.split()]


def test_entities_have_the_hash_of_a_map_in_an_object() -> None:
    ann, default, both = [("user", "ann")], [("user", None)], [("user", "ann"), ("client-id", "c")]
    hashes = [entity_hash(one) for one in (ann, default, both, [("ip", "10.0.0.1")])]
    assert [value & 0xFFFFFFFF for value in hashes] == [
        value & 0xFFFFFFFF for value in (3641929, 3599338, -1900495737, 511551392)
    ]
    users = [(("user", f"u{number}"),) for number in range(14)]
    order = [users.index(one) for one in in_map_order(users, hash_of=entity_hash)]
    assert order == [1, 3, 2, 4, 10, 11, 12, 13, 8, 9, 0, 5, 7, 6]
