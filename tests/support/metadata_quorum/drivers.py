"""Drivers of whole quorums in one event loop, on simulated disks, in time that jumps."""

import asyncio
import heapq
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar, cast

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.metadata_quorum.controller.requests import ControllerRequest
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.metadata_quorum.driver.committed_image import CommittedImage
from quorumlog.metadata_quorum.driver.driver import Driver
from quorumlog.metadata_quorum.driver.seams import Parts, Stopped
from quorumlog.metadata_quorum.image.model import ClusterDelta, ClusterImage
from quorumlog.metadata_quorum.image.records import MetadataRecord
from quorumlog.metadata_quorum.io.disk_threads import DiskThreads
from quorumlog.metadata_quorum.io.rpc import RpcFailed
from quorumlog.metadata_quorum.log.election_store import ElectionStore
from quorumlog.metadata_quorum.log.metadata_log import DIRECTORY, MetadataLog
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.wire.codec.identifiers import BrokerId, Offset

P = ParamSpec("P")
T = TypeVar("T")


class JumpingLoop(asyncio.SelectorEventLoop):
    """Where nothing is left to do, it is at once the time of the next timer."""

    now_s = 0.0
    _ready: Any
    _scheduled: Any
    _timer_cancelled_count: int

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        while self._scheduled and self._scheduled[0].cancelled():
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False
            self._timer_cancelled_count -= 1
        if not self._ready and self._scheduled:
            self.now_s = max(self.now_s, self._scheduled[0].when())
        super()._run_once()  # type: ignore[misc]  # asyncio's own


def run(scenario: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(scenario)


async def until(holds: Callable[[], bool], *, within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.001)


class NoThreads(DiskThreads):
    """Does the work at once; `hold` lets the outcome of flushes wait for `release`."""

    def __init__(self) -> None:
        super().__init__()
        self._free = asyncio.Event()
        self._free.set()
        self.held = 0  # flushes that wait

    def hold(self) -> None:
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        result = work(*args, **kwargs)
        if getattr(work, "__name__", "") == "flush":
            self.held += 1
            await self._free.wait()
            self.held -= 1
        return result


class Seen:
    """An ImagePublisher that keeps the last image."""

    image = ClusterImage()

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        self.image = image


class Voter:
    """One node: its disk, its driver, and what it has published."""

    def __init__(
        self,
        node_id: int,
        quorum_class: type[Quorum],
        network: "Network",
        *,
        disk: SimDisk | None = None,
        is_new: bool = False,
    ) -> None:
        self.disk, self.threads, self.seen = disk or SimDisk(), NoThreads(), Seen()
        self.log = MetadataLog.open(self.disk, "/data")
        self.claims = 0
        committed = CommittedImage(self.log)
        committed.add_publisher(self.seen)
        self.quorum = quorum_class(
            node_id=BrokerId(node_id),
            voters=tuple(map(BrokerId, network.ids)),
            settings=network.settings,
            random_fraction=random.Random(node_id).random,
        )
        self.elections = ElectionStore(self.disk, f"/data/{DIRECTORY}")
        self.driver = Driver(
            Parts(
                node_id=BrokerId(node_id),
                quorum=self.quorum,
                log=self.log,
                elections=self.elections,
                threads=self.threads,
                committed=committed,
                transport=network,
                watcher=cast(
                    Any,
                    SimpleNamespace(
                        leader_changed=lambda leader_id: None, controller_claimed=self._claimed
                    ),
                ),
                addresses=str,
                controller=ControllerSettings(),
                draw=random.Random(1).randbytes,
            )
        )
        election = self.elections.load()
        if election.is_new and not is_new:
            election = replace(election, is_new=False)  # the cluster is new
        self.running = asyncio.create_task(self.driver.run(election))

    def _claimed(self) -> None:
        self.claims += 1

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
    ) -> None:
        self.ids = range(1, voters + 1)
        self.settings = settings or QuorumSettings()
        self.voters: dict[int, Voter] = {}
        self._quorum_class = quorum_class

    async def __aenter__(self) -> "Network":
        self.voters = {node_id: Voter(node_id, self._quorum_class, self) for node_id in self.ids}
        await self.leader()
        return self

    async def __aexit__(self, *error: object) -> None:
        tasks = [voter.running for voter in self.voters.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def leader(self) -> Voter:
        """Wait until there is an active controller."""
        active = [voter for voter in self.voters.values() if voter.driver.is_active_controller]
        if not active:
            await until(
                lambda: any(voter.driver.is_active_controller for voter in self.voters.values())
            )
            return await self.leader()
        return active[0]

    async def kill(self, node_id: int) -> SimDisk:
        """End a process at once; return its disk, which keeps what was written."""
        voter = self.voters.pop(node_id)
        voter.running.cancel()
        await asyncio.gather(voter.running, return_exceptions=True)
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
            return await leader.driver.ask(request)

    async def call(
        self, address: str, request: Any, *, timeout_ms: int
    ) -> tuple[Any, bytes | None]:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self.voters[int(address)].driver.request(request)
        except (TimeoutError, Stopped, KeyError) as error:
            raise RpcFailed(f"no answer: {error!r}") from error
