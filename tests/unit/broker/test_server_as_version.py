"""A broker that answers as an older release: to clients, not to other brokers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.settings.releases import RELEASES, api_versions
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from quorumlog.wire.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from quorumlog.wire.codec.messages.metadata import MetadataRequest
from quorumlog.wire.codec.messages.produce import ProduceRequest
from quorumlog.wire.io.connection import NODE_SOFTWARE_NAME, ConnectionLost, KafkaConnection
from tests.support.broker.peer import API_VERSIONS, connected
from tests.support.groups.asking import asking
from tests.support.groups.single_broker import SETTINGS

PRODUCE = ProduceRequest.API_KEY
FEATURES = {"group.version": 1, "transaction.version": 2, "quorumlog.metadata.version": 6}


@asynccontextmanager
async def answering(directory: Path, release: str) -> AsyncIterator[tuple[int, KafkaConnection]]:
    """Yield the port of a broker that answers as `release`, and a client's connection."""
    settings = replace(SETTINGS, as_version=release)
    async with asking(directory, settings, FEATURES) as (broker, connection):
        yield broker.port, connection


async def features_of(connection: KafkaConnection, version: int) -> dict[str, tuple[int, int]]:
    ask = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    answer: ApiVersionsResponse = await connection.send(ask, version=version)
    assert {one.name for one in answer.finalized_features} <= {
        one.name for one in answer.supported_features
    }
    return {one.name: (one.min_version, one.max_version) for one in answer.supported_features}


@pytest.mark.parametrize("release", RELEASES)
async def test_clients_get_no_version_above_the_release(tmp_path: Path, release: str) -> None:
    async with answering(tmp_path, release) as (_, connection):
        highest = api_versions(release)
        for key, handler in HANDLERS.items():
            served = connection.api_versions.get(key)
            if highest.get(key, -1) < handler.min_version:
                assert served is None
            else:
                assert served is not None
                assert served.start == handler.advertised_min_version
                assert served.stop - 1 == min(highest[key], handler.max_version)


async def test_a_higher_version_closes_the_connection(tmp_path: Path) -> None:
    async with answering(tmp_path, "2.8") as (_, connection):
        await connection.send(MetadataRequest(topics=[]), version=11)
        with pytest.raises(ConnectionLost):
            await connection.send(MetadataRequest(topics=[]), version=12)


async def test_an_absent_api_closes_the_connection(tmp_path: Path) -> None:
    async with answering(tmp_path, "3.6") as (_, connection):
        with pytest.raises(ConnectionLost):
            await connection.send(ConsumerGroupHeartbeatRequest(group_id="g"), version=0)


async def test_a_higher_version_of_api_versions_is_answered_in_version_0(tmp_path: Path) -> None:
    async with answering(tmp_path, "2.8") as (port, _), connected(port) as peer:
        ask = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        peer.send(ask, 1, 4)
        _, answer = await peer.answer(API_VERSIONS, 0)
        assert isinstance(answer, ApiVersionsResponse)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert {one.api_key: one.max_version for one in answer.api_keys}[API_VERSIONS] == 3
        peer.send(ask, 2, 3)
        _, answer = await peer.answer(API_VERSIONS, 3)
        assert isinstance(answer, ApiVersionsResponse)
        assert answer.error_code == ErrorCode.NONE


async def test_another_broker_has_all_versions(tmp_path: Path) -> None:
    async with answering(tmp_path, "2.8") as (port, _):
        node = await KafkaConnection.open(
            "127.0.0.1", port, client_id="broker-2-fetcher", software_name=NODE_SOFTWARE_NAME
        )
        try:
            assert node.api_versions.keys() == HANDLERS.keys()
            assert node.api_versions[PRODUCE].stop - 1 == HANDLERS[PRODUCE].max_version
            await node.send(MetadataRequest(topics=[]), version=13)
        finally:
            await node.close()


async def test_features_are_those_of_the_release(tmp_path: Path) -> None:
    async with answering(tmp_path / "a", "3.2") as (_, connection):
        assert await features_of(connection, 3) == {}
    async with answering(tmp_path / "b", "3.9") as (_, connection):
        assert await features_of(connection, 4) == {
            "kraft.version": (0, 1),
            "metadata.version": (21, 21),
        }
    async with answering(tmp_path / "c", "4.0") as (_, connection):
        assert await features_of(connection, 4) == {
            "eligible.leader.replicas.version": (1, 1),
            "group.version": (0, 1),
            "kraft.version": (0, 1),
            "metadata.version": (25, 25),
            "transaction.version": (0, 2),
        }


async def test_the_consumer_protocol_is_off_before_4_0_as_by_default(tmp_path: Path) -> None:
    ask = ConsumerGroupHeartbeatRequest(group_id="g", member_epoch=0, topic_partitions=[])
    async with answering(tmp_path / "a", "3.9") as (_, connection):
        answer = await connection.send(ask, version=0)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    async with answering(tmp_path / "b", "4.0") as (_, connection):
        answer = await connection.send(ask, version=0)
        assert answer.error_code != ErrorCode.UNSUPPORTED_VERSION
