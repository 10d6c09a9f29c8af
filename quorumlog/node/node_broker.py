"""The broker of a node: its parts, and the calls between them.

    images of the quorum ─▶ BootGate ─▶ Replicas, GroupService, TransactionService, ImageWatch
    clients ─▶ Server ─▶ handlers ─▶ these parts, and the controller
    TransactionService ─▶ brokers: their leaders write markers, their coordinators verify
    BrokerLifecycle ─▶ the controller: registration and heartbeats

All parts wait for the first image with this process's registration:
docs/decisions/0013-resuming-brokers.md.
"""

import asyncio
import socket
from collections.abc import Sequence
from typing import Final

from quorumlog.broker.controller_requests.image_watch import ImageWatch
from quorumlog.broker.controller_requests.lifecycle import BrokerLifecycle
from quorumlog.broker.controller_requests.producer_ids import ProducerIds
from quorumlog.broker.replicas import Replicas
from quorumlog.broker.server.api import BrokerContext
from quorumlog.broker.server.server import Server
from quorumlog.clock import wall_clock_ms
from quorumlog.metadata_quorum.io.metadata_quorum import MetadataQuorum
from quorumlog.node.boot_gate import BootGate
from quorumlog.node.config import NodeConfig
from quorumlog.node.coordinators import Coordinators
from quorumlog.node.dependencies import NodeDependencies
from quorumlog.node.errors import StartFailed
from quorumlog.node.identity import OwnDirectory
from quorumlog.node.listeners import listen
from quorumlog.node.registration import log_directories, registration
from quorumlog.storage.errors import DiskExhausted, StorageError
from quorumlog.storage.io.disk import Disk
from quorumlog.tasks import OnError, Tasks
from quorumlog.wire.codec.identifiers import BrokerId

CONTROLLED_SHUTDOWN_MS: Final = 2_000


class NodeBroker:
    """Created, started and stopped by its node.

    Sets `ready` when clients are served and the broker is unfenced. Each failure after which the
    process must stop is passed to `on_fatal`.
    """

    def __init__(
        self,
        config: NodeConfig,
        quorum: MetadataQuorum,
        disk: Disk,
        *,
        directories: Sequence[OwnDirectory],
        dependencies: NodeDependencies,
        ready: asyncio.Event,
        on_fatal: OnError,
    ) -> None:
        broker_id, controller = BrokerId(config.node_id), quorum.controller
        announced = registration(config, directories, dependencies)
        self._ready: Final = ready
        self._tasks: Final = Tasks(on_fatal)
        self.replicas: Final = Replicas(
            broker_id=broker_id,
            settings=config.broker,
            logs=log_directories(config, directories, disk, dependencies, announced),
            controller=controller,
            partition_rules=dependencies.partition_rules,
            peer_addresses=config.peer_kafka,
            new_dependencies=dependencies.new_dependencies,
        )
        self.metadata: Final = ImageWatch(self.replicas.is_to_lead)
        ids = ProducerIds(broker_id=broker_id, metadata=self.metadata, controller=controller)
        coordinators = Coordinators(config, self.replicas, ids, dependencies, on_fatal)
        self.groups, self.transactions = coordinators.groups, coordinators.transactions
        self.replicas.add_leadership_listener(self.metadata)
        context = BrokerContext(
            broker_id=broker_id,
            cluster_id=config.cluster_id,
            settings=config.broker,
            static=config.static,
            metadata=self.metadata,
            replicas=self.replicas,
            groups=self.groups,
            transactions=self.transactions,
            verifier=self.transactions.verifier,
            producer_ids=ids,
            controller=controller,
            handlers=dependencies.handlers,
            wall_ms=wall_clock_ms,
        )
        self.server: Final = Server(context, on_fatal=on_fatal)
        coordinators.reach_own_broker(context)
        self.gate: Final = BootGate(
            broker_id, [self.replicas, self.groups, self.transactions, self.metadata]
        )
        self.lifecycle: Final = BrokerLifecycle(
            registration=announced,
            registrar=controller,
            settings=config.lifecycle,
            registered=self._registered,
            may_lead=self.replicas.may_lead,
            directories=self.replicas.directory_report,
            directory_failed=self.replicas.directory_failed,
        )
        quorum.add_publisher(self.gate)
        quorum.add_publisher(self.lifecycle)

    async def open_directories(self) -> None:
        """Read the files of the log directories. Raises StartFailed; DiskExhausted: call again."""
        try:
            await self.replicas.start()
        except DiskExhausted:
            raise
        except StorageError as error:
            raise StartFailed(str(error)) from error

    async def start(self, listener: socket.socket) -> None:
        """Open the logs and register, after `open_directories`. `ready` is set later."""
        self._tasks.start(_raise_failure(self.replicas.failure))
        self._tasks.start(_raise_failure(self.lifecycle.failure))
        self._tasks.start(self._serve(listener))
        epoch = self.replicas.clean_shutdown_epoch
        self.lifecycle.start(
            previous_broker_epoch=-1 if epoch is None else epoch,
            incarnations=self.replicas.incarnations,
        )

    async def stop(self) -> None:
        """Hand over leaderships, respond to every open request, close every log."""
        await self._tasks.stop()
        await self.lifecycle.stop(timeout_ms=CONTROLLED_SHUTDOWN_MS)
        await self.server.stop()
        self.groups.stop()
        await self.transactions.stop()
        await self.replicas.stop()

    def _registered(self, broker_epoch: int) -> None:
        self.replicas.registered(broker_epoch)
        self.gate.registered(broker_epoch)

    async def _serve(self, listener: socket.socket) -> None:
        """Serve clients once this broker's metadata is current; set `ready` once it may lead."""
        await self.gate.opened.wait()
        listen("listeners", listener)
        await self.server.serve(listener)
        await self.replicas.may_lead.wait()
        await self.lifecycle.unfenced.wait()
        self._ready.set()


async def _raise_failure(failure: asyncio.Future[None]) -> None:
    await asyncio.shield(failure)
