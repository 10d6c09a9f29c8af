"""The shape of a local cluster, and its directory: its files, and how they are created.

    DIR/cluster.json           the nodes of the cluster, and its settings
    DIR/control.secret         the shared secret of its nodes: readable by their owner alone
    DIR/security/              passwords and certificates, if it is secured: `cluster.security`
    DIR/node-<id>/             one node: node.properties, node.log (its output), node.pid
    DIR/node-<id>/data/        its log directory: meta.properties, the metadata log, partitions

The next start of a cluster uses its recorded nodes and settings. New settings override the recorded
settings, and are recorded once all nodes are ready with them. A cluster that was neither ready nor
used is not kept: the next start plans it again
(docs/decisions/0044-node-starts.md).
"""

import json
import os
import shutil
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from quorumlog.addresses import DEFAULT_LISTENER, address_text, host_and_port
from quorumlog.cluster import node_listeners, secured_properties, security
from quorumlog.cluster.defaults import settings_for
from quorumlog.cluster.errors import ClusterError, InvalidArgument
from quorumlog.cluster.files import make_secret, replace_file, secret_file
from quorumlog.cluster.node_listeners import NodeListener
from quorumlog.cluster.ports import free_ports
from quorumlog.cluster.security import ClusterSecurity
from quorumlog.cluster.shape import BROKER, CONTROLLER, require_numbers

CLUSTER_FILE: Final = "cluster.json"
RESTORING_FILE: Final = "restoring.json"  # a restore of a snapshot is to be completed
RESTORING: Final = "data.restoring"  # beside a log directory: the copy that takes its place
REPLACED: Final = "data.replaced"  # the log directory that a restore has replaced
METADATA_LOG: Final = "__cluster_metadata-0"  # in each node's log directory
FORMAT: Final = 1
FIRST_ID: Final = 1
LAST_ID: Final = 2**31 - 1  # a node id is an int32
CONTROL_PORT_STEP: Final = 10_000  # `--port 9092`: Kafka on 9092, control on 19092
INTERNAL_PORT_STEP: Final = 20_000  # the listener of the brokers, in a secured cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One node: its roles, and the address of each listener.

    `advertised`: the address of its first listener for clients; None: `kafka`. `listeners`: its
    other Kafka listeners for clients. `protocol`: the security protocol of these, and the name of
    the first one. `internal`: the address of the brokers' own listener; None: the first one.
    `rack`: its rack (KIP-36); None: it has none.
    """

    id: int
    roles: tuple[str, ...]  # "broker", "controller"
    kafka: str  # host:port; without the role broker, there is no listener
    control: str  # host:port
    advertised: str | None = None
    listeners: tuple[NodeListener, ...] = ()
    protocol: str = DEFAULT_LISTENER
    internal: str | None = None
    rack: str | None = None

    @property
    def peer_address(self) -> str:
        """The address that other brokers connect to."""
        return self.internal or self.kafka

    @property
    def is_broker(self) -> bool:
        """Whether it holds data partitions and serves clients."""
        return BROKER in self.roles


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The nodes of a cluster and their settings. Recorded in cluster.json.

    `was_ready`: all its nodes have been ready once. Before that, it may be planned again.
    `is_copy`: its metadata may have the addresses of the cluster that it was copied from.
    `detours`: unrecorded properties of single nodes, by node id.
    `advances`: of the nodes' wall clocks, as (at_ms since 1970, by_ms), the oldest first.
    """

    cluster_id: str
    nodes: tuple[NodeSpec, ...]
    config: Mapping[str, str]
    was_ready: bool = False
    is_copy: bool = False
    advances: tuple[tuple[int, int], ...] = ()
    detours: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    security: ClusterSecurity | None = None

    @property
    def bootstrap(self) -> str:
        """The Kafka addresses of all brokers, as clients take them."""
        return ",".join(self.client_address(node) for node in self.nodes if node.is_broker)

    @property
    def internal_bootstrap(self) -> str:
        """The addresses at which brokers connect to each other, of all brokers."""
        return ",".join(node.peer_address for node in self.nodes if node.is_broker)

    def client_address(self, node: NodeSpec) -> str:
        """Return the address that a node's first listener advertises, `host:port`."""
        settings = {**self.config, **self.detours.get(node.id, {})}
        text = settings.get("advertised.listeners")
        return _first(text) if text else node.advertised or self.kafka_address(node)

    def kafka_address(self, node: NodeSpec) -> str:
        """Return the address of a node's first Kafka listener on this machine, `host:port`."""
        return _first(self.config.get("listeners", node.kafka))

    def control_address(self, node: NodeSpec) -> str:
        """Return the address of a node's control listener, `host:port`."""
        return self.detours.get(node.id, {}).get("control.listener", node.control)

    def rack(self, node: NodeSpec) -> str | None:
        """Return the rack of a node; None: it has none."""
        return self.config.get("broker.rack", node.rack)

    def node(self, node_id: int) -> NodeSpec:
        """Return one node. Raises ClusterError with the existing ids."""
        for node in self.nodes:
            if node.id == node_id and not isinstance(node_id, bool):
                return node
        known = ", ".join(str(node.id) for node in self.nodes)
        raise ClusterError(f"there is no node {node_id}; this cluster has {known}")


