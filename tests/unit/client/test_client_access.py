"""ACLs, quotas, credentials and features: what the administrator asks, and what it answers."""

import base64
import hmac
from typing import Any

import pytest

from quorumlog.client import Acl, AclFilter, ErrorCode, KafkaError, NewScramCredential
from quorumlog.client.admin import users
from quorumlog.client.descriptions import ClientQuota, FeatureDescription, ScramCredential
from quorumlog.wire.codec.messages import alter_client_quotas as alter_quotas_
from quorumlog.wire.codec.messages import alter_user_scram_credentials as alter_users_
from quorumlog.wire.codec.messages import create_acls as create_
from quorumlog.wire.codec.messages import delete_acls as delete_
from quorumlog.wire.codec.messages import describe_acls as describe_
from quorumlog.wire.codec.messages import describe_client_quotas as quotas_
from quorumlog.wire.codec.messages import describe_user_scram_credentials as users_
from quorumlog.wire.codec.messages import update_features as update_
from tests.support.client.fake_admin import cluster_and_admin

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
REFUSED = int(ErrorCode.INVALID_REQUEST)


async def test_acls_are_created_by_their_codes() -> None:
    async with cluster_and_admin() as (cluster, admin):
        done = create_.AclCreationResult(error_code=0)
        cluster.offer(create_.CreateAclsRequest, create_.CreateAclsResponse(results=[done, done]))
        await admin.create_acls([READ, DENIED])
        [request] = cluster.requests()
        assert [
            (one.resource_type, one.resource_pattern_type, one.operation, one.permission_type)
            for one in request.creations
        ] == [(2, 3, 3, 3), (5, 4, 4, 2)]
        assert [(one.principal, one.host, one.resource_name) for one in request.creations] == [
            ("User:a", "*", "t"),
            ("User:a", "::1", "x"),
        ]


@pytest.mark.parametrize(
    ("codes", "is_definite"), [((0, REFUSED), False), ((REFUSED, REFUSED), True)]
)
async def test_the_first_acl_that_is_refused_is_raised(
    codes: tuple[int, ...], is_definite: bool
) -> None:
    async with cluster_and_admin() as (cluster, admin):
        results = [create_.AclCreationResult(error_code=code, error_message="no") for code in codes]
        cluster.offer(create_.CreateAclsRequest, create_.CreateAclsResponse(results=results))
        here, elsewhere = READ, Acl(**{**_fields(READ), "host": "10.0.0.1"})  # one name each
        with pytest.raises(KafkaError, match="User:a") as caught:
            await admin.create_acls([here, elsewhere])
        assert (caught.value.code, caught.value.definite) == (REFUSED, is_definite)


async def test_an_acl_that_is_left_out_of_the_answer_may_be_there() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer(create_.CreateAclsRequest, create_.CreateAclsResponse(results=[]))
        with pytest.raises(KafkaError, match="left out") as caught:
            await admin.create_acls([READ])
        assert not caught.value.definite


def _fields(acl: Acl) -> dict[str, Any]:
    return {name: getattr(acl, name) for name in Acl.__slots__}


async def test_acls_are_described_and_deleted_by_a_filter() -> None:
    async with cluster_and_admin() as (cluster, admin):
        described = describe_.DescribeAclsResource(
            resource_type=99,
            resource_name="t",
            pattern_type=3,
            acls=[
                describe_.AclDescription(
                    principal="User:a", host="*", operation=o, permission_type=3
                )
                for o in (4, 3)
            ],
        )
        cluster.offer(
            describe_.DescribeAclsRequest, describe_.DescribeAclsResponse(resources=[described])
        )
        gone = delete_.DeleteAclsMatchingAcl(
            resource_type=2,
            resource_name="t",
            pattern_type=3,
            principal="User:a",
            host="*",
            operation=3,
            permission_type=3,
        )
        result = delete_.DeleteAclsFilterResult(matching_acls=[gone])
        cluster.offer(
            delete_.DeleteAclsRequest, delete_.DeleteAclsResponse(filter_results=[result, result])
        )
        found = await admin.describe_acls(AclFilter(resource_name="t", pattern_type="match"))
        assert [(one.resource_type, one.operation) for one in found] == [
            ("99", "read"),  # of a newer broker
            ("99", "write"),
        ]
        [request] = cluster.requests()
        assert (request.pattern_type_filter, request.resource_type_filter) == (2, 1)
        assert (request.resource_name_filter, request.principal_filter) == ("t", None)
        assert await admin.delete_acls([AclFilter(), AclFilter(host="*")]) == [READ]


