"""Voters that lost their disks: they do not elect who lacks what is committed."""

import asyncio
from dataclasses import replace

import pytest

from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import FetchRequest
from quorumlog.metadata_quorum.core.quorum import Quorum, Rules
from quorumlog.metadata_quorum.core.quorum_state import QuorumState
from quorumlog.metadata_quorum.core.roles import Follower, Unattached
from quorumlog.wire.codec.identifiers import BrokerId
from tests.support.metadata_quorum.drivers import Network, until
from tests.support.metadata_quorum.quorums import (
    answered,
    asked,
    asked_in_vain,
    begin,
    fail,
    fetch_response,
    flush,
    only,
    quorum_of,
    records,
    reply,
    requested,
    sent,
    started,
    tick,
    vote_request,
)
from tests.support.metadata_quorum.voters import directory_id
from tests.unit.metadata_quorum.test_driver_commits import create, register


class TakesPartAlthoughNew(QuorumState):
    @property
    def takes_part(self) -> bool:
        return self.is_voter

    def may_vote(self, *, is_named: bool) -> bool:
        return self.is_voter or is_named


class VotesAlthoughNew(Quorum):
    """A mutant: it takes its disk for what it has promised."""

    rules = Rules(state=TakesPartAlthoughNew)


# --- the rule ---


@pytest.mark.parametrize("pre", [True, False])
def test_a_new_voter_gives_no_vote(pre: bool) -> None:
    node = started(is_new=True)
    assert not reply(node, vote_request(epoch=0 if pre else 1, pre=pre)).vote_granted
    assert node._state.voted_id == -1


def test_a_new_voter_does_not_stand_and_asks_around() -> None:
    node = started(is_new=True)
    tick(node, 60_000)
    assert isinstance(node.role, Unattached)
    node.step(60_000, asked(begin(2, 4)))
    assert asked_in_vain(node, range(62_000, 66_000, 500)) == {2, 3}  # its leader is silent
    assert isinstance(node.role, Follower)


def test_a_new_voter_takes_part_when_it_holds_durably_all_that_a_leader_knows_committed() -> None:
    node = started(is_new=True)
    orders = node.step(1, asked(begin(2, 4)))
    assert only(effects.PersistElection, orders).is_new
    assert requested(orders, FetchRequest).replica_is_new
    [fetch] = sent(orders, FetchRequest)
    [fetch] = sent(node.step(2, answered(fetch, fetch_response(4))), FetchRequest)
    assert node._state.is_new  # the leader does not know yet what is committed
    response = fetch_response(4, high_watermark=5)
    node.step(3, answered(fetch, response, records=records(0, 5, (4, 0))))
    assert node._state.is_new  # it holds them, but not durably
    [fetch] = sent(flush(node, 4), FetchRequest)
    orders = node.step(5, answered(fetch, response))
    assert [*map(type, orders)] == [effects.PersistElection, effects.SendRequest]
    assert not only(effects.PersistElection, orders).is_new
    # The leader hears of it when it is durable.
    assert not requested(orders, FetchRequest).replica_is_new
    node.step(6, events.PeerProcessDied(node_id=BrokerId(2)))
    assert node.next_deadline_ms() is not None
    assert reply(node, vote_request(3, epoch=5, log=(4, 5)), 7).vote_granted


def test_a_restart_in_between_leaves_it_new_and_a_lone_voter_never_is() -> None:
    node = started(is_new=True, leader_epoch=4, leader_id=2)
    tick(node, 60_000)
    assert isinstance(node.role, Follower)
    assert started(voters=(1,), is_new=True).is_leader
    assert not started(9, is_new=True)._state.is_new  # an observer


def bootstrapped(*configured: int) -> Quorum:
    """Return node 4 with an empty disk, the directory of a voter, and two addresses to ask."""
    node = quorum_of(4, configured, directory_id=directory_id("4"), bootstrap=2)
    node.step(0, events.Started(is_new=True))
    return node


def test_a_new_node_that_knows_no_voter_gives_no_vote_to_a_candidate_that_names_it() -> None:
    node = bootstrapped()
    vote = replace(
        vote_request(3, epoch=9, voter=4, log=(1, 2)),
        replica_directory_id=directory_id("3"),
        voter_directory_id=directory_id("4"),
    )
    assert not reply(node, vote).vote_granted
    assert node._state.voted_id == -1


def test_a_new_node_that_is_configured_as_the_only_voter_asks_around_and_does_not_lead() -> None:
    node = bootstrapped(4)
    fail(node, 1)
    assert asked_in_vain(node, range(0, 6_000, 500)) == {-2, -3}
    assert isinstance(node.role, Unattached)


# --- whole drivers ---


@pytest.mark.parametrize("quorum_class", [Quorum, VotesAlthoughNew])
@pytest.mark.jumping_time
async def test_a_wiped_voter_and_one_that_is_behind_elect_no_leader_without_what_is_committed(
    quorum_class: type[Quorum],
) -> None:
    async def scenario() -> set[str]:
        """Return the topics that the cluster knows in the end."""
        async with Network(3, quorum_class=quorum_class) as network:
            leader = await network.leader()
            behind, holder = sorted({1, 2, 3} - {leader.driver.leader_id})
            disk = await network.kill(behind)
            await register(network)
            await network.ask(create("kept"))
            await until(lambda: "kept" in network.voters[holder].seen.image.topics)
            kept = await network.kill(leader.driver.leader_id)
            await network.kill(holder)
            network.boot(behind, disk)
            wiped = network.boot(holder)
            await asyncio.sleep(30)
            led = any(voter.driver.is_active_controller for voter in network.voters.values())
            if led is (quorum_class is Quorum):
                pytest.fail(f"there {'is a' if led else 'is no'} leader")
            network.boot(leader.node_id, kept)
            await network.leader()
            await until(lambda: wiped.quorum.high_watermark > 5)
            await until(lambda: not wiped.elections.load().is_new)
            return {*(await network.leader()).seen.image.topics}

    if quorum_class is Quorum:
        assert await scenario() == {"kept"}
    else:
        with pytest.raises((AssertionError, TimeoutError)):
            assert await scenario() == {"kept"}


@pytest.mark.jumping_time
async def test_two_wiped_voters_of_three_elect_nobody_and_the_third_is_not_lost() -> None:
    async with Network(3) as network:
        await register(network)
        await network.ask(create("kept"))
        leader = await network.leader()
        node_id = leader.driver.leader_id
        for other in {1, 2, 3} - {node_id}:
            await network.kill(other)
            network.boot(other)
        kept = await network.kill(node_id)
        await asyncio.sleep(30)
        network.boot(node_id, kept)
        await asyncio.sleep(30)
        assert not any(voter.driver.is_active_controller for voter in network.voters.values())
        assert not any(voter.failure.done() for voter in network.voters.values())
        assert network.voters[node_id].log.end_offset > 3


@pytest.mark.jumping_time
async def test_one_wiped_voter_catches_up_and_then_its_vote_counts() -> None:
    async with Network(3) as network:
        await register(network)
        await network.ask(create("kept"))
        leader = await network.leader()
        wiped_id = min({1, 2, 3} - {leader.driver.leader_id})
        await network.kill(wiped_id)
        wiped = network.boot(wiped_id)
        await until(lambda: not wiped.elections.load().is_new)
        await until(lambda: "kept" in wiped.seen.image.topics)
        await network.kill(leader.driver.leader_id)
        again = await network.leader()  # by the votes of the wiped one and the other
        assert {*again.seen.image.topics} == {"kept"}
