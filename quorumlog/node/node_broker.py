"""The broker of a node: its parts, and the calls between them.

    images of the quorum ─▶ BootGate ─▶ Replicas, GroupService, TransactionService, ImageWatch
    clients ─▶ Server ─▶ handlers ─▶ these parts, and the controller
    TransactionService ─▶ brokers: their leaders write markers, their coordinators verify
    BrokerLifecycle ─▶ the controller: registration and heartbeats

All parts wait for the first image with this process's registration:
docs/decisions/0013-resuming-brokers.md.
"""

import asyncio
import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

from quorumlog.addresses import DEFAULT_LISTENER
from quorumlog.broker.controller_requests.image_watch import ImageWatch
from quorumlog.broker.controller_requests.lifecycle import BrokerLifecycle
from quorumlog.broker.controller_requests.producer_ids import ProducerIds
from quorumlog.broker.groups.io.group_service import GroupService
from quorumlog.broker.partitions.log.log_directories import LogDirectories
from quorumlog.broker.partitions.log.registrations import BrokerProcess
from quorumlog.broker.quotas.throttle import BrokerQuotas
from quorumlog.broker.replicas import Replicas
from quorumlog.broker.server.api import ANONYMOUS, BrokerContext, as_release
from quorumlog.broker.server.connection import Connection
from quorumlog.broker.server.own_connection import OwnConnection
from quorumlog.broker.server.server import ListenerTls, NewConnection, Server
from quorumlog.broker.transactions.io.broker_channels import kafka_peers
from quorumlog.broker.transactions.io.transaction_service import TransactionService
from quorumlog.chance import random_bytes
from quorumlog.clock import wall_clock_ms
from quorumlog.invariants import some
from quorumlog.metadata_quorum.controller_client import BrokerRegistration, ControllerClient
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, ImagePublisher
from quorumlog.metadata_quorum.image.details import Endpoint
from quorumlog.metadata_quorum.image.model import difference
from quorumlog.metadata_quorum.io.metadata_quorum import MetadataQuorum
from quorumlog.node.config import NodeConfig
from quorumlog.node.dependencies import NodeDependencies
from quorumlog.node.identity import OwnDirectory, read_boot_id
from quorumlog.node.inter_broker import inter_broker_security
from quorumlog.node.listeners import StartFailed, listen
from quorumlog.settings.authorization import super_users
from quorumlog.settings.listeners import Listener, Listeners, SecurityProtocol
from quorumlog.storage.errors import DiskExhausted, StorageError
from quorumlog.storage.io.disk import Disk
from quorumlog.tasks import OnError, Tasks
from quorumlog.wire.codec.identifiers import BrokerId

_logger: Final = logging.getLogger("quorumlog.node")


class BootGate:
    """An ImagePublisher in front of others.

    Invariant: their first image has this process's registration. They receive it with a delta from
    the empty image, and then every later image.
    """

    def __init__(self, broker_id: BrokerId, publishers: Sequence[ImagePublisher]) -> None:
        self.opened: Final = asyncio.Event()
        self._broker_id: Final = broker_id
        self._publishers: Final = tuple(publishers)
        self._broker_epoch = -1
        self._image = ClusterImage()

    def registered(self, broker_epoch: int) -> None:
        """Set the epoch of this process's registration; the last image may have it already."""
        self._broker_epoch = broker_epoch
        self._maybe_open()

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        """Pass the image on, or keep it until the gate opens."""
        self._image = image
        if self.opened.is_set():
            self._pass_on(delta)
        else:
            self._maybe_open()

    def _maybe_open(self) -> None:
        broker = self._image.brokers.get(self._broker_id)
        if self.opened.is_set() or broker is None or broker.broker_epoch != self._broker_epoch:
            return
        self.opened.set()
        self._pass_on(difference(ClusterImage(), self._image))

    def _pass_on(self, delta: ClusterDelta) -> None:
        for publisher in self._publishers:
            publisher.publish(delta, self._image)


def log_directories(
    config: NodeConfig,
    directories: Sequence[OwnDirectory],
    disk: Disk,
    dependencies: NodeDependencies,
    announced: BrokerRegistration,
) -> LogDirectories:
    """Return the log directories; failed directories are included by their names only.

    `announced`: the registration of this process; the directories record its incarnation.
    """
    usable = []
    for path, directory_id in directories:
        if directory_id is not None:
            directory = dependencies.new_logs(disk, path, config.log)
            directory.directory_id = directory_id
            usable.append(directory)
    refused = [path for path, its_id in directories if its_id is None]
    process = BrokerProcess(incarnation_id=announced.incarnation_id, boot_id=announced.boot_id)
    return LogDirectories(usable, refused, process)


