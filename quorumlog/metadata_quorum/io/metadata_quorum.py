"""The metadata quorum of one node, voter or observer: its log, its image, its control listener.

It starts the disk, the listener and the driver, in this order, and stops them in reverse order. A
fatal error (of the disk, or a bug of ours) is the result of `fatal`: the process must end.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from aiohttp import web

from quorumlog.chance import random_bytes
from quorumlog.clock import wall_clock_ms
from quorumlog.metadata_quorum.controller_requests import DescribeQuorum
from quorumlog.metadata_quorum.core.events import PeerProcessDied
from quorumlog.metadata_quorum.core.messages import (
    EPOCH_STEP_MAX,
    NOBODY,
    Request,
    VoterChangeRequest,
)
from quorumlog.metadata_quorum.driver.committed_image import CommittedImage
from quorumlog.metadata_quorum.driver.dependencies import (
    BrokerProcessDied,
    ControllerDeposed,
    DriverDependencies,
    NotController,
    Stopped,
)
from quorumlog.metadata_quorum.driver.driver import Driver
from quorumlog.metadata_quorum.image.model import ClusterImage, ImagePublisher
from quorumlog.metadata_quorum.io.address_book import AddressBook
from quorumlog.metadata_quorum.io.bootstrap import found
from quorumlog.metadata_quorum.io.control_tls import ControlTls
from quorumlog.metadata_quorum.io.dependencies import REAL_DEPENDENCIES, QuorumDependencies
from quorumlog.metadata_quorum.io.leader_client import Askable, LeaderClient, LeaderWatch
from quorumlog.metadata_quorum.io.outgoing_requests import OutgoingRequests
from quorumlog.metadata_quorum.io.peer_liveness import (
    PresenceClient,
    PresenceServer,
    has_died,
    no_process_listens,
)
from quorumlog.metadata_quorum.io.quorum_description import describe_quorum, describe_status
from quorumlog.metadata_quorum.io.rpc import QUORUM_RPCS, REQUEST_BYTES_MAX, Reply, RpcServer
from quorumlog.metadata_quorum.log.election_store import FILE_NAME, Election, ElectionStore
from quorumlog.metadata_quorum.log.metadata_log import DIRECTORY, MetadataLog
from quorumlog.metadata_quorum.settings import MetadataQuorumSettings
from quorumlog.storage.io.disk import Disk
from quorumlog.tasks import OnError, Tasks, log_failure
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId


class EventLoopClock:
    """Use it in a running loop."""

    @staticmethod
    def now_ms() -> int:
        """Return the loop's monotonic time, rounded down."""
        return int(asyncio.get_running_loop().time() * 1000)

    @staticmethod
    def wall_ms() -> int:
        """Return the time since 1970."""
        return wall_clock_ms()

    @staticmethod
    def call_at(time_ms: int, action: Callable[[], None]) -> asyncio.TimerHandle:
        """Call `action` 1 ms late, so that `now_ms` has reached `time_ms` for certain."""
        return asyncio.get_running_loop().call_at((time_ms + 1) / 1000, action)


# A flush of the log, a write that must not wait for it, the write of a snapshot, the check of a
# snapshot, and a read for a follower's snapshot fetch.
THREADS: Final = 5

T = TypeVar("T")


