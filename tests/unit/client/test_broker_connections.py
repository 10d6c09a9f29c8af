"""Connections to brokers: when an attempt is made, and which connection is closed."""

import asyncio
from typing import Any

import pytest

from quorumlog.client.core.metadata_cache import Node
from quorumlog.client.errors import KafkaError
from quorumlog.client.io.broker_connections import BrokerConnections
from quorumlog.client.settings import CommonSettings
from quorumlog.wire.io.connection import AuthenticationFailed, ConnectionLost, KafkaConnection
from quorumlog.wire.io.security import PLAINTEXT


class Connection:
    """A connection that has been made."""

    def __init__(self) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        self.closed.set_result(None)


class Network:
    """Counts the attempts at each port; the port of `refusing` refuses with `error`."""

    error: ConnectionLost = ConnectionLost("refused")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.attempts: list[int] = []
        self.refusing = 0
        self.refusals: list[KafkaError] = []
        monkeypatch.setattr(KafkaConnection, "open", self.open)
        self.connections = BrokerConnections(
            CommonSettings(bootstrap_servers="h:9092"),
            PLAINTEXT,
            lambda: None,
            lambda: None,
            self.refusals.append,
        )

    async def open(self, _host: str, port: int, **_: Any) -> Connection:
        self.attempts.append(port)
        if port == self.refusing:
            raise self.error
        return Connection()


@pytest.mark.jumping_time
async def test_a_broker_that_refuses_is_not_tried_again_before_its_backoff(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, node = Network(monkeypatch), Node(1, "h", 9092)
    network.refusing = 9092
    for attempts in (1, 2):
        for _ in range(3):
            assert await network.connections.connect(node) is None
        assert len(network.attempts) == attempts
        await asyncio.sleep(1)
    await network.connections.close()


@pytest.mark.jumping_time
async def test_a_broker_at_a_new_address_loses_its_old_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = Network(monkeypatch)
    old = await network.connections.connect(Node(1, "h", 9092))
    new = await network.connections.connect(Node(1, "h", 9093))
    assert old is not None
    assert new is not None
    await asyncio.sleep(0.1)
    assert (old.closed.done(), new.closed.done()) == (True, False)
    await network.connections.close()


@pytest.mark.jumping_time
async def test_a_refused_login_is_reported_once_for_each_attempt_until_one_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, node = Network(monkeypatch), Node(1, "h", 9092)
    network.refusing, network.error = 9092, AuthenticationFailed("no such password")
    for attempts in (1, 2):
        assert await network.connections.connect(node) is None
        assert network.connections.is_refused(node)
        assert len(network.refusals) == attempts
        await asyncio.sleep(1)
    assert str(network.refusals[0]) == "SASL_AUTHENTICATION_FAILED: h:9092: no such password"
    assert network.refusals[0].definite
    network.refusing = 0
    await asyncio.sleep(2)
    assert await network.connections.connect(node) is not None
    assert not network.connections.is_refused(node)
    await network.connections.close()