def _first(listeners: str) -> str:
    """Return the address of the first of NAME://host:port,..."""
    return listeners.partition(",")[0].rpartition("://")[2]


def plan(
    roles: Sequence[tuple[str, ...]],
    *,
    host: str,
    port: int,
    config: Mapping[str, str],
    first_id: int = FIRST_ID,
    advertised: str | None = None,
    listeners: Sequence[str] = (),
    protection: ClusterSecurity | None = None,
    racks: Sequence[str | None] | None = None,
) -> ClusterSpec:
    """Plan a new cluster: one node per entry of `roles`; port 0 chooses free ports.

    The node ids count up from `first_id`. The Kafka ports count up from `port`, and each control
    port is CONTROL_PORT_STEP above the Kafka port of its node. The control listeners are on
    loopback: all nodes are on this machine. `advertised`, `listeners`: see `node_listeners`;
    `protection`: see `security`; `racks`: of each node. Raises InvalidArgument.
    """
    require_numbers(port=port, first_id=first_id)
    count, host = len(roles), host.strip("[]")
    control_host = node_listeners.control_host(host)
    if not 0 <= first_id <= LAST_ID - count:
        raise InvalidArgument(f"--first-id {first_id}: choose one from 0 to {LAST_ID - count}")
    ports = _ports(host, port, count, has_internal=protection is not None)
    kafka = [address_text(host, one) for one in ports[:count]]
    control = [address_text(control_host, one) for one in ports[count : 2 * count]]
    own = [address_text(control_host, one) for one in ports[2 * count :]]
    internal: Sequence[str | None] = own or [None] * count
    shown = node_listeners.advertised_addresses(advertised, kafka)
    others = node_listeners.plan_listeners(listeners, count)
    protocol = DEFAULT_LISTENER if protection is None else protection.protocol
    if listeners:
        bound = [one.bind for of_node in others for one in of_node]
        node_listeners.require_different_ports([*kafka, *control, *own, *bound])
        node_listeners.require_other_names(others[0], {protocol, security.INTERNAL})
    nodes = tuple(
        NodeSpec(
            id=first_id + index,
            roles=node_roles,
            kafka=kafka[index],
            control=control[index],
            advertised=shown[index],
            listeners=others[index],
            protocol=protocol,
            internal=internal[index],
            rack=None if racks is None else racks[index],
        )
        for index, node_roles in enumerate(roles)
    )
    cluster_id = urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
    fitting = settings_for(sum(node.is_broker for node in nodes))
    return ClusterSpec(
        cluster_id=cluster_id, nodes=nodes, config={**fitting, **config}, security=protection
    )


def _ports(host: str, first: int, count: int, *, has_internal: bool) -> list[int]:
    """Return the Kafka ports of all nodes, then their control ports, then their internal ones."""
    steps = (0, CONTROL_PORT_STEP, INTERNAL_PORT_STEP)[: 3 if has_internal else 2]
    if not first:
        return free_ports(host, len(steps) * count)
    highest = 65_536 - steps[-1] - count
    if not 0 < first <= highest:
        ports = "the brokers' own ports" if has_internal else "the control ports"
        raise InvalidArgument(
            f"--port {first}: choose one from 1 to {highest}, since {ports} are {steps[-1]} above "
            "the Kafka ports; or 0, which takes free ones"
        )
    return [first + step + n for step in steps for n in range(count)]