class DiskThreads:
    """An `Executor` of a few threads. `on_error` is called for work that raises. `close` it."""

    def __init__(self, on_error: OnError) -> None:
        self._tasks: Final = Tasks(on_error)
        self._pool: Final = ThreadPoolExecutor(THREADS, thread_name_prefix="quorum-disk")

    def run(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """Run `work` in a thread, then call `done` with its result in the event loop."""
        self._tasks.start(self._run(work, done))

    async def _run(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        done(await asyncio.get_running_loop().run_in_executor(self._pool, work))

    async def close(self) -> None:
        """Wait until all work in progress has ended: only then may files be closed."""
        await self._tasks.join()
        self._pool.shutdown(wait=False)


RESIGN_TIMEOUT_S: Final = 1.0
LEADER_WAIT_S: Final = 60.0  # the longest wait between two checks; a change ends it
_QUORUM_REQUESTS: Final = tuple(request for request, _ in QUORUM_RPCS.values())
_logger: Final = logging.getLogger(__name__)


class MetadataQuorum:
    """Create it in a running loop; add routes to `app` and publishers, then `start`.

    `app` is the control listener's application: routes added before `start` are served beside
    `/rpc/<Name>` and `/presence`.
    """

    def __init__(
        self,
        settings: MetadataQuorumSettings,
        disk: Disk,
        *,
        dependencies: QuorumDependencies = REAL_DEPENDENCIES,
        tls: ControlTls | None = None,
    ) -> None:
        """Read the disk. `tls`: between nodes; None: plain text.

        Raises StorageError; CorruptCheckpoint if `quorum-state` is not whole; VotersChanged if that
        file belongs to another quorum.
        """
        self.settings: Final = settings
        self.app: Final = web.Application(client_max_size=REQUEST_BYTES_MAX)
        self.fatal: Final[asyncio.Future[BaseException]] = (
            asyncio.get_running_loop().create_future()
        )
        elections = ElectionStore(disk, f"{settings.log_dir}/{DIRECTORY}", settings.voters)
        election = elections.load()
        self._log: Final = _open_log(settings, disk, dependencies)
        self._committed: Final = CommittedImage(self._log)
        self._election: Final = self._founded(elections, election)
        self._say_if_absurd(self._election.leader_epoch)
        self._threads: Final = DiskThreads(self._failed)
        self._leader: Final = LeaderWatch()
        self._addresses: Final = AddressBook.of(settings)
        self._outgoing: Final = OutgoingRequests(
            settings, self._addresses, dependencies, self._failed, tls
        )
        self._quorum: Final = dependencies.make_quorum(settings, self._addresses.configured_voters)
        self._driver: Final = self._driver_of(elections, dependencies)
        cluster_id, secret = settings.cluster_id, settings.shared_secret
        self._server: Final = RpcServer(
            cluster_id=cluster_id, shared_secret=secret, handle=self._handle,
            hear=self._addresses.hear_request, tls=tls,
        )  # fmt: skip
        self._server.add_routes(self.app)
        self._presence_server: Final = PresenceServer(
            check=self._server.check_secret, disconnected=self._broker_disconnected
        )
        self._presence_server.add_routes(self.app)
        self._presence_client: Final = self._presence_of(settings)
        self.controller: Final = LeaderClient(
            node_id=settings.node_id,
            leader=self._leader,
            ask_local=self._ask_local,
            ask_remote=self._outgoing.ask_controller,
            request_timeout_ms=settings.controller_request_timeout_ms,
            attempt_timeout_ms=settings.quorum.controller_quorum_request_timeout_ms,
            kraft_version=lambda: self._addresses.kraft_version,
        )
        self._runner: Final = web.AppRunner(
            self.app, access_log=None, shutdown_timeout=0.5, keepalive_timeout=75
        )
        self._probes: Final = Tasks(log_failure(_logger, "looking for a broker's process"))
        self.port = 0  # of the control listener, once started

    def check_secret(self, request: web.Request) -> None:
        """Raise the response 403 to a request that lacks the shared secret, if there is one."""
        self._server.check_secret(request)

    def open_to_strangers(self, paths: Iterable[str]) -> None:
        """Serve these routes of `app` to peers without a role, if TLS admits such peers."""
        self._server.open_to_strangers(paths)

    def _presence_of(self, settings: MetadataQuorumSettings) -> PresenceClient:
        return PresenceClient(
            self._outgoing.session,
            scheme=self._outgoing.scheme,
            query={"node_id": str(settings.node_id)},
            addresses=self._addresses.find,
            leader_died=self._leader_died,
        )

    def _founded(self, elections: ElectionStore, election: Election) -> Election:
        return found(
            self.settings,
            elections,
            election,
            self._committed.voters,
            is_upgrade_committed=self._committed.is_upgrade_committed,
        )

    def _driver_of(self, elections: ElectionStore, dependencies: QuorumDependencies) -> Driver:
        return dependencies.driver(
            quorum=self._quorum,
            log=self._log,
            elections=elections,
            committed=self._committed,
            settings=self.settings.controller,
            dependencies=DriverDependencies(
                clock=EventLoopClock(),
                executor=self._threads,
                transport=self._outgoing.peers,
                leader_listener=self,
                random_bytes=random_bytes,
                controller=dependencies.controller,
                failed=self._failed,
                voters_changed=self._addresses.voters_changed,
            ),
        )

    def _say_if_absurd(self, leader_epoch: int) -> None:
        last_epoch = max((epoch for epoch, _ in self._log.epoch_starts()), default=0)
        if leader_epoch - last_epoch > EPOCH_STEP_MAX:
            _logger.warning(
                "%s of node %d names epoch %d, but the last record is of epoch %d: a damaged or "
                "hostile peer has used up epochs. If the voters cannot elect a leader, stop them "
                "all; replace each file by one of its lines, with leaderEpoch set to one more than "
                "the newest epoch in any voter's log, leaderId and votedId to -1, and without its "
                "checksum; and start them again",
                FILE_NAME,
                self.settings.node_id,
                leader_epoch,
                last_epoch,
            )

    @property
    def image(self) -> ClusterImage:
        """The newest committed metadata."""
        return self._committed.image

    @property
    def is_active_controller(self) -> bool:
        """Whether this node's controller is active."""
        return self._driver.is_active_controller

    def add_publisher(self, publisher: ImagePublisher) -> None:
        """Publish every change of the image to it, in order, and the present image at once."""
        self._committed.add_publisher(publisher)

    async def start(self, listener: socket.socket | None = None) -> None:
        """Listen (on `listener`, if it is bound already) and take part. Raises OSError."""
        await self._runner.setup()
        here = {"host": self.settings.listen_host, "port": self.settings.listen_port}
        where = here if listener is None else {"sock": listener}
        await self._server.site(self._runner, **where).start()
        self.port = self._runner.addresses[0][1]
        self._driver.start(self._election)

    async def stop(self, *, resign: bool = True) -> None:
        """Stop. With `resign`, hand the leadership over first; without, end at once."""
        if resign and self.port and not self.fatal.done():
            await self._resign()
        self._driver.stop()
        await self._probes.stop()
        await self._outgoing.give_up()
        await self._presence_client.close()
        await self._presence_server.close()
        await self._runner.cleanup()
        await self._outgoing.close()
        await self._threads.close()
        self._log.close()
        self.fatal.cancel()

    async def _resign(self) -> None:
        known = asyncio.get_running_loop().create_future()
        self._driver.resign(known)
        try:
            async with asyncio.timeout(RESIGN_TIMEOUT_S):
                await known
        except (TimeoutError, Stopped):
            _logger.info("no voter has confirmed that node %d resigns", self.settings.node_id)

    async def wait_for_leader(self) -> None:
        """Return once the leader of the quorum is known."""
        while self._leader.leader_id == NOBODY:
            await self._leader.wait(LEADER_WAIT_S)

    def why_leaderless(self) -> str | None:
        """Return why this node has no leader, or cannot follow it; None: it follows a leader."""
        if self._driver.lacks_room:
            return "there is no room for the metadata on its disk"
        if self._driver.leader_id != NOBODY:
            return None
        voters = self._addresses.voter_addresses().items()
        silent = [pair for pair in voters if pair[0] in self._outgoing.peers.silent]
        missing = silent or [pair for pair in voters if pair[0] != self.settings.node_id]
        nodes = ", ".join(f"{node_id} ({address})" for node_id, address in missing)
        said = "that do not answer" if silent else "which have elected no leader yet"
        return f"it waits for a quorum, and so for the nodes {nodes}, {said}"

    def describe(self) -> Mapping[str, object]:
        """Return the quorum for a status page: plain values, ready for JSON."""
        described = describe_status(
            self._quorum, self._addresses, directory_id=self.settings.directory_id
        )
        return described | {
            "leader_id": self._driver.leader_id,
            "log_start_offset": self._log.start_offset,
            "log_end_offset": self._log.end_offset,
            "is_active_controller": self.is_active_controller,
        }

    # --- reports of the driver ---

    def leader_changed(self, leader_id: BrokerId) -> None:
        """Keep a connection to the leader, if it is another node."""
        _logger.info("node %d: the leader is %d", self.settings.node_id, leader_id)
        self._leader.set(leader_id)
        if self.settings.quorum.controller_quorum_dead_process_notice_enable:
            self._presence_client.follow(
                NOBODY if leader_id == self.settings.node_id else leader_id
            )

    def controller_claimed(self) -> None:
        """Probe every registered broker once: a broker may have died with the last controller."""
        _logger.info("node %d is the active controller", self.settings.node_id)
        if self.settings.quorum.controller_quorum_dead_process_notice_enable:
            for broker_id in sorted(self.image.brokers):
                self._probes.start(self._look_for(broker_id, no_process_listens))

    def _failed(self, error: BaseException) -> None:
        """End the node: the driver, a write or a task of ours has raised."""
        self._driver.stop()
        _logger.error(
            "node %d: the metadata quorum has failed", self.settings.node_id, exc_info=error
        )
        if not self.fatal.done():
            self.fatal.set_result(error)

    # --- requests ---

    async def _handle(self, request: Any, request_id: str | None) -> Reply:
        try:
            if isinstance(request, _QUORUM_REQUESTS):
                return Reply.of(*await self._ask_quorum(request))
            return Reply.of(await self._ask_local(request, request_id))
        except Stopped:
            return Reply(error_code=ErrorCode.BROKER_NOT_AVAILABLE)
        except ControllerDeposed as error:
            return Reply(
                error_code=ErrorCode.REQUEST_TIMED_OUT,
                error_message=str(error),
                leader_id=self._driver.leader_id,
            )
        except NotController:
            return Reply(error_code=ErrorCode.NOT_CONTROLLER, leader_id=self._driver.leader_id)

    async def _ask_quorum(self, request: Request) -> tuple[object, bytes | None]:
        """Return the core's response, and records. Raises Stopped.

        ControllerDeposed for a change of the voters: it may be in the log.
        """
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._driver.request(request, reply)
        try:
            response, records = await reply
        except Stopped as error:
            if isinstance(request, VoterChangeRequest):
                raise ControllerDeposed("the leader of the quorum stops") from error
            raise
        return response, records

    async def _ask_local(self, request: Askable, request_id: str | None) -> object:
        if isinstance(request, VoterChangeRequest):
            return (await self._ask_quorum(request))[0]
        if isinstance(request, DescribeQuorum):
            now_ms, wall_ms = EventLoopClock.now_ms(), EventLoopClock.wall_ms()
            return describe_quorum(
                self._quorum, self._addresses, now_ms=now_ms, wall_ms=wall_ms,
                directory_id=self.settings.directory_id,
            )  # fmt: skip
        answer = asyncio.get_running_loop().create_future()
        self._driver.ask(request, answer, request_id)
        return await answer

    # --- processes that died ---

    async def _leader_died(self, leader_id: BrokerId) -> None:
        self._driver.feed(PeerProcessDied(node_id=leader_id))

    async def _broker_disconnected(self, broker_id: BrokerId) -> None:
        if self.is_active_controller:
            await self._look_for(broker_id, has_died)

    async def _look_for(
        self, broker_id: BrokerId, is_gone: Callable[[str], Awaitable[bool]]
    ) -> None:
        """Probe the process of a broker; if it is gone, feed BrokerProcessDied to the driver."""
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            return
        address = self.settings.peer_addresses.get(broker_id, broker.control_address)
        if await is_gone(address):
            _logger.info("the process of broker %d is gone", broker_id)
            self._driver.feed(BrokerProcessDied(broker_id, broker.broker_epoch))


def _open_log(
    settings: MetadataQuorumSettings, disk: Disk, dependencies: QuorumDependencies
) -> MetadataLog:
    log_settings = settings.controller.log_settings
    return MetadataLog.open(disk, settings.log_dir, log_settings, new_log=dependencies.new_log)
