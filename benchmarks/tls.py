"""The CPU of one node for a produced batch: over TLS, and in plain text beside it."""

import ssl
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.load import Connection, produce_frame
from benchmarks.measure import Figure, Table, cpu_seconds
from quorumlog import LocalCluster
from quorumlog.addresses import host_and_port
from quorumlog.client import NewTopic
from quorumlog.client.sync import SyncAdmin
from quorumlog.cluster.certificates import make_ca
from quorumlog.cluster.ports import free_ports
from quorumlog.invariants import some

TOPIC: Final = "bench"
BATCH_BYTES: Final = 16_384
WINDOW: Final = 16
BATCHES: Final = 8_000
ROUNDS: Final = 3


def tls(table: Table) -> None:
    """Measure both kinds of connection by turns, at one node with two listeners."""
    with TemporaryDirectory() as directory:
        authority = make_ca(Path(directory))
        issued = authority.issue("server")
        both = Path(directory) / "both.pem"
        both.touch(0o600)
        both.write_text(issued.key.read_text() + issued.certificate.read_text())
        plain, secure = (f"127.0.0.1:{port}" for port in free_ports("127.0.0.1", 2))
        config = {
            "listeners": f"PLAINTEXT://{plain},SECURE://{secure}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURE:SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(both),
        }
        context = ssl.create_default_context(cafile=authority.certificate)
        with LocalCluster(nodes=1, config=config) as cluster:
            with SyncAdmin(plain) as admin:
                admin.create_topics([NewTopic(TOPIC, 1, 1)])
            pid = some(cluster.pid(1), "the node runs")
            costs: dict[str, list[float]] = {plain: [], secure: []}
            for _ in range(ROUNDS):
                for address, used_s in costs.items():
                    connection = _connected(address, context if address == secure else None)
                    _produce(connection, WINDOW)  # the first costs more
                    before_s = cpu_seconds(pid)
                    _produce(connection, BATCHES)
                    used_s.append(cpu_seconds(pid) - before_s)
                    connection.socket.close()
    name = "CPU of a produced 16 KiB batch over TLS / in plain text"
    ratio = min(costs[secure]) / min(costs[plain])
    table.add(Figure(name=name, value=ratio, unit="x", goal=2.0))
    table.note(f"TLS: {1e6 * min(costs[secure]) / BATCHES:.0f} us of CPU for a batch of 16 KiB")


def _connected(address: str, context: ssl.SSLContext | None) -> Connection:
    host, port = host_and_port(address)
    connection = Connection(host, port)
    if context is not None:
        connection.socket = context.wrap_socket(connection.socket, server_hostname=host)
    return connection


def _produce(connection: Connection, count: int) -> None:
    """Produce batches with a window of requests under way."""
    frames = produce_frame(TOPIC, 0, BATCH_BYTES, 1024, acks=1) * (WINDOW // 2)
    sent = answered = 0
    while answered < count:
        while sent - answered <= WINDOW // 2 and sent < count:
            connection.socket.sendall(frames)
            sent += WINDOW // 2
        answered += len(connection.frames())
