"""Several listeners of one server: each client gets the addresses of its own. Source: KIP-103.

A peer that speaks another protocol is closed at once, with a line that names the protocol.
"""

import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.broker.server.api import Client
from quorumlog.metadata_quorum.image import ClusterDelta
from quorumlog.metadata_quorum.image.details import Endpoint
from quorumlog.settings.kinds import INT_MAX
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.describe_cluster import DescribeClusterRequest
from quorumlog.wire.codec.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from quorumlog.wire.codec.messages.find_coordinator import FindCoordinatorRequest
from quorumlog.wire.codec.messages.metadata import MetadataRequest, MetadataRequestTopic
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.broker.peer import connected, serving
from tests.support.groups.asking import coordinator_is_ready, create
from tests.support.groups.single_broker import BROKER, SingleBroker, single_broker
from tests.support.waiting import until

INSIDE, OUTSIDE, HIDDEN = "PLAINTEXT", "OUTSIDE", "HIDDEN"


def advertise(broker: SingleBroker, **addresses: tuple[str, int]) -> None:
    image = broker.controller.image
    endpoints = tuple(
        Endpoint(name=name, host=host, port=port) for name, (host, port) in addresses.items()
    )
    registered = replace(image.brokers[BROKER], endpoints=endpoints)
    broker.controller.publish(
        ClusterDelta(brokers=frozenset({BROKER})), brokers={BROKER: registered}
    )


@asynccontextmanager
async def listening(
    directory: Path, **limits: int
) -> AsyncIterator[tuple[SingleBroker, dict[str, int]]]:
    """Yield a broker and the port of each listener; HIDDEN advertises no address."""
    async with single_broker(directory) as broker:
        ports = {INSIDE: broker.port}
        for name in (OUTSIDE, HIDDEN):
            bound = socket.create_server(("127.0.0.1", 0))
            limit = limits.get(name, INT_MAX)
            ports[name] = await broker.server.serve(bound, name, limit)
        advertise(broker, PLAINTEXT=("inside", 1), OUTSIDE=("outside", 2))
        yield broker, ports


async def connection_to(port: int) -> KafkaConnection:
    return await KafkaConnection.open("127.0.0.1", port, client_id="test")


async def test_each_client_gets_the_addresses_of_the_listener_that_it_asked(tmp_path: Path) -> None:
    async with listening(tmp_path) as (_, ports):
        first = await connection_to(ports[INSIDE])
        await create(first, "t")
        await coordinator_is_ready(first)
        for name, address in {INSIDE: ("inside", 1), OUTSIDE: ("outside", 2)}.items():
            connection = await connection_to(ports[name])
            metadata = await connection.send(MetadataRequest(topics=None))
            assert [(one.host, one.port) for one in metadata.brokers] == [address]
            assert metadata.controller_id == BROKER
            assert {p.leader_id for topic in metadata.topics for p in topic.partitions} == {BROKER}
            described = await connection.send(DescribeClusterRequest())
            assert [(one.host, one.port) for one in described.brokers] == [address]
            found = await connection.send(FindCoordinatorRequest(coordinator_keys=["g"]))
            assert [(one.host, one.port) for one in found.coordinators] == [address]
            await connection.close()
        await first.close()


@pytest.mark.parametrize(
    ("version", "error"), [(5, ErrorCode.LEADER_NOT_AVAILABLE), (6, ErrorCode.LISTENER_NOT_FOUND)]
)
async def test_a_leader_without_the_listener_is_no_leader_for_its_clients(
    tmp_path: Path, version: int, error: ErrorCode
) -> None:
    async with listening(tmp_path) as (_, ports):
        first = await connection_to(ports[INSIDE])
        await create(first, "t")
        await coordinator_is_ready(first)
        connection = await connection_to(ports[HIDDEN])
        asked = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
        metadata = await connection.send(asked, version=version)
        assert (metadata.brokers, metadata.controller_id) == ([], -1)
        [partition, *_] = metadata.topics[0].partitions
        assert (partition.error_code, partition.leader_id) == (error, -1)
        pages = await connection.send(
            DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")])
        )
        [page, *_] = pages.topics[0].partitions
        assert (page.error_code, page.leader_id) == (ErrorCode.LISTENER_NOT_FOUND, -1)
        found = await connection.send(FindCoordinatorRequest(coordinator_keys=["g"]))
        assert found.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        await connection.close()
        await first.close()


async def test_a_full_listener_leaves_room_at_the_others(tmp_path: Path) -> None:
    async with listening(tmp_path, OUTSIDE=1) as (broker, ports):
        async with connected(ports[OUTSIDE]):
            await until(lambda: broker.server.stats.connections == 1)
            async with connected(ports[OUTSIDE]) as refused:
                assert await refused.is_closed()
            assert broker.server.stats.connections_refused == 1
            assert broker.server.connection_counts == {INSIDE: 0, OUTSIDE: 1, HIDDEN: 0}
            await (await connection_to(ports[INSIDE])).close()
        await until(lambda: not broker.server._connections)
        assert broker.server.connection_counts == {INSIDE: 0, OUTSIDE: 0, HIDDEN: 0}
        await (await connection_to(ports[OUTSIDE])).close()


def client_hello() -> bytes:
    """Return the first bytes of a TLS client."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="h")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    ("start", "cause"),
    [
        (client_hello(), "the peer speaks TLS, this side plain Kafka"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "the peer speaks HTTP, not Kafka's"),
        (b"OPTIONS / HTTP/1.1\r\n\r\n", "the peer speaks HTTP, not Kafka's"),
    ],
    ids=["tls", "get", "options"],
)
async def test_another_protocol_is_closed_at_once_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, start: bytes, cause: str
) -> None:
    caplog.set_level(logging.WARNING)
    async with serving(tmp_path) as (_, server, port):
        for _ in range(3):
            async with connected(port) as peer:
                peer.writer.write(start[:4])  # the length is enough
                assert await peer.is_closed()
        await until(lambda: not server._connections)
        assert server.stats.bytes_out == 0
    [line] = [record.getMessage() for record in caplog.records if "peer speaks" in record.message]
    assert cause in line
    assert line.startswith("127.0.0.1:")


async def test_two_hosts_with_the_same_mistake_have_a_line_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with serving(tmp_path) as (_, server, _):
        for host in ("10.0.0.1", "10.0.0.2", "10.0.0.1"):
            server.note_refused(Client(f"{host}:1", host), "closed: the peer speaks TLS")
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "10.0.0.1",
        "10.0.0.2",
    ]
