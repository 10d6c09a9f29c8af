"""The driver on a machine that loses power at its n-th write, for every n.

One voter of three wins an election, loses it, drops what the next leader does not have, takes what
it does, and votes again; the test plays its peers. After the power loss, its files must bear out
all that it has said.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.metadata_quorum.core.messages import (
    NOBODY,
    BeginQuorumEpochRequest,
    DivergingEpoch,
    FetchRequest,
    VoteRequest,
    VoteResponse,
)
from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.metadata_quorum.driver.dependencies import Stopped
from quorumlog.metadata_quorum.driver.driver import Driver
from quorumlog.metadata_quorum.image.records import NoOp, encode_record
from quorumlog.metadata_quorum.io.outgoing_requests import Peers
from quorumlog.metadata_quorum.io.rpc_client import RpcFailed
from quorumlog.metadata_quorum.log.election_store import Election, ElectionStore
from quorumlog.metadata_quorum.log.metadata_log import DIRECTORY, MetadataLog
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.metadata_quorum.drivers import call, driver_on
from tests.support.metadata_quorum.quorums import (
    fetch_response,
    leader_change,
    quorum_of,
    vote_request,
    vote_response,
)
from tests.support.storage.crashes import WRITES, PowerLost

SETTINGS = QuorumSettings(controller_quorum_election_timeout_ms=2)


class Voters:
    """Voters 2 and 3, and a list of what they heard."""

    def __init__(self) -> None:
        self.epoch = 0  # the highest that was said
        self.votes: list[tuple[int, int]] = []  # (epoch, candidate)
        self.acknowledged = 0, 0  # (offset, epoch of the record before it)
        self.answers: dict[tuple[int, int], tuple[object, bytes | None]] = {}  # to fetches
        self.heard = asyncio.Event()

    async def call(
        self, address: str, request: object, *, timeout_ms: int
    ) -> tuple[Any, bytes | None]:
        self.heard.set()
        match request:
            case VoteRequest(replica_epoch=epoch, replica_id=candidate, pre_vote=pre_vote):
                self.epoch = max(self.epoch, epoch)
                if not pre_vote:
                    self.votes.append((epoch, candidate))
                return vote_response(epoch, granted=True), None
            case FetchRequest(fetch_offset=offset, last_fetched_epoch=last_epoch):
                self.epoch = max(self.epoch, request.current_leader_epoch)
                self.acknowledged = offset, last_epoch
                if (offset, last_epoch) not in self.answers:
                    await asyncio.Event().wait()  # for ever
                answer = self.answers.pop((offset, last_epoch))
                if getattr(answer[0], "diverging_epoch", None):
                    self.acknowledged = 0, 0
                return answer
            case BeginQuorumEpochRequest(leader_epoch=epoch):
                self.epoch = max(self.epoch, epoch)
            case _:
                pass
        raise RpcFailed("it has gone")

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self.heard.clear()
            await self.heard.wait()

    def check(self, disk: SimDisk) -> None:
        """Read the disk as the next process will."""
        election = ElectionStore(disk, f"/data/{DIRECTORY}").load()
        log = MetadataLog.open(disk, "/data")
        starts = log.epoch_starts()
        assert max(election.leader_epoch, *(epoch for epoch, _ in starts), 0) >= self.epoch
        for epoch, candidate in self.votes:
            assert (election.leader_epoch, election.voted_id) >= (epoch, candidate)
            assert election.leader_epoch > epoch or election.voted_id == candidate
        offset, last_epoch = self.acknowledged
        assert log.end_offset >= offset
        if offset:
            assert last_epoch in [epoch for epoch, start in starts if start < offset]
        assert all(epoch <= election.leader_epoch for epoch, _ in starts)


def epoch_six() -> bytes:
    """What the leader of epoch 6 sends: its LeaderChange, and one record."""
    log = MetadataLog.open(SimDisk(), "/data")
    log.append_leader_change(leader_change(6, 0), wall_ms=0)
    log.append([*map(encode_record, [NoOp()])], Epoch(6), wall_ms=0)
    return log.read(Offset(0), Offset(2))


async def live(driver: Driver, peers: Voters) -> None:
    """Tell the story."""
    await peers.until(lambda: driver.leader_id == 1)
    diverging = DivergingEpoch(epoch=Epoch(0), end_offset=Offset(0))
    peers.answers = {
        (1, 1): (fetch_response(6, leader=3, diverging_epoch=diverging), None),
        (0, 0): (fetch_response(6, leader=3), epoch_six()),
    }
    begin = BeginQuorumEpochRequest(leader_id=BrokerId(3), leader_epoch=Epoch(6))
    told, _ = await call(driver, begin)
    peers.epoch = max(peers.epoch, getattr(told, "leader_epoch", NOBODY))
    await peers.until(lambda: peers.acknowledged == (2, 6))
    vote, _ = await call(driver, vote_request(2, epoch=9, log=(6, 2)))
    assert isinstance(vote, VoteResponse)
    assert vote.vote_granted
    peers.epoch = vote.leader_epoch
    peers.votes.append((9, 2))


async def until_the_power_fails(
    disk: SimDisk, voters: Voters, count: Callable[[str, str], None]
) -> None:
    failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def failed(error: BaseException) -> None:
        driver.stop()
        if not failure.done():
            failure.set_result(error)

    peers = Peers(voters, str, failed)
    driver, *_ = driver_on(disk, quorum_of(settings=SETTINGS), peers, failed=failed)
    disk.on_operation = count
    driver.start(Election())
    story = asyncio.create_task(live(driver, voters))
    try:
        async with asyncio.timeout(30):
            waiting: set[asyncio.Future[Any]] = {failure, story}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if story.done() and not isinstance(story.exception(), Stopped):
            story.result()
    finally:
        driver.stop()
        await peers.close()
        story.cancel()
        await asyncio.gather(story, return_exceptions=True)


async def test_what_left_the_node_is_on_its_disk_whenever_the_power_fails() -> None:
    async def scenario(writes: int) -> bool:
        """Return whether the power failed."""
        disk, peers, rng = SimDisk(), Voters(), random.Random(writes)
        left = writes

        def count(operation: str, path: str) -> None:
            nonlocal left
            left -= operation in WRITES
            if left <= 0:
                disk.on_operation = None
                disk.crash(rng)
                raise PowerLost(f"{operation} {path}")

        await until_the_power_fails(disk, peers, count)
        has_failed, disk.on_operation = left <= 0, None
        if not has_failed:
            disk.crash(rng)
            assert peers.votes == [(1, 1), (1, 1), (9, 2)]
        peers.check(disk)
        return has_failed

    writes = 1
    while await scenario(writes):
        writes += 1
    assert writes > 25  # it came that far: a vote is two writes, once its file is there
