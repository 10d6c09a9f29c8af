"""Disks that are slow, or stand still: no deadline runs meanwhile, and the timeouts follow them."""

import asyncio
import logging
from collections.abc import Mapping

import pytest

from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import FetchRequest, VoteRequest
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Unattached,
)
from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.metadata_quorum.core.timeouts import WRITE_MS_MAX, Timeouts
from quorumlog.metadata_quorum.driver.driver import QUIET_MS, Stalls
from quorumlog.wire.codec.identifiers import BrokerId, Offset
from tests.support.metadata_quorum.drivers import Network
from tests.support.metadata_quorum.quorums import (
    answered,
    asked,
    fail,
    fetch_request,
    fetch_response,
    only,
    records,
    reply,
    requested,
    role_of,
    sent,
    started,
    tick,
    vote_request,
    vote_response,
)

LOCAL = QuorumSettings(
    controller_quorum_election_timeout_ms=200, controller_quorum_fetch_timeout_ms=1000
)
"""The timeouts of `quorumlog up`."""


# --- the core ---


def candidate(*, voter_write_ms: int = 0) -> tuple[Quorum, list[effects.Effect]]:
    """Voter 1 at 1000 ms: it has the pre-vote of voter 2, and orders the write of its own vote."""
    node = started()
    first, _ = sent(tick(node, 1000), VoteRequest)
    pre_vote = vote_response(0, granted=True, write_ms=voter_write_ms)
    ordered = node.step(1000, answered(first, pre_vote))
    assert isinstance(node.state.role, Candidate)
    return node, ordered


def leader(*, voter_write_ms: int = 0) -> Quorum:
    """Voter 1 at 1000 ms, elected by voter 2."""
    node, ordered = candidate(voter_write_ms=voter_write_ms)
    first, _ = sent(ordered, VoteRequest)
    node.step(1000, answered(first, vote_response(1, granted=True, write_ms=voter_write_ms)))
    assert node.is_leader
    return node


def test_the_deadline_of_a_candidate_runs_from_the_end_of_its_own_write() -> None:
    node, ordered = candidate()
    assert only(effects.PersistElection, ordered).voted_id == 1
    assert node.next_deadline_ms() == 2000
    node.step(6000, events.WriteEnded(took_ms=5000))
    tick(node, 6900)
    assert isinstance(node.state.role, Candidate)
    assert node.next_deadline_ms() == 7000
    tick(node, 7000)
    assert isinstance(node.state.role, Prospective)


def test_a_candidate_waits_for_the_write_of_a_slow_voter() -> None:
    node, _ = candidate(voter_write_ms=400)
    assert node.next_deadline_ms() == 1000 + 5 * 400


def test_a_voter_that_gave_no_pre_vote_makes_a_candidate_wait_no_longer() -> None:
    node = started()
    first, second = sent(tick(node, 1000), VoteRequest)
    node.step(1000, answered(second, vote_response(0, granted=False, write_ms=900)))
    node.step(1000, answered(first, vote_response(0, granted=True)))
    assert isinstance(node.state.role, Candidate)
    assert node.next_deadline_ms() == 2000


def test_a_leader_waits_for_the_fetches_of_slow_voters() -> None:
    node = leader(voter_write_ms=600)
    assert role_of(node, Leader).check_quorum_deadline_ms == 1000 + 15 * 600
    node = leader()
    node.step(1100, asked(fetch_request(2, epoch=1, offset=0, last_epoch=0, write_ms=700)))
    assert role_of(node, Leader).check_quorum_deadline_ms == 1100 + 15 * 700


def test_a_voter_and_a_follower_say_how_slow_their_disks_are() -> None:
    node = started()
    for _ in range(2):
        node.step(0, events.WriteEnded(took_ms=70))
    voted = reply(node, vote_request(epoch=1), 140)
    assert (voted.vote_granted, voted.write_ms) == (True, 70)
    fail(node, role_of(node, Unattached).fetch_id, 140)
    assert requested(tick(node, 340), FetchRequest).write_ms == 70


def test_the_fetch_deadline_of_a_follower_stands_still_while_its_log_is_flushed() -> None:
    node = started(leader_epoch=1, leader_id=2)
    fetch_id = role_of(node, Follower).fetch_id
    assert fetch_id is not None
    received = events.ResponseReceived(
        request_id=fetch_id,
        source=BrokerId(2),
        response=fetch_response(1),
        records=records(0, 3, (1, 0)),
    )
    only(effects.FlushLog, node.step(100, received))
    flushed = events.LogFlushed(flushed_offset=Offset(3), took_ms=8000)
    assert sent(node.step(8100, flushed), FetchRequest)
    assert role_of(node, Follower).fetch_deadline_ms == 100 + 8000 + 2000


