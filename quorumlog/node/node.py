"""One node of a cluster: the metadata quorum, and a broker if it has that role.

Started in this order, stopped in reverse:

    1. the ports are bound, the log directories are checked, the quorum reads its log
    2. the control listener: RPCs of the quorum, /healthz, /readyz, /api/v1/status,
       /metrics
    3. the broker's logs, then its registration with the controller
    4. the Kafka listeners, once the registration is committed; `ready` once the broker is unfenced
"""

import asyncio
import logging
import re
import socket
import stat
from collections.abc import Collection
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from quorumlog import clock
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.metadata_quorum.io.metadata_quorum import MetadataQuorum
from quorumlog.metadata_quorum.settings import MetadataQuorumSettings
from quorumlog.native import lane
from quorumlog.node import identity
from quorumlog.node.config import NodeConfig
from quorumlog.node.dependencies import NodeDependencies
from quorumlog.node.election_counts import ElectionCounts
from quorumlog.node.listeners import StartFailed, listen
from quorumlog.node.node_broker import NO_TLS, NodeBroker, warn_of_missing_rights
from quorumlog.node.requested_time import RequestedTime
from quorumlog.node.room import Room, StartEnded
from quorumlog.node.status import MetadataArrivals, add_routes
from quorumlog.settings.listeners import Listener
from quorumlog.storage.errors import DiskExhausted, StorageError
from quorumlog.storage.io.disk import Disk
from quorumlog.tasks import Tasks
from quorumlog.wire.codec.identifiers import BrokerId

if TYPE_CHECKING:
    from quorumlog.node.metrics.endpoint import Endpoint
    from quorumlog.node.tls import NodeTls

_SECRET: Final = re.compile(r"[!-~]{16,1024}")  # valid in an HTTP header
_READABLE_BY_OTHERS: Final = stat.S_IRGRP | stat.S_IROTH
_SETTING: Final = "control.shared.secret.file"
_logger: Final = logging.getLogger(__name__)