def endpoints(listeners: Listeners) -> tuple[Endpoint, ...]:
    """Return the endpoints to register; none for the one listener that needs none."""
    if listeners.by_name.keys() == {DEFAULT_LISTENER}:
        return ()
    return tuple(
        Endpoint(
            name=one.name,
            host=one.advertised.host,
            port=one.advertised.port,
            security_protocol=one.protocol.value,
        )
        for one in listeners.by_name.values()
        if one.advertised is not None
    )


def registration(
    config: NodeConfig, directories: Sequence[OwnDirectory], dependencies: NodeDependencies
) -> BrokerRegistration:
    """Return the registration of this process's broker."""
    metadata_dir = str(config.log_dir)
    directory_id = next(its_id for path, its_id in directories if path == metadata_dir)
    return BrokerRegistration(
        broker_id=BrokerId(config.node_id),
        incarnation_id=random_bytes(16).hex(),
        host=config.listeners.inter_broker_address.host,
        port=config.listeners.inter_broker_address.port,
        endpoints=endpoints(config.listeners),
        control_address=config.control_address,
        rack=config.rack,
        directory_id=some(directory_id, "a node has a metadata log directory"),
        boot_id=read_boot_id(dependencies.boot_id_file),
        min_insync_replicas=config.broker.min_insync_replicas,
    )


def _hosts(
    config: NodeConfig,
    replicas: Replicas,
    producer_ids: ProducerIds,
    dependencies: NodeDependencies,
    on_fatal: OnError,
) -> tuple[GroupService, TransactionService]:
    """Return both services; the replicas notify them of the partitions led by this broker."""
    transactions = TransactionService(
        broker_id=replicas.broker_id,
        replicas=replicas,
        next_producer_id=producer_ids.next,
        peers=kafka_peers(
            replicas.broker_id, config.broker, config.peer_kafka, replicas.security, on_fatal
        ),
        settings=config.broker,
        wall_ms=wall_clock_ms,
        on_fatal=on_fatal,
        rules=dependencies.transaction_rules,
    )
    groups = GroupService(
        replicas=replicas,
        settings=config.broker,
        verifier=transactions.verifier,
        on_fatal=on_fatal,
        rules=dependencies.group_rules,
    )
    replicas.add_leadership_listener(groups)
    replicas.add_leadership_listener(transactions)
    return groups, transactions


def for_clients(
    context: BrokerContext, dependencies: NodeDependencies | None = None
) -> BrokerContext:
    """Return the context of connections of clients, by the settings of the node.

    Requests of this broker to itself have none of these limits.
    """
    return as_release(authorized(with_telemetry(context), dependencies))


def authorized(context: BrokerContext, dependencies: NodeDependencies | None) -> BrokerContext:
    """Return the context for clients: with the authorizer of the settings, if they have one."""
    settings = context.settings
    if not settings.authorizer_class_name:
        return context
    from quorumlog.broker.authorization.access_control import access_control
    from quorumlog.broker.guards.registry import guarded

    new_authorizer = None if dependencies is None else dependencies.new_authorizer
    return replace(
        context,
        handlers=guarded(context.handlers),
        access=access_control(settings, lambda: context.image, new_authorizer),
    )


def with_telemetry(context: BrokerContext) -> BrokerContext:
    """Return the context for clients: with telemetry (KIP-714), if the settings have it."""
    if not context.settings.client_telemetry:
        return context
    from quorumlog.broker.handlers.optional.telemetry import HANDLERS
    from quorumlog.broker.telemetry.core.instances import ClientInstances

    return replace(
        context,
        handlers={**context.handlers, **HANDLERS},
        telemetry=ClientInstances(context.settings.telemetry_max_bytes),
    )


def warn_of_missing_rights(config: NodeConfig) -> None:
    """Log the rights without which a cluster with an authorizer cannot work."""
    settings = config.broker
    if not settings.authorizer_class_name or settings.allow_everyone_if_no_acl_found:
        return
    if not settings.super_users:
        _logger.warning(
            "authorizer.class.name is set without super.users: no user can create the first ACL"
        )
    has_peers = len(config.voters) > 1 or bool(config.bootstrap)
    is_plain = config.listeners.inter_broker.protocol is SecurityProtocol.PLAINTEXT
    if has_peers and is_plain and ANONYMOUS not in super_users(settings.super_users):
        _logger.warning(
            "the other brokers connect as %s, because the listener %s does not authenticate: "
            "unless super.users or an ACL of CLUSTER_ACTION names it, no follower can fetch",
            ANONYMOUS,
            config.listeners.inter_broker.name,
        )