async def test_words_that_there_are_not_are_told_with_those_there_are() -> None:
    async with cluster_and_admin() as (cluster, admin):
        with pytest.raises(ValueError, match="operation 'raed' must be one of 'all', 'read'"):
            await admin.describe_acls(AclFilter(operation="raed"))
        with pytest.raises(ValueError, match="pattern type 'match' must be one of"):
            await admin.create_acls([Acl(**{**_fields(READ), "pattern_type": "match"})])
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
        entry = quotas_.EntryData(
            entity=[
                quotas_.EntityData(entity_type="user", entity_name="a"),
                quotas_.EntityData(entity_type="client-id", entity_name=None),
            ],
            values=[
                quotas_.ValueData(key="producer_byte_rate", value=2.0),
                quotas_.ValueData(key="consumer_byte_rate", value=1.5),
            ],
        )
        cluster.offer(
            quotas_.DescribeClientQuotasRequest,
            quotas_.DescribeClientQuotasResponse(entries=[entry]),
        )
        found = await admin.describe_client_quotas(
            {"user": "a", "client-id": None}, any_of=["ip"], strict=True
        )
        values = {"consumer_byte_rate": 1.5, "producer_byte_rate": 2.0}
        assert found == [ClientQuota(entity={"client-id": None, "user": "a"}, values=values)]
        [request] = cluster.requests()
        assert request.strict
        assert [(one.entity_type, one.match_type, one.match) for one in request.components] == [
            ("user", 0, "a"),
            ("client-id", 1, None),
            ("ip", 2, None),
        ]


async def test_quotas_of_one_entity_are_set_and_deleted() -> None:
    async with cluster_and_admin() as (cluster, admin):
        entry = alter_quotas_.ResponseEntryData()
        cluster.offer(
            alter_quotas_.AlterClientQuotasRequest,
            alter_quotas_.AlterClientQuotasResponse(entries=[entry]),
            alter_quotas_.AlterClientQuotasResponse(
                entries=[alter_quotas_.ResponseEntryData(error_code=REFUSED, error_message="no")]
            ),
            alter_quotas_.AlterClientQuotasResponse(),
        )
        await admin.alter_client_quotas({"user": None}, {"k": 3}, delete=["l"])
        [request] = cluster.requests()
        [asked] = request.entries
        assert [(one.key, one.value, one.remove) for one in asked.ops] == [
            ("k", 3.0, False),
            ("l", 0.0, True),
        ]
        assert asked.entity[0].entity_name is None
        with pytest.raises(KafkaError, match=r"user \(default\): no") as caught:
            await admin.alter_client_quotas({"user": None}, {"k": 3})
        assert caught.value.definite
        with pytest.raises(KafkaError, match="left out") as caught:
            await admin.alter_client_quotas({"user": None}, {"k": 3})
        assert not caught.value.definite


async def test_a_password_is_salted_as_rfc_7677_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    message = (
        b"n=user,r=rOprNGfwEbeRWgbNEkqO,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,"
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    monkeypatch.setattr(users, "random_bytes", lambda _: salt)
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer(
            alter_users_.AlterUserScramCredentialsRequest,
            alter_users_.AlterUserScramCredentialsResponse(
                results=[alter_users_.AlterUserScramCredentialsResult(user="user")]
            ),
        )
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
        info = users_.CredentialInfo(mechanism=2, iterations=8192)
        results = [
            users_.DescribeUserScramCredentialsResult(user="b", credential_infos=[info]),
            users_.DescribeUserScramCredentialsResult(
                user="a", error_code=int(ErrorCode.RESOURCE_NOT_FOUND)
            ),
        ]
        cluster.offer(
            users_.DescribeUserScramCredentialsRequest,
            users_.DescribeUserScramCredentialsResponse(results=results),
        )
        assert await admin.describe_user_scram_credentials(["a", "b"]) == {
            "a": (),
            "b": (ScramCredential(mechanism="SCRAM-SHA-512", iterations=8192),),
        }
        assert [one.name for one in cluster.requests()[0].users] == ["a", "b"]


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_features_are_updated_and_a_refusal_is_raised(version: int) -> None:
    async with cluster_and_admin() as (cluster, admin):
        whole = int(ErrorCode.INVALID_UPDATE_VERSION) if version == 2 else 0
        one = update_.UpdatableFeatureResult(
            feature="f", error_code=int(ErrorCode.INVALID_UPDATE_VERSION), error_message="no"
        )
        refusal = update_.UpdateFeaturesResponse(
            error_code=whole, error_message="no", results=[] if version == 2 else [one]
        )
        cluster.offer(
            update_.UpdateFeaturesRequest,
            update_.UpdateFeaturesResponse(),
            refusal,
            version=version,
        )
        await admin.update_features({"f": 2}, "unsafe_downgrade")
        with pytest.raises(KafkaError, match="no") as caught:
            await admin.update_features({"f": 2}, validate_only=version > 0)
        assert caught.value.code == ErrorCode.INVALID_UPDATE_VERSION
        [down, _] = cluster.requests()
        [update] = down.feature_updates
        assert (update.feature, update.max_version_level) == ("f", 2)
        assert update.allow_downgrade if version == 0 else update.upgrade_type == 3


async def test_a_cluster_without_features_has_none() -> None:
    async with cluster_and_admin() as (_, admin):
        assert await admin.describe_features() == dict[str, FeatureDescription]()