def save(directory: Path, spec: ClusterSpec) -> None:
    """Write cluster.json and each node's node.properties.

    Each file is replaced as a whole, and only if it changes. Raises ClusterError if the directory
    cannot be written.
    """
    write_properties(directory, spec, spec.nodes)
    document = {"format": FORMAT, **asdict(spec)}
    del document["detours"]
    if spec.security is None:
        del document["security"]
        for node in document["nodes"]:
            del node["protocol"], node["internal"]
    text = json.dumps(document, indent=2) + "\n"
    replace_file(directory / CLUSTER_FILE, text, is_private=security.may_be_secret(spec.config))


def found(
    directory: Path, spec: ClusterSpec, users: Mapping[str, str | None] | None = None
) -> None:
    """Create the secrets of a new cluster, and the markers of its voters, which have never voted.

    `users`: with their passwords, if it is secured. A voter without marker and votes has lost its
    disk. Raises ClusterError.
    """
    from quorumlog.metadata_quorum.settings import NEW_CLUSTER_FILE

    try:
        directory.mkdir(parents=True, exist_ok=True)
        make_secret(directory)
        security.make_files(directory, spec, users or {})
        for node in spec.nodes:
            data = data_directory(directory, node.id)
            if CONTROLLER in node.roles and not data.exists():
                data.mkdir(parents=True)
                (data / NEW_CLUSTER_FILE).touch()
    except OSError as error:
        raise ClusterError(
            f"cannot write {error.filename}: {error.strerror}; choose another --dir"
        ) from error


def write_properties(directory: Path, spec: ClusterSpec, nodes: Iterable[NodeSpec]) -> None:
    """Write the node.properties of these nodes. Raises ClusterError."""
    for node in nodes:
        if spec.security is not None:
            _make_private(node_directory(directory, node.id))
        lines = [f"{name}={value}" for name, value in node_properties(directory, spec, node)]
        is_private = spec.security is not None or security.may_be_secret(spec.config)
        path = properties_file(directory, node.id)
        replace_file(path, "\n".join(lines) + "\n", is_private=is_private)


def _make_private(directory: Path) -> None:
    """Let the owner alone read a node's files: records, and the credentials of SCRAM."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o700)
    except OSError as error:
        raise ClusterError(f"cannot write {directory}: {error.strerror}") from error


def holds_partitions(directory: Path, spec: ClusterSpec) -> bool:
    """Return whether a node has the log of a partition: then the cluster was used."""
    return any(
        path.is_dir() and path.name != METADATA_LOG
        for node in spec.nodes
        for path in data_directory(directory, node.id).glob("*")
    )


def clear(directory: Path, spec: ClusterSpec) -> None:
    """Remove the nodes of a cluster that was never ready nor used. Raises ClusterError."""
    if spec.was_ready or holds_partitions(directory, spec):
        raise ClusterError(f"{directory} holds a cluster that was ready: it is not removed")
    for node in spec.nodes:
        try:
            shutil.rmtree(node_directory(directory, node.id))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ClusterError(f"cannot remove {error.filename}: {error.strerror}") from error


def wipe(directory: Path, node_id: int) -> None:
    """Empty a node's log directory. Raises ClusterError."""
    data = data_directory(directory, node_id)
    try:
        shutil.rmtree(data)
        data.mkdir()
    except OSError as error:
        raise ClusterError(f"cannot empty {data}: {error.strerror}") from error


def find(directory: Path) -> ClusterSpec | None:
    """Read cluster.json; None: there is none. Raises ClusterError if it is invalid."""
    return load(directory) if (directory / CLUSTER_FILE).exists() else None


