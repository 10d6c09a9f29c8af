"""Real nodes with TLS: unmodified clients, large records, renewed keys, and the control plane."""

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiokafka
import kafka
import pytest

from quorumlog.cluster.certificates import SECURITY_DIRECTORY, Authority, make_ca
from quorumlog.cluster.control_connections import open_connection, operator_context
from quorumlog.cluster.node_views import NodeViews
from quorumlog.cluster.ports import free_ports

pytestmark = pytest.mark.integration
WAIT_S = 60.0
COUNT = 100
LARGE = 1 << 20


@dataclass
class Nodes:
    """Nodes that are started one by one, as an administrator starts them."""

    directory: Path
    count: int
    authority: Authority = field(init=False)
    kafka: list[int] = field(init=False)
    control: list[int] = field(init=False)
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.authority = make_ca(self.directory / SECURITY_DIRECTORY)
        self.authority.issue_operator()
        self.authority.issue("alice")
        ports = [*free_ports("127.0.0.1", 2 * self.count)]
        self.kafka, self.control = ports[: self.count], ports[self.count :]

    def file(self, name: str) -> str:
        return str(self.authority.directory / name)

    def issue(self, node_id: int) -> None:
        """Issue the certificate of a node, and write it with its key into one file."""
        issued = self.authority.issue_node(node_id)
        both = Path(self.file(f"node-{node_id}.both.pem"))
        both.touch(0o600)
        both.write_text(issued.key.read_text() + issued.certificate.read_text())

    def write(self, node_id: int, *others: str) -> Path:
        place = self.directory / f"node-{node_id}"
        (place / "data").mkdir(parents=True)
        (place / "data" / "new-cluster").touch()
        self.issue(node_id)
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(self.control, 1))
        lines = [
            f"node.id={node_id}",
            "cluster.id=of-a-test",
            f"listeners=INSIDE://127.0.0.1:{self.kafka[node_id - 1]}",
            "inter.broker.listener.name=INSIDE",
            f"control.listener=127.0.0.1:{self.control[node_id - 1]}",
            f"controller.quorum.voters={voters}",
            f"log.dirs={place / 'data'}",
            f"control.tls.ca.file={self.authority.certificate}",
            f"control.tls.certificate.file={self.file(f'node-{node_id}.pem')}",
            f"control.tls.key.file={self.file(f'node-{node_id}.key')}",
            "offsets.topic.num.partitions=1",
            "offsets.topic.replication.factor=1",
            "group.initial.rebalance.delay.ms=0",
            *others,
        ]
        path = place / "node.properties"
        path.write_text("\n".join(lines) + "\n")
        return path

    def start(self, node_id: int, path: Path) -> None:
        with (path.parent / "node.log").open("ab") as log:
            command = [sys.executable, "-P", "-m", "quorumlog.node", str(path)]
            self.processes.append(subprocess.Popen(command, stderr=log, stdout=log))

    def log(self, node_id: int) -> str:
        return (self.directory / f"node-{node_id}" / "node.log").read_text()

    def wait_ready(self) -> None:
        context = operator_context(self.directory)
        assert context is not None
        for port in self.control:
            until(lambda port=port: status_at(port, context, "/readyz") == 200)