@pytest.mark.parametrize(
    ("writes", "counted"),
    [
        ((3, 2, 4), 3),
        ((120,), 0),
        ((120, 120), 120),
        ((3, 12_000, 3), 3),
        ((500, 600, 5, 5), 5),
        ((9_000, 9_000), WRITE_MS_MAX),
        ((-5, -5), 0),
    ],
)
def test_the_median_of_three_writes_counts(writes: tuple[int, ...], counted: int) -> None:
    timeouts = Timeouts(QuorumSettings(), lambda: 0.5)
    for took_ms in writes:
        timeouts.note_write(took_ms)
    assert timeouts.write_ms == counted
    assert timeouts.fetch_ms() == max(2000, 10 * counted)
    assert timeouts.election_ms(()) == max(1000, 5 * counted) * 3 // 2


def test_a_peer_cannot_claim_more_than_the_slowest_disk() -> None:
    timeouts = Timeouts(QuorumSettings(), lambda: 0.0)
    timeouts.note_peer(BrokerId(2), 1 << 60)
    timeouts.note_peer(BrokerId(3), -(1 << 60))
    assert timeouts.fetch_ms([BrokerId(2)]) == 10 * WRITE_MS_MAX
    assert timeouts.fetch_ms([BrokerId(3), BrokerId(4)]) == 2000


# --- whole quorums ---


async def elected_s(network: Network) -> float:
    """How long it takes until there is an active controller."""
    clock = asyncio.get_running_loop().time
    began_s = clock()
    await network.leader()
    return clock() - began_s


@pytest.mark.jumping_time
@pytest.mark.parametrize(
    "slow_s", [{1: 0.12, 2: 0.12, 3: 0.12}, {3: 0.2}, {1: 0.2, 2: 0.2}, {1: 1.0, 2: 1.0, 3: 1.0}]
)
async def test_a_quorum_on_slow_disks_elects_a_leader_again_and_again(
    slow_s: Mapping[int, float],
) -> None:
    async with Network(3, settings=LOCAL) as network:
        for node_id, seconds in slow_s.items():
            network.voters[node_id].threads.slow_s = seconds
        slowest_s = max(slow_s.values())
        for _ in range(6):
            leading = await network.leader()
            victim = leading.node_id
            if len(slow_s) == 1:
                victim = next(id_ for id_ in network.ids if id_ not in {victim, *slow_s})
                leading.driver.feed(events.ResignRequested())
            disk = await network.kill(victim)
            assert await elected_s(network) < 2 + 40 * slowest_s
            network.boot(victim, disk).threads.slow_s = slow_s.get(victim, 0.0)


@pytest.mark.jumping_time
async def test_a_leader_whose_followers_write_slowly_stays_the_leader() -> None:
    async with Network(3, settings=LOCAL) as network:
        leading = await network.leader()
        for voter in network.voters.values():
            if voter is not leading:
                voter.threads.slow_s = 0.9
        epoch = leading.quorum.state.leader_epoch
        for _ in range(30):
            await asyncio.sleep(1)
        assert (await network.leader()).quorum.state.leader_epoch == epoch


@pytest.mark.jumping_time
async def test_a_disk_that_stands_still_for_seconds_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with Network(3, settings=LOCAL) as network:
        leading = await network.leader()
        for voter in network.voters.values():
            voter.threads.slow_s = 3.2 if voter is leading else 0.0
        leading.driver.feed(events.ResignRequested())
        await asyncio.sleep(10)
        await network.leader()
    said = f"node {leading.node_id} waited 3.2 s for its disk: election state"
    assert said in caplog.text


class SetClock:
    """A clock that a test sets."""

    time_ms = 0

    def now_ms(self) -> int:
        return self.time_ms

    def wall_ms(self) -> int:
        return self.time_ms

    def call_at(self, time_ms: int, action: object) -> None:
        raise AssertionError("no timer is needed")


def test_a_stall_is_one_line_and_many_stalls_are_a_few(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    clock = SetClock()
    stalls = Stalls(clock, BrokerId(4))  # type: ignore[arg-type]
    clock.time_ms = 999
    assert (stalls.ended(0, "its disk: voters"), caplog.messages) == (999, [])
    clock.time_ms = 2500
    assert stalls.ended(0, "its disk: voters") == 2500
    assert caplog.messages == ["node 4 waited 2.5 s for its disk: voters"]
    for _ in range(3):
        assert stalls.ended(0, "its disk: voters") == 2500
    clock.time_ms += QUIET_MS
    stalls.ended(clock.time_ms - 1000, "its turn")
    assert caplog.messages[1:] == [
        "node 4 waited 1.0 s for its turn, and 3 more times since the last line"
    ]
    clock.time_ms -= 5000  # a clock of a test only: nothing takes less than no time
    assert stalls.ended(clock.time_ms + 1, "its turn") == 0
