"""Drivers of whole quorums in one event loop, on simulated disks, in time that jumps."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
    NewTopic,
)
from quorumlog.metadata_quorum.controller_requests import (
    ControllerRequest,
    CreateTopics,
    DeleteTopics,
)
from quorumlog.metadata_quorum.core.messages import Request
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.metadata_quorum.driver.committed_image import CommittedImage
from quorumlog.metadata_quorum.driver.dependencies import DriverDependencies, Stopped, Transport
from quorumlog.metadata_quorum.driver.driver import Driver
from quorumlog.metadata_quorum.driver.patience import attempt
from quorumlog.metadata_quorum.image.features import KRAFT_FEATURE, KRAFT_VERSION_MAX
from quorumlog.metadata_quorum.image.model import ClusterDelta, ClusterImage
from quorumlog.metadata_quorum.image.records import MetadataRecord
from quorumlog.metadata_quorum.io.metadata_quorum import EventLoopClock
from quorumlog.metadata_quorum.io.outgoing_requests import Peers
from quorumlog.metadata_quorum.io.rpc_client import RpcFailed
from quorumlog.metadata_quorum.log.election_store import ElectionStore
from quorumlog.metadata_quorum.log.metadata_log import DIRECTORY, MetadataLog
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.wire.codec.identifiers import BrokerId, Offset
from tests.support.metadata_quorum.brokers import broker_registration
from tests.support.metadata_quorum.voters import directory_id
from tests.support.metadata_quorum.voters import voter as voter_of

T = TypeVar("T")


async def until(holds: Callable[[], bool], *, within_s: float = 60.0) -> None:
    """Wait until it holds; look after each ms at first, and later at least each 50 ms."""
    pause_s = 0.001
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(pause_s)
            pause_s = min(1.02 * pause_s, 0.05)


class NoThreads:
    """An Executor that does the work at once; `hold` lets the outcome of some work wait.

    `slow_s`: so long every other outcome waits.
    """

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self.slow_s = 0.0
        self._failed = failed
        self._holds: set[str] = set()
        self._waiting: list[tuple[str, Callable[[], None]]] = []

    @property
    def held(self) -> int:
        """How many outcomes wait."""
        return len(self._waiting)

    def hold(self, function: str = "flush") -> None:
        """Let the outcomes of this function wait, too."""
        self._holds.add(function)

    def release(self, function: str = "flush") -> None:
        self._holds.discard(function)
        released = [done for name, done in self._waiting if name == function]
        self._waiting = [(name, done) for name, done in self._waiting if name != function]
        for done in released:
            done()

    def run(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the node ends
            self._failed(error)
            return
        asked = work.args[0] if isinstance(work, partial) and work.func is attempt else work
        function = getattr(getattr(asked, "func", asked), "__name__", "")
        if function in self._holds:
            self._waiting.append((function, lambda: done(result)))
        else:
            asyncio.get_running_loop().call_later(self.slow_s, done, result)


class Seen:
    """An ImagePublisher that keeps the last image."""

    image = ClusterImage()

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        self.image = image


class Claims:
    """A LeaderListener that counts how often the controller has taken over."""

    def __init__(self) -> None:
        self.count = 0

    def leader_changed(self, leader_id: BrokerId) -> None:
        pass

    def controller_claimed(self) -> None:
        self.count += 1


def driver_on(
    disk: SimDisk,
    quorum: Quorum,
    transport: Transport,
    *,
    failed: Callable[[BaseException], None],
    listener: Claims | None = None,
    controller_settings: ControllerSettings | None = None,
    voters_changed: Callable[[VoterSet | None], None] = lambda _: None,
) -> tuple[Driver, MetadataLog, ElectionStore, CommittedImage, NoThreads]:
    """A driver with its log, election store, image and threads."""
    settings = controller_settings or ControllerSettings()
    log, threads = MetadataLog.open(disk, "/data", settings.log_settings), NoThreads(failed)
    elections = ElectionStore(disk, f"/data/{DIRECTORY}")
    committed = CommittedImage(log)
    driver = Driver(
        quorum=quorum,
        log=log,
        elections=elections,
        committed=committed,
        settings=settings,
        dependencies=DriverDependencies(
            clock=EventLoopClock(),
            executor=threads,
            transport=transport,
            leader_listener=listener or Claims(),
            random_bytes=random.Random(1).randbytes,
            failed=failed,
            voters_changed=voters_changed,
        ),
    )
    return driver, log, elections, committed, threads


async def ask(driver: Driver, request: ControllerRequest, request_id: str | None = None) -> Any:
    """Send a request to the controller of this node, and wait for its response."""
    answer = asyncio.get_running_loop().create_future()
    driver.ask(request, answer, request_id)
    return await answer


async def call(driver: Driver, request: Request) -> tuple[Any, bytes | None]:
    """Send a peer's request to this node, and wait for the answer."""
    answer: asyncio.Future[tuple[Any, bytes | None]] = asyncio.get_running_loop().create_future()
    driver.request(request, answer)
    return await answer


