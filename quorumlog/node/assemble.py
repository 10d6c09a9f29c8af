"""One node out of its parts: what is started in which order, and stopped in the other.

The metadata quorum comes first, then the replicas (a broker's), then the Kafka listener, then the
registration. The image reaches the replicas only once it shows this process's registration:
docs/decisions/0002-a-broker-acts-on-metadata-only-once-registered.md.
"""

import asyncio
import secrets
import socket
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from quorumlog.broker.clocks import wall_clock_ms
from quorumlog.broker.controller_requests.image_watch import ImageWatch
from quorumlog.broker.controller_requests.lifecycle import BrokerLifecycle
from quorumlog.broker.controller_requests.producer_ids import ProducerIds
from quorumlog.broker.groups.io.group_service import GroupService
from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.broker.partitions.core.partition import KAFKA_RULES, PartitionRules
from quorumlog.broker.replicas import Replicas
from quorumlog.broker.server.api import BrokerContext
from quorumlog.broker.server.server import BACKLOG, Server
from quorumlog.metadata_quorum.controller_client import BrokerRegistration
from quorumlog.metadata_quorum.io.metadata_quorum import MetadataQuorum
from quorumlog.metadata_quorum.settings import MetadataQuorumSettings
from quorumlog.node import identity
from quorumlog.node.boot_gate import BootGate
from quorumlog.node.config import Address, NodeConfig
from quorumlog.node.errors import StartFailed
from quorumlog.node.identity import BOOT_ID_FILE, check_identity, read_boot_id
from quorumlog.node.routes import add_routes
from quorumlog.node.secret import read_secret
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.disk import Disk, RealDisk
from quorumlog.wire.codec.identifiers import BrokerId

CONTROLLED_SHUTDOWN_MS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """What a node is made of, and finds on its machine; a test of the tests replaces one."""

    partition_rules: PartitionRules = KAFKA_RULES
    boot_id_file: Path = BOOT_ID_FILE


class Node:
    """One node of a cluster: the metadata quorum, and a broker if its roles say so.

    `ready` is set when the broker is unfenced, or, without that role, when the quorum has a leader.
    `fatal` ends with the error after which the process must stop. Making one binds its ports and
    reads its disk, and raises StartFailed.
    """

    def __init__(self, config: NodeConfig, parts: NodeParts) -> None:
        self.config: Final = config
        self.ready: Final = asyncio.Event()
        self.fatal: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        self.started_s: Final = time.monotonic()
        disk = RealDisk()
        shared_secret = read_secret(config.shared_secret_file)
        self.directory_id: Final = check_identity(disk, config)
        self._control: Final = _bind("control.listener", config.control)
        self._kafka: Final = _bind("listeners", config.kafka) if config.is_broker else None
        try:
            settings = _quorum_settings(
                config, shared_secret, is_new_cluster=identity.is_new_cluster(disk, config)
            )
            self.quorum: Final = MetadataQuorum(settings, disk)
            identity.forget_new_cluster(disk, config)
        except StorageError as error:
            raise StartFailed(str(error)) from error
        self.broker: Final = BrokerParts(self, disk, parts) if config.is_broker else None
        add_routes(self.quorum.app, self)
        self._watching: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start everything, or nothing. Raises StartFailed; `ready` comes later."""
        try:
            listen("control.listener", self._control)
            await self.quorum.start(self._control)
            self.watch(self._fail_with_quorum())
            if self.broker is not None and self._kafka is not None:
                await self.broker.start(self._kafka)
            else:
                self.watch(self._ready_with_leader())
        except StartFailed:
            await self.quorum.stop(resign=False)
            raise

    async def stop(self) -> None:
        """Hand over what this node leads, then stop everything, cleanly."""
        for task in self._watching:
            task.cancel()
        if self.broker is not None:
            await self.broker.stop()
        await self.quorum.stop()

    def fail(self, error: BaseException) -> None:
        """End the node: what it believes is no longer true."""
        if not self.fatal.done():
            self.fatal.set_exception(error)

    def watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside everything else; if it fails, the node ends."""
        task = asyncio.create_task(work)
        self._watching.add(task)
        task.add_done_callback(self._watched)

    def _watched(self, task: asyncio.Task[None]) -> None:
        self._watching.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(error)

    async def _fail_with_quorum(self) -> None:
        raise await asyncio.shield(self.quorum.fatal)

    async def _ready_with_leader(self) -> None:
        await self.quorum.wait_for_leader()
        self.ready.set()


