"""The settings of single groups, asked over a connection: described, altered, listed, in force."""

from pathlib import Path

from quorumlog.broker.settings import BrokerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.list_config_resources import ListConfigResourcesRequest
from quorumlog.wire.codec.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.groups.asking import asking, coordinator_is_ready, create, versions
from tests.unit.broker.test_server_admin_apis import alter_some, replace_configs
from tests.unit.broker.test_server_configs import describe
from tests.unit.broker.test_server_consumer_groups import FEATURES, first_heartbeat

GROUP, SET, DELETE = 32, 0, 1
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


async def listed(connection: KafkaConnection) -> list[tuple[int, str]]:
    request = ListConfigResourcesRequest(resource_types=[GROUP])
    answer = await connection.send(request)
    return [(one.resource_type, one.resource_name) for one in answer.config_resources]


async def alter(
    connection: KafkaConnection, name: str, *changes: tuple[str, int, str | None]
) -> str:
    code, message = await alter_some(connection, name, *changes, resource_type=GROUP)
    return message or code


async def test_what_a_group_sets_is_described_with_its_sources_and_listed(tmp_path: Path) -> None:
    settings = BrokerSettings(group_consumer_heartbeat_interval_ms=6000)
    async with asking(tmp_path, settings) as (_, connection):
        unset = await describe(connection, GROUP, "g", include_synonyms=True)
        assert {name: (one.value, one.config_source) for name, one in unset.items()} == {
            SESSION: ("45000", 5),
            HEARTBEAT: ("6000", 4),
        }
        assert await listed(connection) == []
        assert await alter(connection, "g", (SESSION, SET, "50000")) == "NONE"
        found = await describe(connection, GROUP, "g", include_synonyms=True)
        assert [(one.name, one.value, one.source) for one in found[SESSION].synonyms] == [
            (SESSION, "50000", 8),
            ("group.consumer.session.timeout.ms", "45000", 5),
        ]
        assert (found[SESSION].value, found[SESSION].read_only) == ("50000", False)
        assert await listed(connection) == [(GROUP, "g")]
        assert await alter(connection, "g", (SESSION, DELETE, None)) == "NONE"
        assert await listed(connection) == []


async def test_every_version_alters_groups_and_says_what_is_wrong(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        for version in versions(44):
            change = (SESSION, SET, str(50_000 + version))
            outcome = await alter_some(
                connection, "g", change, resource_type=GROUP, version=version
            )
            assert outcome == ("NONE", None)
        for version in versions(33):
            configs: dict[str, str | None] = {HEARTBEAT: str(6000 + version)}
            outcome = await replace_configs(
                connection, "g", configs, resource_type=GROUP, version=version
            )
            assert outcome == ("NONE", None)
            found = await describe(connection, GROUP, "g")
            assert (found[SESSION].value, found[HEARTBEAT].value) == ("45000", configs[HEARTBEAT])
        refused = await alter_some(connection, "g", (SESSION, SET, "1"), resource_type=GROUP)
        assert refused == (
            ErrorCode.INVALID_CONFIG.name,
            f"{SESSION} must be greater than or equal to group.consumer.min.session.timeout.ms",
        )
        unnamed = await alter_some(connection, "", (SESSION, SET, "50000"), resource_type=GROUP)
        assert unnamed == ("INVALID_REQUEST", "Default group resources are not allowed.")


async def test_a_running_group_goes_by_what_is_altered(tmp_path: Path) -> None:
    """The next answer has the new interval."""
    async with asking(tmp_path, features=FEATURES) as (_, connection):
        await create(connection, "t")
        await coordinator_is_ready(connection)
        joined = await connection.send(first_heartbeat())
        assert joined.heartbeat_interval_ms == 5000
        assert await alter(connection, "g", (HEARTBEAT, SET, "7000")) == "NONE"
        again = await connection.send(first_heartbeat(member_epoch=joined.member_epoch))
        other = await connection.send(first_heartbeat(group_id="h"))
        assert (again.heartbeat_interval_ms, other.heartbeat_interval_ms) == (7000, 5000)
        assert await alter(connection, "g", (HEARTBEAT, DELETE, None)) == "NONE"
        again = await connection.send(first_heartbeat(member_epoch=joined.member_epoch))
        assert again.heartbeat_interval_ms == 5000


async def test_settings_of_other_types_of_groups_are_refused_with_a_sentence(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path) as (_, connection):
        for name, subject in (
            ("share.auto.offset.reset", "share groups (KIP-932)"),
            ("streams.num.standby.replicas", "streams groups (KIP-1071)"),
            ("consumer.assignment.interval.ms", "delayed and offloaded assignments (KIP-1263)"),
        ):
            said = await alter(connection, "g", (name, SET, "1"))
            assert said == f"{name} is a setting of {subject}, which this cluster does not have"
        said = await alter(connection, "g", ("share.nonsense", SET, "1"))
        assert said == "Unknown group config name: share.nonsense"


async def test_a_share_consumer_is_refused_with_a_sentence(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        assert 76 in connection.api_versions
        joining = ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0)
        refused = await connection.send(joining)
        assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert "no share groups (KIP-932)" in (refused.error_message or "")
