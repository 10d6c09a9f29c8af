"""Changes of the cluster's metadata over a connection: brokers, ACLs, quotas."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorumlog.metadata_quorum.controller_client import ControllerUnavailable
from quorumlog.metadata_quorum.image import ClusterDelta
from quorumlog.metadata_quorum.image.scram import credential_of
from quorumlog.wire.codec.error_codes import ErrorCode
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
from quorumlog.wire.codec.messages.unregister_broker import UnregisterBrokerRequest
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.groups.asking import asking, versions
from tests.unit.broker.test_server_elections import OTHER, register_other


async def test_a_broker_is_unregistered_or_the_answer_says_why_not(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        request = UnregisterBrokerRequest(broker_id=OTHER)
        response = await connection.send(request)
        assert response.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
        register_other(broker)
        response = await connection.send(request)
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert "in service" in str(response.error_message)
        brokers = dict(broker.controller.image.brokers)
        brokers[OTHER] = replace(brokers[OTHER], fenced=True)
        broker.controller.publish(ClusterDelta(brokers=frozenset({OTHER})), brokers=brokers)
        response = await connection.send(request)
        assert (response.error_code, response.error_message) == (0, None)
        assert OTHER not in broker.context.image.brokers


async def test_without_a_controller_the_outcome_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(tmp_path) as (broker, connection):

        async def silent(change: object) -> object:
            raise ControllerUnavailable("none")

        monkeypatch.setattr(broker.controller, "change_cluster", silent)
        response = await connection.send(UnregisterBrokerRequest(broker_id=OTHER))
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
        assert [
            (
                one.resource_type,
                one.resource_name,
                one.pattern_type,
                [a.operation for a in one.acls],
            )
            for one in described.resources
        ] == [(2, "s", 3, [3]), (2, "t", 3, [3, 4])]
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
        for added in (names, ["controller_mutation_rate"]):
            request = RequestEntryData(
                entity=[
                    RequestEntityData(entity_type="user", entity_name="ann"),
                    RequestEntityData(entity_type="client-id", entity_name="c"),
                ],
                ops=[OpData(key=name, value=1.0) for name in added],
            )
            altered = await connection.send(AlterClientQuotasRequest(entries=[request]))
            [answer] = altered.entries
            assert [one.entity_type for one in answer.entity] == ["client-id", "user"]
            [described] = (await connection.send(DescribeClientQuotasRequest())).entries or []
            assert [one.entity_type for one in described.entity] == ["client-id", "user"]
            assert [one.key.split("_")[0] for one in described.values] == (
                ["consumer", "request", "producer"]
                if added is names
                else ["producer", "consumer", "controller", "request"]
            )


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
        assert await alter(AlterUserScramCredentialsRequest(upsertions=some)) == {
            "ann": "NONE",
            "bob": "UNSUPPORTED_SASL_MECHANISM",
        }
        assert await describe() == {"ann": [(1, 4096), (2, 5000)]}
        assert await describe("ann", "bob", "bob") == {
            "ann": [(1, 4096), (2, 5000)],
            "bob": "DUPLICATE_RESOURCE",
        }
        assert await describe("bob") == {"bob": "RESOURCE_NOT_FOUND"}
        stored = broker.context.image.access.credentials["ann", 1]
        assert stored == credential_of(1, iterations=4096, salt=b"s", salted_password=b"p")
        gone = ScramCredentialDeletion(name="ann", mechanism=1)
        assert await alter(AlterUserScramCredentialsRequest(deletions=[gone])) == {"ann": "NONE"}
        assert await describe() == {"ann": [(2, 5000)]}