def load(directory: Path) -> ClusterSpec:
    """Read cluster.json. Raises ClusterError if it is missing or invalid."""
    path = directory / CLUSTER_FILE
    try:
        document: dict[str, Any] = json.loads(path.read_text())
        if document["format"] != FORMAT:
            raise ClusterError(f"{path}: format {document['format']} is not {FORMAT}")
        nodes = tuple(
            NodeSpec(
                id=int(node["id"]),
                roles=tuple(node["roles"]),
                kafka=address_text(*host_and_port(node["kafka"])),
                control=address_text(*host_and_port(node["control"])),
                advertised=node.get("advertised"),
                listeners=tuple(NodeListener(**one) for one in node.get("listeners", ())),
                protocol=node.get("protocol", DEFAULT_LISTENER),
                internal=node.get("internal"),
                rack=node.get("rack"),
            )
            for node in document["nodes"]
        )
        config = {str(name): str(value) for name, value in document["config"].items()}
        return ClusterSpec(
            cluster_id=str(document["cluster_id"]),
            nodes=nodes,
            config=config,
            advances=tuple((int(at), int(by)) for at, by in document.get("advances", ())),
            was_ready=bool(document.get("was_ready", True)),  # earlier versions lack it
            is_copy=bool(document.get("is_copy", False)),
            security=security.read_recorded(document.get("security")),
        )
    except FileNotFoundError:
        raise ClusterError(f"{directory} holds no cluster; `quorumlog up` makes one") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClusterError(f"{path} is damaged ({error}); restore or remove it") from error


def node_properties(
    directory: Path, spec: ClusterSpec, node: NodeSpec, *, settings: bool = True
) -> Iterable[tuple[str, str]]:
    """Yield the properties of one node, under Kafka's names where they exist.

    Without `settings`, only its own: its id, its addresses, and the voters. Detours override them;
    so do the settings of the listener in a cluster of one node.
    """
    detours = spec.detours.get(node.id, {})
    for name, value in _own_properties(directory, spec, node):
        if name not in detours and not (settings and name in spec.config):
            yield name, value
    yield from sorted(detours.items())
    if settings:
        yield from sorted(spec.config.items())


def _own_properties(
    directory: Path, spec: ClusterSpec, node: NodeSpec
) -> Iterable[tuple[str, str]]:
    voters = ",".join(
        f"{other.id}@{other.control}" for other in spec.nodes if CONTROLLER in other.roles
    )
    yield "node.id", str(node.id)
    yield "cluster.id", spec.cluster_id
    yield "process.roles", ",".join(node.roles)
    if spec.security is None:
        others = {one.id: one.kafka for one in spec.nodes if one.is_broker and one is not node}
        yield from node_listeners.properties(node.kafka, node.advertised, node.listeners, others)
    else:
        yield from secured_properties.properties(directory, spec.security, node)
    if node.rack is not None:
        yield "broker.rack", node.rack
    yield "control.listener", node.control
    yield "controller.quorum.voters", voters
    yield "log.dirs", str(data_directory(directory, node.id).resolve())
    if spec.is_copy:
        peers = [other for other in spec.nodes if other.id != node.id]
        brokers = [other for other in peers if other.is_broker]
        yield "peer.control.addresses", ",".join(f"{one.id}@{one.control}" for one in peers)
        yield "peer.kafka.addresses", ",".join(f"{one.id}@{one.peer_address}" for one in brokers)
    if spec.advances:
        yield "clock.advances", ",".join(f"{at_ms}:{by_ms}" for at_ms, by_ms in spec.advances)
    secret = secret_file(directory)
    if secret is not None:
        yield "control.shared.secret.file", str(secret)


def node_directory(directory: Path, node_id: int) -> Path:
    """Return the directory of a node."""
    return directory / f"node-{node_id}"


def data_directory(directory: Path, node_id: int) -> Path:
    """Return the directory of a node's logs: its `log.dirs`."""
    return node_directory(directory, node_id) / "data"


def directory_id(directory: Path, node_id: int) -> bytes | None:
    """Return the id of a node's log directory; None: it is new or wiped."""
    from quorumlog.storage.io.checkpoints import read_meta_properties, uuid_from_text
    from quorumlog.storage.io.disk import RealDisk

    meta = read_meta_properties(RealDisk(), str(data_directory(directory, node_id)))
    return None if meta is None else uuid_from_text(meta.directory_id)


def properties_file(directory: Path, node_id: int) -> Path:
    """Return the file of the node's configuration."""
    return node_directory(directory, node_id) / "node.properties"


def pid_file(directory: Path, node_id: int) -> Path:
    """Return the file that a node locks while it runs; its progress is beside it."""
    return node_directory(directory, node_id) / "node.pid"


def log_file(directory: Path, node_id: int) -> Path:
    """Return the file of the node's output."""
    return node_directory(directory, node_id) / "node.log"