class Voter:
    """One node: its disk, its driver, and its published images."""

    def __init__(
        self,
        node_id: int,
        quorum_class: type[Quorum],
        network: "Network",
        *,
        disk: SimDisk | None = None,
        is_new: bool = False,
    ) -> None:
        self.node_id, self.disk, self.seen = node_id, disk or SimDisk(), Seen()
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.heard: list[VoterSet | None] = []  # of the voters in force
        self.quorum = quorum_class(
            node_id=BrokerId(node_id),
            voters=VoterSet(tuple(replace(voter_of(one), directory_id="") for one in network.ids)),
            settings=network.settings,
            random_fraction=random.Random(node_id).random,
            directory_id=directory_id(str(node_id)) if network.has_directories else None,
        )
        self.peers, self.listener = Peers(network, str, self.failed), Claims()
        self.driver, self.log, self.elections, self.committed, self.threads = driver_on(
            self.disk,
            self.quorum,
            self.peers,
            failed=self.failed,
            listener=self.listener,
            controller_settings=network.controller_settings,
            voters_changed=self.heard.append,
        )
        self.committed.add_publisher(self.seen)
        election = self.elections.load()
        if election.is_new and not is_new:
            election = replace(election, is_new=False)  # the cluster is new
        self.driver.start(election)

    def failed(self, error: BaseException) -> None:
        self.driver.stop()
        if not self.failure.done():
            self.failure.set_result(error)

    async def stop(self) -> None:
        self.driver.stop()
        await self.peers.close()

    def records(self) -> list[MetadataRecord]:
        """All that is in its log, committed or not."""
        return [record for _, record in self.log.replay(Offset(0), self.log.end_offset)]


