"""The directory of a local cluster: what is in it, and how it is made.

    DIR/cluster.json           who is in the cluster, and with which settings it was made
    DIR/control.secret         what its nodes show each other: readable by their owner alone
    DIR/node-<id>/             one node: node.properties, node.log (its output), node.pid
    DIR/node-<id>/data/        its log directory: meta.properties, the metadata log, partitions

A directory that holds a cluster is started again with what is in it; settings given then are laid
over the recorded ones.
"""

import json
import random
import secrets
import socket
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from quorumlog.cluster.errors import ClusterError
from quorumlog.cluster.secret import make_secret, secret_file
from quorumlog.metadata_quorum.io.founding import NEW_CLUSTER_FILE

CLUSTER_FILE: Final = "cluster.json"
FORMAT: Final = 1
FREE_PORTS: Final = range(15_000, 30_000)
FREE_PORT_ATTEMPTS: Final = 500
CONTROL_PORT_STEP: Final = 10_000  # node 1 of `--port 9092`: Kafka on 9092, control on 19092

FAST_DEFAULTS: Final[Mapping[str, str]] = {
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "controller.quorum.election.timeout.ms": "200",
    "controller.quorum.fetch.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "8",
    "replica.lag.time.max.ms": "5000",
    "replica.socket.timeout.ms": "3000",
}
"""What `--defaults fast` changes of Kafka's defaults, so that failover is quick on one machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One node: its roles, and the address of each listener."""

    id: int
    roles: tuple[str, ...]  # "broker", "controller"
    kafka: str  # host:port
    control: str  # host:port


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """Who is in the cluster. Recorded in cluster.json when the directory is made."""

    cluster_id: str
    nodes: tuple[NodeSpec, ...]
    config: Mapping[str, str]

    @property
    def bootstrap(self) -> str:
        """The Kafka addresses of all brokers, as clients want them."""
        return ",".join(node.kafka for node in self.nodes if "broker" in node.roles)

    def node(self, node_id: int) -> NodeSpec:
        """Return one node. Raises ClusterError with the ids there are."""
        for node in self.nodes:
            if node.id == node_id:
                return node
        known = ", ".join(str(node.id) for node in self.nodes)
        raise ClusterError(f"there is no node {node_id}; this cluster has {known}")


def plan(
    roles: Sequence[tuple[str, ...]], *, host: str, port: int, config: Mapping[str, str]
) -> ClusterSpec:
    """Lay out a new cluster: one node per entry of `roles`; port 0 takes free ports."""
    count = len(roles)
    if port:
        highest = 65_536 - CONTROL_PORT_STEP - count
        if not 0 < port <= highest:
            raise ClusterError(f"--port {port}: choose one from 1 to {highest}")
        ports = [*range(port, port + count)]
        ports += [kafka + CONTROL_PORT_STEP for kafka in ports]
    else:
        ports = _free_ports(host, 2 * count)
    nodes = tuple(
        NodeSpec(
            id=index + 1,
            roles=node_roles,
            kafka=f"{host}:{ports[index]}",
            control=f"{host}:{ports[count + index]}",
        )
        for index, node_roles in enumerate(roles)
    )
    brokers = sum("broker" in node.roles for node in nodes)
    replicas = str(min(3, brokers))
    counts = {"default.replication.factor": replicas, "offsets.topic.replication.factor": replicas}
    cluster_id = urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
    return ClusterSpec(cluster_id=cluster_id, nodes=nodes, config={**counts, **config})


def _free_ports(host: str, count: int) -> list[int]:
    """Choose ports that nobody listens on now, at random.

    Not from the range that the kernel gives to outgoing connections: it could hand out one of
    ours before the node has bound it. Should somebody else take one, the node says so.
    """
    ports: list[int] = []
    for port in random.SystemRandom().sample(FREE_PORTS, FREE_PORT_ATTEMPTS):
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise ClusterError(f"{host} has no {count} free ports; give one with --port")


def save(directory: Path, spec: ClusterSpec) -> None:
    """Write cluster.json and each node's node.properties."""
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / CLUSTER_FILE).exists():  # a cluster that was made without one stays so
        make_secret(directory)
        _mark_new_voters(directory, spec)
    document = {"format": FORMAT, **asdict(spec)}
    (directory / CLUSTER_FILE).write_text(json.dumps(document, indent=2) + "\n")
    for node in spec.nodes:
        node_directory(directory, node.id).mkdir(exist_ok=True)
        lines = [f"{name}={value}" for name, value in node_properties(directory, spec, node)]
        properties_file(directory, node.id).write_text("\n".join(lines) + "\n")


def _mark_new_voters(directory: Path, spec: ClusterSpec) -> None:
    """Tell the voters that they have never voted: one that finds its disk empty later has."""
    for node in spec.nodes:
        data = data_directory(directory, node.id)
        if "controller" in node.roles and not data.exists():
            data.mkdir(parents=True)
            (data / NEW_CLUSTER_FILE).touch()


def load(directory: Path) -> ClusterSpec:
    """Read cluster.json. Raises ClusterError if there is none, or it is not one of ours."""
    path = directory / CLUSTER_FILE
    try:
        document: dict[str, Any] = json.loads(path.read_text())
        if document["format"] != FORMAT:
            raise ClusterError(f"{path}: format {document['format']} is not {FORMAT}")
        nodes = tuple(
            NodeSpec(
                id=int(node["id"]),
                roles=tuple(node["roles"]),
                kafka=str(node["kafka"]),
                control=str(node["control"]),
            )
            for node in document["nodes"]
        )
        config = {str(name): str(value) for name, value in document["config"].items()}
        return ClusterSpec(cluster_id=str(document["cluster_id"]), nodes=nodes, config=config)
    except FileNotFoundError:
        raise ClusterError(f"{directory} holds no cluster; `quorumlog up` makes one") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClusterError(f"{path} is damaged ({error}); restore or remove it") from error


def node_properties(
    directory: Path, spec: ClusterSpec, node: NodeSpec
) -> Iterable[tuple[str, str]]:
    """Everything that one node is told, under Kafka's names where Kafka has one."""
    voters = ",".join(
        f"{other.id}@{other.control}" for other in spec.nodes if "controller" in other.roles
    )
    yield "node.id", str(node.id)
    yield "cluster.id", spec.cluster_id
    yield "process.roles", ",".join(node.roles)
    yield "listeners", f"PLAINTEXT://{node.kafka}"
    yield "control.listener", node.control
    yield "controller.quorum.voters", voters
    yield "log.dirs", str(data_directory(directory, node.id).resolve())
    secret = secret_file(directory)
    if secret is not None:
        yield "control.shared.secret.file", str(secret)
    yield from sorted(spec.config.items())


def node_directory(directory: Path, node_id: int) -> Path:
    """Where a node lives."""
    return directory / f"node-{node_id}"


def data_directory(directory: Path, node_id: int) -> Path:
    """Where a node's logs are: its `log.dirs`."""
    return node_directory(directory, node_id) / "data"


def properties_file(directory: Path, node_id: int) -> Path:
    """Where the node's configuration is."""
    return node_directory(directory, node_id) / "node.properties"


def log_file(directory: Path, node_id: int) -> Path:
    """Where the node's output goes."""
    return node_directory(directory, node_id) / "node.log"