class BrokerParts:
    """The broker of a node."""

    def __init__(self, node: Node, disk: Disk, parts: NodeParts) -> None:
        config, quorum = node.config, node.quorum
        broker_id = BrokerId(config.node_id)
        self._node: Final = node
        self.metadata: Final = ImageWatch()
        self.replicas: Final = Replicas(
            broker_id=broker_id,
            settings=config.broker,
            log_settings=config.log,
            disk=disk,
            log_directory=str(config.log_dir),
            controller=quorum.controller,
            partition_rules=parts.partition_rules,
        )
        self.groups: Final = GroupService(
            replicas=self.replicas,
            settings=config.broker,
            wall_ms=wall_clock_ms,
            on_fatal=node.fail,
        )
        self.replicas.add_leadership_listener(self.groups)
        context = BrokerContext(
            broker_id=broker_id,
            cluster_id=config.cluster_id,
            settings=config.broker,
            metadata=self.metadata,
            replicas=self.replicas,
            groups=self.groups,
            producer_ids=ProducerIds(
                broker_id=broker_id, metadata=self.metadata, controller=quorum.controller
            ),
            controller=quorum.controller,
            handlers=HANDLERS,
            wall_ms=wall_clock_ms,
        )
        self.server: Final = Server(context, on_fatal=node.fail)
        # The watch last: what a client reads in our metadata is done here by then.
        self.gate: Final = BootGate(broker_id, [self.replicas, self.groups, self.metadata])
        self.lifecycle: Final = BrokerLifecycle(
            registration=BrokerRegistration(
                broker_id=broker_id,
                incarnation_id=secrets.token_hex(16),
                host=config.advertised.host,
                port=config.advertised.port,
                control_address=config.control_address,
                directory_id=node.directory_id,
                boot_id=read_boot_id(parts.boot_id_file),
                min_insync_replicas=config.broker.min_insync_replicas,
            ),
            registrar=quorum.controller,
            settings=config.lifecycle,
            registered=self._registered,
            may_lead=self.replicas.may_lead,
        )
        quorum.add_publisher(self.gate)
        quorum.add_publisher(self.lifecycle)

    async def start(self, listener: socket.socket) -> None:
        """Start the replicas and register; listen once that is seen, and be ready once let in."""
        try:
            await self.replicas.start()
        except StorageError as error:
            raise StartFailed(str(error)) from error
        self._node.watch(_await_failure(self.replicas.failure))
        self._node.watch(_await_failure(self.lifecycle.failure))
        self._node.watch(self._serve(listener))
        epoch = self.replicas.clean_shutdown_epoch
        self.lifecycle.start(previous_broker_epoch=-1 if epoch is None else epoch)

    async def stop(self) -> None:
        """Hand over leaderships, answer who waits, close every log."""
        await self.lifecycle.stop(timeout_ms=CONTROLLED_SHUTDOWN_MS)
        await self.server.stop()
        self.groups.stop()
        await self.replicas.stop()

    def _registered(self, broker_epoch: int) -> None:
        self.replicas.registered(broker_epoch)
        self.gate.registered(broker_epoch)

    async def _serve(self, listener: socket.socket) -> None:
        """Answer clients: not before our metadata is worth reading, nor fenced for long."""
        await self.gate.opened.wait()
        listen("listeners", listener)
        await self.server.serve(listener)
        await self.lifecycle.unfenced.wait()
        self._node.ready.set()


async def _await_failure(failure: asyncio.Future[None]) -> None:
    await asyncio.shield(failure)


def _quorum_settings(
    config: NodeConfig, shared_secret: str | None, *, is_new_cluster: bool
) -> MetadataQuorumSettings:
    return MetadataQuorumSettings(
        cluster_id=config.cluster_id,
        node_id=BrokerId(config.node_id),
        voters={BrokerId(node_id): address for node_id, address in config.voters.items()},
        log_dir=str(config.log_dir),
        listen_host=config.control.host,
        listen_port=config.control.port,
        is_new_cluster=is_new_cluster,
        shared_secret=shared_secret,
        quorum=config.quorum,
        controller=config.controller,
    )


def listen(name: str, bound: socket.socket) -> None:
    """Let connections come in. Raises StartFailed.

    Another process may have bound the same port beside us, and be the first to listen.
    """
    try:
        bound.listen(BACKLOG)
    except OSError as error:
        host, port, *_ = bound.getsockname()
        raise StartFailed(f"{name}={host}:{port}: {error.strerror}") from error


def _bind(name: str, address: Address) -> socket.socket:
    """Bind without listening: a port in use is found before anything is started.

    Until somebody listens, a connection is refused: as it should be, for nobody is there yet.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address.host, address.port))
    except OSError as error:
        bound.close()
        raise StartFailed(f"{name}={address}: {error.strerror}") from error
    return bound