CONTROLLED_SHUTDOWN_MS: Final = 2_000
NO_TLS: Final[Mapping[str, ListenerTls]] = MappingProxyType({})


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
        self._ready, self._tasks, self._new_session = (
            ready,
            Tasks(on_fatal),
            dependencies.new_session,
        )
        self.replicas: Final = Replicas(
            broker_id=broker_id,
            settings=config.broker,
            logs=log_directories(config, directories, disk, dependencies, announced),
            controller=controller,
            security=inter_broker_security(config.listeners),
            partition_rules=dependencies.partition_rules,
            peer_addresses=config.peer_kafka,
            new_dependencies=dependencies.new_dependencies,
        )
        self.metadata: Final = ImageWatch(self.replicas.is_to_lead)
        ids = ProducerIds(broker_id=broker_id, metadata=self.metadata, controller=controller)
        self.groups, self.transactions = _hosts(config, self.replicas, ids, dependencies, on_fatal)
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
            quotas=BrokerQuotas(config.broker),
        )
        self.server: Final = Server(for_clients(context, dependencies), on_fatal=on_fatal)
        self.transactions.reach_itself_by(partial(OwnConnection.open, context))  # without a socket
        publishers = self.replicas, self.groups, self.transactions, context.quotas, self.metadata
        self.gate: Final = BootGate(broker_id, publishers)
        self.lifecycle: Final = self._new_lifecycle(config, announced, controller)
        quorum.add_publisher(self.gate)
        quorum.add_publisher(self.lifecycle)

    def _new_lifecycle(
        self, config: NodeConfig, announced: BrokerRegistration, controller: ControllerClient
    ) -> BrokerLifecycle:
        return BrokerLifecycle(
            registration=announced,
            controller=controller,
            settings=config.lifecycle,
            registered=self._registered,
            may_lead=self.replicas.may_lead,
            directories=self.replicas.directory_report,
            directory_failed=self.replicas.directory_failed,
            unanswering=self.replicas.unanswering,
        )

    async def open_directories(self) -> None:
        """Read the files of the log directories. Raises StartFailed; DiskExhausted: call again."""
        try:
            await self.replicas.start()
        except DiskExhausted:
            raise
        except StorageError as error:
            raise StartFailed(str(error)) from error

    async def start(
        self,
        listeners: Sequence[tuple[Listener, socket.socket]],
        secret: str,
        tls: Mapping[str, ListenerTls] = NO_TLS,
    ) -> None:
        """Open the logs and register, after `open_directories`. `ready` is set later.

        `secret`: the same on all nodes; clients cannot guess it. `tls`: of the listeners that have
        it, by their names.
        """
        self._tasks.start(_raise_failure(self.replicas.failure))
        self._tasks.start(_raise_failure(self.lifecycle.failure))
        self._tasks.start(self._serve(listeners, secret.encode(), tls))
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

    async def _serve(
        self,
        listeners: Sequence[tuple[Listener, socket.socket]],
        secret: bytes,
        tls: Mapping[str, ListenerTls],
    ) -> None:
        """Serve clients once this broker's metadata is current; set `ready` once it may lead."""
        await self.gate.opened.wait()
        for listener, bound in listeners:
            listen("listeners", bound)
            await self.server.serve(
                bound,
                listener.name,
                listener.max_connections,
                connection=await self._connection(listener, secret),
                tls=tls.get(listener.name),
                connection_rate=listener.connection_rate,
                is_inter_broker=listener.is_inter_broker,
            )
        await self.replicas.may_lead.wait()
        await self.lifecycle.unfenced.wait()
        self._ready.set()

    async def _connection(self, listener: Listener, secret: bytes) -> NewConnection:
        """Return the maker of a listener's connections. Raises StartFailed."""
        if listener.sasl is None:
            return Connection
        # Loaded where it is needed: a node without SASL stays as small as it is.
        from quorumlog.broker.authentication.authenticator import Authenticator
        from quorumlog.broker.server.sasl_connection import SaslConnection

        authenticator = Authenticator(
            listener.sasl,
            credentials=lambda: self.metadata.image.access.credentials,
            secret=secret,
            tasks=self._tasks,
            new_session=self._new_session,
        )
        try:
            await authenticator.start()
        except ImportError as error:
            raise StartFailed(f"the listener {listener.name}: {error}") from error
        return partial(SaslConnection, authenticator=authenticator)


async def _raise_failure(failure: asyncio.Future[None]) -> None:
    await asyncio.shield(failure)