class Network:
    """Voters 1 to n, and the way from each to each. Use it as an asynchronous context."""

    def __init__(
        self,
        voters: int,
        *,
        settings: QuorumSettings | None = None,
        quorum_class: type[Quorum] = Quorum,
        controller_settings: ControllerSettings | None = None,
        has_directories: bool = False,
    ) -> None:
        """`has_directories`: the nodes are controllers: each can become a voter."""
        self.ids = range(1, voters + 1)
        self.has_directories = has_directories
        self.controller_settings = controller_settings
        self.settings = settings or QuorumSettings()
        self.voters: dict[int, Voter] = {}
        self._quorum_class = quorum_class

    async def __aenter__(self) -> "Network":
        self.voters = {node_id: Voter(node_id, self._quorum_class, self) for node_id in self.ids}
        await self.leader()
        return self

    async def __aexit__(self, *error: object) -> None:
        for voter in self.voters.values():
            await voter.stop()

    async def leader(self) -> Voter:
        """Wait until there is an active controller."""
        active = [voter for voter in self.voters.values() if voter.driver.is_active_controller]
        if not active:
            await until(
                lambda: any(voter.driver.is_active_controller for voter in self.voters.values())
            )
            return await self.leader()
        return active[0]

    async def follower(self) -> Voter:
        """A voter that does not lead."""
        leader = await self.leader()
        return self.voters[leader.node_id % len(self.ids) + 1]

    async def kill(self, node_id: int) -> SimDisk:
        """End a process at once; return its disk, which keeps all written bytes."""
        voter = self.voters.pop(node_id)
        await voter.stop()
        voter.disk.kill()
        return voter.disk

    def boot(self, node_id: int, disk: SimDisk | None = None) -> Voter:
        """Start a process on a disk; without one, the disk is new and the cluster is not."""
        voter = Voter(node_id, self._quorum_class, self, disk=disk, is_new=disk is None)
        self.voters[node_id] = voter
        return voter

    async def ask(self, request: ControllerRequest) -> Any:
        leader = await self.leader()
        async with asyncio.timeout(600):
            return await ask(leader.driver, request)

    async def call(
        self, address: str, request: Any, *, timeout_ms: int
    ) -> tuple[Any, bytes | None]:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await call(self.voters[int(address)].driver, request)
        except (TimeoutError, Stopped, KeyError) as error:
            raise RpcFailed(f"no answer: {error!r}") from error


def registration(broker_id: int, **more: Any) -> BrokerRegistration:
    where = {"control_address": f"h:{broker_id}", "directory_id": f"d{broker_id}"}
    return broker_registration(broker_id, **where, **more)


def heartbeat(broker_id: int, epoch: int, **wants: Any) -> BrokerHeartbeat:
    """A heartbeat of a broker that has replayed all."""
    return BrokerHeartbeat(
        broker_id=BrokerId(broker_id), broker_epoch=epoch, metadata_offset=2**40, **wants
    )


async def register(network: Network, broker_id: int = 1, **more: Any) -> int:
    """Register a broker and have it unfenced; return its epoch."""
    epoch: int = (await network.ask(registration(broker_id, **more))).broker_epoch
    assert not (await network.ask(heartbeat(broker_id, epoch))).is_fenced
    return epoch


def create(*names: str, partitions: int = 1, replication_factor: int = 1) -> CreateTopics:
    topics = (
        NewTopic(name=name, partitions=partitions, replication_factor=replication_factor)
        for name in names
    )
    return CreateTopics(topics=tuple(topics))


def codes(response: Any) -> list[str]:
    """The names of the codes of the results in a response."""
    return [result.error_code.name for result in response.results]


async def work(network: Network, *, rounds: int = 6) -> None:
    """Create a topic in each round, and delete that of the round before."""
    await register(network, boot_id="b", features={KRAFT_FEATURE: (0, KRAFT_VERSION_MAX)})
    for number in range(rounds):
        response = await network.ask(create(f"t{number}", partitions=2))
        assert codes(response)[0] in {"NONE", "TOPIC_ALREADY_EXISTS"}
        old = (await network.leader()).committed.image.topics.get(f"t{number - 1}")
        if old is not None:
            await network.ask(DeleteTopics(topic_ids=(old.topic_id,)))


def content(image: ClusterImage) -> tuple[object, ...]:
    return image.end_offset, image.brokers, image.topics, image.topic_names, image.next_producer_id


async def caught_up(network: Network) -> None:
    """Wait until all nodes show the same as the leader; none has failed."""
    nodes = network.voters.values()
    end_offset = (await network.leader()).committed.image.end_offset
    await until(lambda: all(one.committed.image.end_offset >= end_offset for one in nodes))
    await until(lambda: len({one.committed.image.end_offset for one in nodes}) == 1)
    first, *others = [content(one.committed.image) for one in nodes]
    assert others == [first] * len(others)
    assert not any(one.failure.done() for one in nodes)