def status_at(port: int, context: ssl.SSLContext | None, path: str) -> int | None:
    """Return the status of a request to a control listener; None: no response."""
    connection = open_connection(f"127.0.0.1:{port}", context, 10.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


def until(holds: Any) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline_s, "it took too long"
        time.sleep(0.05)


@contextmanager
def running(directory: Path, count: int, others: Sequence[str]) -> Iterator[Nodes]:
    """Run nodes, each with these other settings; stop the remaining nodes."""
    nodes = Nodes(directory, count)
    try:
        for node_id in range(1, count + 1):
            filled = [line.replace("{dir}", str(nodes.authority.directory)) for line in others]
            filled = [line.replace("{id}", str(node_id)) for line in filled]
            nodes.start(node_id, nodes.write(node_id, *filled))
        nodes.wait_ready()
        yield nodes
    finally:
        for process in nodes.processes:
            process.terminate()
        for process in nodes.processes:
            process.wait(20)
    assert {one.returncode for one in nodes.processes} <= {0, -signal.SIGKILL}


TLS = (
    "listener.security.protocol.map=INSIDE:SSL",
    "ssl.keystore.type=PEM",
    "ssl.keystore.location={dir}/node-{id}.both.pem",
    "ssl.truststore.type=PEM",
    "ssl.truststore.location={dir}/ca.pem",
    "ssl.client.auth=required",
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """One node whose clients show a certificate."""
    with running(tmp_path_factory.mktemp("node"), 1, TLS) as nodes:
        yield nodes


def kafka_python(node: Nodes) -> dict[str, Any]:
    return {
        "bootstrap_servers": f"localhost:{node.kafka[0]}",
        "security_protocol": "SSL",
        "ssl_cafile": node.file("ca.pem"),
        "ssl_certfile": node.file("alice.pem"),
        "ssl_keyfile": node.file("alice.key"),
    }


def test_kafka_python_writes_and_reads_large_records(node: Nodes) -> None:
    values = [bytes([number]) * LARGE for number in range(8)]
    producer = kafka.KafkaProducer(**kafka_python(node), max_request_size=4 * LARGE)
    for value in values:
        producer.send("large", value[: LARGE - 200])
    producer.flush()
    producer.close()
    consumer = kafka.KafkaConsumer(
        "large",
        **kafka_python(node),
        group_id="g",
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=4 * LARGE,
        consumer_timeout_ms=20_000,
    )
    seen = [next(consumer).value for _ in values]
    consumer.close()
    assert seen == [value[: LARGE - 200] for value in values]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_aiokafka_writes_and_reads(node: Nodes, version: ssl.TLSVersion) -> None:
    context = ssl.create_default_context(cafile=node.file("ca.pem"))
    context.load_cert_chain(node.file("alice.pem"), node.file("alice.key"))
    context.minimum_version = context.maximum_version = version
    options = {
        "bootstrap_servers": f"localhost:{node.kafka[0]}",
        "security_protocol": "SSL",
        "ssl_context": context,
    }
    topic = f"by-{version.name}"

    async def story() -> set[bytes]:
        async with aiokafka.AIOKafkaProducer(**options) as producer:
            for number in range(COUNT):
                await producer.send(topic, b"%d" % number)
            await producer.flush()
        seen: set[bytes] = set()
        consumer = aiokafka.AIOKafkaConsumer(topic, **options, auto_offset_reset="earliest")
        async with consumer, asyncio.timeout(WAIT_S):
            while len(seen) < COUNT:
                seen.add((await consumer.getone()).value)
        return seen

    assert asyncio.run(story()) == {b"%d" % number for number in range(COUNT)}


def test_no_client_without_a_certificate_is_served(node: Nodes) -> None:
    options = {**kafka_python(node), "ssl_certfile": None, "ssl_keyfile": None}
    with pytest.raises(kafka.errors.KafkaError):
        kafka.KafkaAdminClient(**options, bootstrap_timeout_ms=1000)
    until(lambda: "the peer has sent no certificate, which is required here" in node.log(1))
    assert "Traceback" not in node.log(1)


def test_a_certificate_is_read_again_at_a_hangup(node: Nodes) -> None:
    def serial() -> str:
        context = ssl.create_default_context(cafile=node.file("ca.pem"))
        context.load_cert_chain(node.file("alice.pem"), node.file("alice.key"))
        plain = socket.create_connection(("localhost", node.kafka[0]))
        with context.wrap_socket(plain, server_hostname="localhost") as connection:
            return str((connection.getpeercert() or {})["serialNumber"])

    before = serial()
    node.issue(1)
    os.kill(node.processes[0].pid, signal.SIGHUP)
    until(lambda: serial() != before)
    now = serial()
    Path(node.file("node-1.both.pem")).write_text("damaged")
    os.kill(node.processes[0].pid, signal.SIGHUP)
    until(lambda: "TLS stays as it was: " in node.log(1))
    assert serial() == now


def test_the_metrics_are_for_operators(node: Nodes) -> None:
    operator = operator_context(node.directory)
    assert status_at(node.control[0], operator, "/metrics") == 200
    alice = ssl.create_default_context(cafile=node.file("ca.pem"))
    alice.load_cert_chain(node.file("alice.pem"), node.file("alice.key"))
    for context in (None, alice):
        assert status_at(node.control[0], context, "/metrics") is None


def test_three_nodes_elect_replicate_and_fail_over_behind_tls(tmp_path: Path) -> None:
    """Their Kafka listeners have plain text: only the control plane is under test."""
    plain = [
        "listener.security.protocol.map=INSIDE:PLAINTEXT",
        "controller.quorum.election.timeout.ms=200",
        "controller.quorum.fetch.timeout.ms=1000",
    ]
    with running(tmp_path, 3, plain) as nodes:
        bootstrap = [f"127.0.0.1:{port}" for port in nodes.kafka]
        admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
        admin.create_topics([kafka.admin.NewTopic("t", 3, 3)])
        admin.close()
        addresses = {n: f"127.0.0.1:{port}" for n, port in enumerate(nodes.control, 1)}
        with NodeViews(addresses, operator_context(tmp_path)) as views:
            until(lambda: all(len(one["isr"]) == 3 for one in partitions(views, 1)))
            leader = view_of(views, 1)["controller_id"]
            nodes.processes[leader - 1].kill()
            other = 1 if leader != 1 else 2
            until(lambda: view_of(views, other)["controller_id"] not in {leader, -1})
            until(lambda: all(one["leader"] != leader for one in partitions(views, other)))
        logs = "".join(nodes.log(node_id) for node_id in (1, 2, 3))
    assert f"the process of leader {leader}" in logs
    for sign in ("Traceback", "control listener: refused"):
        assert sign not in logs


def view_of(views: NodeViews, node_id: int) -> dict[str, Any]:
    view = views.request(node_id)
    assert view is not None
    return view


def partitions(views: NodeViews, node_id: int) -> list[dict[str, Any]]:
    topics = view_of(views, node_id)["topics"]
    found: list[dict[str, Any]] = topics.get("t", {"partitions": []})["partitions"]
    return found or [{"isr": [], "leader": -1}]