class Node:
    """Created by `main`, started once, stopped once.

    `ready` is set when the broker is unfenced, or, without that role, when the quorum has a leader.
    `fatal` ends with the error after which the process must stop.
    """

    @classmethod
    async def made(
        cls,
        config: NodeConfig,
        dependencies: NodeDependencies,
        room: Room,
        refused: Collection[Path] = (),
    ) -> "Node":
        """Create a node: bind its ports and read its disk. Raises StartFailed.

        `refused`: the log directories that could not be locked.
        """
        disk = dependencies.open_disk()  # once: a disk limits the number of open files

        async def make() -> Node:
            return cls(config, dependencies, disk, room, refused)

        return await room.wait_for(make)

    def __init__(
        self,
        config: NodeConfig,
        dependencies: NodeDependencies,
        disk: Disk,
        room: Room,
        refused: Collection[Path],
    ) -> None:
        """Use `made`. After DiskExhausted no port is bound."""
        self.config: Final = config
        self.ready: Final = asyncio.Event()
        self.fatal: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        self.obstacles: Final = room.obstacles
        self._disk: Final = disk
        self._room: Final = room
        self._tasks: Final = Tasks(self.fail)
        clock.advances().extend(config.advances)
        shared_secret = read_secret(config.shared_secret_file)
        self._tls: Final = _read_tls(config)
        self._secret: Final = shared_secret or config.cluster_id
        directories = identity.check_identities(disk, config, refused)
        bind = dependencies.bind
        with ExitStack() as bound:  # closed again if the rest fails
            self._control: Final = bind("control.listener", config.control)
            bound.callback(self._control.close)
            self._kafka: Final[list[tuple[Listener, socket.socket]]] = []
            for listener in config.listeners.by_name.values() if config.is_broker else ():
                self._kafka.append((listener, bind("listeners", listener.bind)))
                bound.callback(self._kafka[-1][1].close)
            own_id = dict(directories)[str(config.log_dir)]
            self.quorum: Final = _open_quorum(
                disk, config, shared_secret, own_id, dependencies, tls=self._tls
            )
            self.broker: Final = (
                NodeBroker(
                    config,
                    self.quorum,
                    disk,
                    directories=directories,
                    dependencies=dependencies,
                    ready=self.ready,
                    on_fatal=self.fail,
                )
                if config.is_broker
                else None
            )
            bound.pop_all()
        self.elections: Final = ElectionCounts()
        self.quorum.add_publisher(self.elections)
        self.created_s: Final = asyncio.get_running_loop().time(), clock.thread_cpu_s()
        self._metrics: Endpoint | None = None
        self._arrivals: Final = MetadataArrivals()
        self.quorum.add_publisher(self._arrivals)
        self.time: Final = RequestedTime(self.broker)
        self._add_routes()

    def _add_routes(self) -> None:
        """Add the routes of the control listener, with the issuer of tokens if it has a key file.

        The key is made in the background.
        """
        add_routes(
            self.quorum.app,
            is_ready=self.ready.is_set,
            describe=self.describe,
            arrivals=self._arrivals,
            scrape=self._scrape,
        )
        self.time.add_routes(self.quorum.app, self.quorum.check_secret)
        broker, key_file = self.broker, self.config.oauth_key_file
        if broker is None or key_file is None:
            return
        from quorumlog.node.token_issuer import ISSUER_PATHS, TokenIssuer  # cost an import

        name = f"urn:quorumlog:{self.config.cluster_id}"
        issuer = TokenIssuer(key_file, name, lambda: broker.metadata.image.access.credentials)
        issuer.add_routes(self.quorum.app)
        self.quorum.open_to_strangers(ISSUER_PATHS)
        self._tasks.start(issuer.load())

    async def start(self) -> None:
        """Start all parts, or none. Raises StartFailed; `ready` is set later."""
        try:
            await self._room.wait_for(self._forget_new_cluster)
            listen("control.listener", self._control)
            await self.quorum.start(self._control)
            self._tasks.start(self._fail_with_quorum())
            if self.broker is not None:
                await self._room.wait_for(self.broker.open_directories)
                warn_of_missing_rights(self.config)
                tls = NO_TLS if self._tls is None else self._tls.listeners
                await self.broker.start(self._kafka, self._secret, tls)
            else:
                self._tasks.start(self._ready_with_leader())
        except StartFailed as error:
            await self._give_up()
            if isinstance(error, StartEnded) and self.fatal.done():
                self.fatal.result()  # raises the error that ended the wait
            raise

    async def _give_up(self) -> None:
        """Close all parts after an error; an error of a close is only logged."""
        try:
            await self.quorum.stop(resign=False)
        except StorageError as error:
            _logger.warning("the metadata log is not closed cleanly: %s", error)
        for _, bound in self._kafka:
            bound.close()

    async def _forget_new_cluster(self) -> None:
        try:
            identity.forget_new_cluster(self._disk, self.config)
        except DiskExhausted:
            raise
        except StorageError as error:
            raise StartFailed(str(error)) from error

    async def stop(self) -> None:
        """Hand over this node's leaderships, then stop all parts cleanly."""
        await self._tasks.stop()
        if self.broker is not None:
            await self.broker.stop()
        self._arrivals.close()
        await self.quorum.stop()

    def fail(self, error: BaseException) -> None:
        """End the node: its state may be wrong."""
        if not self.fatal.done():
            self.fatal.set_exception(error)
        self._room.end()

    @property
    def has_tls(self) -> bool:
        """Whether a listener of this node uses TLS: see `reload_tls`."""
        return self._tls is not None

    def reload_tls(self) -> None:
        """Read the keys and certificates again, in the background, for later handshakes.

        If one is unusable, all stay as they are, and a line gives the reason.
        """
        self._tasks.start(self._reload_tls())

    async def _reload_tls(self) -> None:
        if self._tls is None:
            return
        try:
            contexts = await asyncio.to_thread(self._tls.read_again)
        except StartFailed as error:
            _logger.error("TLS stays as it was: %s", error)  # noqa: TRY400 - no bug of ours
            return
        if self.broker is not None:
            for name, context in contexts.items():
                self.broker.server.renew_tls(name, context)
        _logger.info("TLS: keys and certificates are read again")

    def describe(self) -> dict[str, Any]:
        """Return this node's view of itself and of the cluster, as plain values."""
        requests = {} if self.broker is None else self.broker.server.stats.requests
        image = self.quorum.image
        brokers = {str(broker_id): broker for broker_id, broker in image.brokers.items()}
        return {
            "node_id": self.config.node_id,
            "cluster_id": self.config.cluster_id,
            "ready": self.ready.is_set(),
            "controller_id": image.controller_id,
            "metadata_offset": image.end_offset,
            "quorum": dict(self.quorum.describe()),
            "directory_ids": {one: broker.directory_id for one, broker in brokers.items()},
            "fenced": {one: broker.fenced for one, broker in brokers.items()},
            "topics": _topics(image),
            "requests": dict(requests),  # served by its broker, by API key
            "native_lane": lane.state,
            "clock_ahead_ms": clock.advances().ahead_ms,
        }

    def progress(self) -> str:
        """Return the progress of a start or a stop, and the reasons why the node is not ready.

        An unchanged first line means no progress.
        """
        text = "" if self.broker is None else self.broker.replicas.descriptions.progress()
        if self.ready.is_set():
            return text
        reason = self.quorum.why_leaderless()
        if reason is None and self.broker is not None:
            reason = self.broker.lifecycle.why_unregistered
        self.obstacles.show("quorum", reason)
        lacking = None if self.broker is None else self.broker.replicas.descriptions.lacks_room
        self.obstacles.show("logs", lacking and f"a log waits for room to be opened: {lacking}")
        return self.obstacles.below(text)

    async def _scrape(self, request: web.Request) -> web.Response:
        """Respond to GET /metrics; the first scrape loads the modules for it."""
        if self._metrics is None:
            module = await asyncio.to_thread(import_module, "quorumlog.node.metrics.endpoint")
            self._metrics = self._metrics or module.Endpoint(self)
        return await self._metrics.respond(request)

    async def _fail_with_quorum(self) -> None:
        raise await asyncio.shield(self.quorum.fatal)

    async def _ready_with_leader(self) -> None:
        await self.quorum.wait_for_leader()
        self.ready.set()


