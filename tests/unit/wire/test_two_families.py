"""A name that resolves to addresses of IPv6 and IPv4: a client tries all of them, in order."""

import socket
from pathlib import Path
from typing import Any

import pytest

from quorumlog.wire.codec.messages.metadata import MetadataRequest
from quorumlog.wire.io.connection import ConnectionLost, KafkaConnection
from tests.support.groups.single_broker import BROKER, single_broker

pytestmark = pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")


def resolve_to_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolve each name to ::1, then to 127.0.0.1, as most machines do with `localhost`."""

    def resolved(host: str, port: int, *_: object, **__: object) -> list[Any]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("::1", port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", port)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


@pytest.mark.parametrize("host", ["::1", "127.0.0.1"])
async def test_one_family_that_listens_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    async with single_broker(tmp_path) as broker:
        bound = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else 2)
        port = await broker.server.serve(bound)
        resolve_to_both(monkeypatch)
        connection = await KafkaConnection.open("localhost", port, client_id="test")
        metadata = await connection.send(MetadataRequest(topics=[]))
        assert [one.node_id for one in metadata.brokers] == [BROKER]
        await connection.close()


async def test_the_error_names_both_addresses_if_neither_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    resolve_to_both(monkeypatch)
    with pytest.raises(ConnectionLost, match=r"localhost:.*::1.*127\.0\.0\.1"):
        await KafkaConnection.open("localhost", port, client_id="test")