def _topics(image: ClusterImage) -> dict[str, Any]:
    return {
        name: {
            "partitions": [
                {
                    "leader": partition.leader_id,
                    "leader_epoch": partition.leader_epoch,
                    "partition_epoch": partition.partition_epoch,
                    "isr": list(partition.isr),
                    "elr": list(partition.elr),
                    "last_known_elr": list(partition.last_known_elr),
                    "replicas": list(partition.replicas),
                    "adding_replicas": list(partition.adding_replicas),
                    "removing_replicas": list(partition.removing_replicas),
                }
                for partition in topic.partitions
            ]
        }
        for name, topic in image.topics.items()
    }


def _open_quorum(
    disk: Disk,
    config: NodeConfig,
    shared_secret: str | None,
    directory_id: str | None,
    dependencies: NodeDependencies,
    *,
    tls: "NodeTls | None",
) -> MetadataQuorum:
    settings = MetadataQuorumSettings(
        cluster_id=config.cluster_id,
        node_id=BrokerId(config.node_id),
        voters={BrokerId(node_id): address for node_id, address in config.voters.items()},
        bootstrap=config.bootstrap,
        directory_id=directory_id if "controller" in config.roles else None,
        control_address=config.voters.get(config.node_id, config.control_address),
        peer_addresses={BrokerId(peer): address for peer, address in config.peer_control.items()},
        log_dir=str(config.log_dir),
        listen_host=config.control.host,
        listen_port=config.control.port,
        is_new_cluster=identity.is_new_cluster(disk, config),
        shared_secret=shared_secret,
        quorum=config.quorum,
        controller=config.controller,
    )
    try:
        control = None if tls is None else tls.control
        return MetadataQuorum(settings, disk, dependencies=dependencies.quorum, tls=control)
    except DiskExhausted:
        raise
    except StorageError as error:
        raise StartFailed(str(error)) from error


def _read_tls(config: NodeConfig) -> "NodeTls | None":
    """Return the TLS of a node; None: it has none. Raises StartFailed."""
    if config.control_tls is None and not any(one.tls for one in config.listeners.by_name.values()):
        return None
    from quorumlog.node.tls import NodeTls  # costs memory: only with TLS

    return NodeTls(config)


def read_secret(path: Path | None) -> str | None:
    """Return the secret in the file, without surrounding blanks; None if no file is set.

    Raises StartFailed, without the content of the file.
    """
    if path is None:
        return None
    try:
        text = path.read_text(encoding="ascii").strip()
        mode = path.stat().st_mode
    except OSError as error:
        raise StartFailed(f"{_SETTING}={path}: {error.strerror}") from error
    except UnicodeDecodeError:
        text, mode = "", 0
    if _SECRET.fullmatch(text) is None:
        raise StartFailed(
            f"{_SETTING}={path}: "
            "the file must hold 16 to 1024 printable ASCII characters, no blanks"
        )
    if mode & _READABLE_BY_OTHERS:
        _logger.warning("%s=%s: other users can read the secret; chmod 600 it", _SETTING, path)
    return text
