"""A node that keeps its place among the voters (KIP-853, KIP-1186), and one that lost its disk."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.effects import Effect
from quorumlog.metadata_quorum.core.messages import (
    AddVoterRequest,
    FetchRequest,
    RemoveVoterRequest,
    UpdateVoterRequest,
)
from quorumlog.metadata_quorum.core.quorum import Quorum, Rules
from quorumlog.metadata_quorum.core.quorum_state import QuorumState
from quorumlog.metadata_quorum.core.roles import Follower, Unattached
from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.metadata_quorum.drivers import Network, create, register, until
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
    role_of,
    sent,
    started,
    tick,
    vote_request,
)
from tests.support.metadata_quorum.voters import directory_id, voter, voter_set

INTERVAL_MS = 3 * QuorumSettings().controller_quorum_fetch_timeout_ms
CHANGES = AddVoterRequest | RemoveVoterRequest | UpdateVoterRequest


def following(
    voters: VoterSet,
    *,
    number: int = 4,
    auto_join: bool = True,
    address: str = "",
    high_watermark: int = 1,
    **disk: Any,
) -> tuple[Quorum, list[Effect]]:
    """A controller that follows node 2, and its orders after it has fetched from it at 0 ms."""
    quorum = quorum_of(
        number,
        VoterSet(()),
        directory_id=directory_id(str(number)),
        address=address or f"host{number}:{number}",
        bootstrap=1,
        auto_join=auto_join,
    )
    started = events.Started(
        leader_epoch=Epoch(1),
        log_end_offset=Offset(1),
        flushed_offset=Offset(1),
        epoch_starts=((Epoch(1), Offset(0)),),
        voter_sets=((Offset(0), voters),),
        **disk,
    )
    quorum.step(0, started)
    [fetch] = sent(quorum.step(0, asked(begin(2, 1, leader_address="host2:2"))), FetchRequest)
    orders = quorum.step(0, answered(fetch, fetch_response(1, high_watermark=high_watermark)))
    fail(quorum, role_of(quorum, Follower).fetch_id)  # it fetches on: the next one is a test's
    return quorum, orders


def follower(voters: VoterSet, **given: Any) -> Quorum:
    return following(voters, **given)[0]


def fetched(quorum: Quorum, *sets: VoterSet) -> tuple[list[Effect], list[Effect]]:
    """Let it fetch a record for each voter set, flush them, and hear that they are committed.

    Returns its orders before this, and after.
    """
    [fetch] = sent(tick(quorum, 500), FetchRequest)
    in_order = tuple((Offset(at), one) for at, one in enumerate(sets, start=1))
    more = records(1, 1 + len(sets), (1, 1), voter_sets=in_order)
    first = fetch_response(1, high_watermark=1)
    orders = quorum.step(500, answered(fetch, first, records=more)) + flush(quorum, 500)
    [fetch] = sent(orders, FetchRequest)
    last = fetch_response(1, high_watermark=1 + len(sets))
    return orders, quorum.step(500, answered(fetch, last))


def changes(orders: list[Effect]) -> list[CHANGES]:
    """Return the changes of the voters that a node requests."""
    requests = [one.request for one in orders if isinstance(one, effects.SendRequest)]
    return [one for one in requests if isinstance(one, CHANGES)]


def kept_alive(quorum: Quorum, until_ms: int) -> list[tuple[int, CHANGES]]:
    """What it asks its leader for until then, while each fetch is answered after 500 ms."""
    found: list[tuple[int, CHANGES]] = []
    orders = tick(quorum, 100)
    for now_ms in range(500, until_ms + 1, 500):
        fetches = sent(orders, FetchRequest)
        orders = tick(quorum, now_ms)
        for fetch in fetches:
            orders += quorum.step(now_ms, answered(fetch, fetch_response(1, high_watermark=1)))
        for order in orders:
            if isinstance(order, effects.SendRequest) and isinstance(order.request, CHANGES):
                assert order.destination == 2
                found.append((now_ms, order.request))
    return found


def test_a_controller_adds_itself_at_once_and_every_three_fetch_timeouts() -> None:
    quorum, orders = following(voter_set(1, 2, 3))
    add = AddVoterRequest(voter=voter(4), ack_when_committed=False)
    assert changes(orders) == [add]
    assert kept_alive(quorum, 2 * INTERVAL_MS) == [(INTERVAL_MS, add), (2 * INTERVAL_MS, add)]


def test_it_removes_first_what_its_id_was_with_another_directory() -> None:
    voters = voter_set(1, 2).with_voter(voter(4, "lost"))
    remove = RemoveVoterRequest(voter_id=BrokerId(4), directory_id=directory_id("lost"))
    quorum, orders = following(voters)
    assert changes(orders) == [remove]
    before, after = fetched(quorum, voter_set(1, 2))
    assert changes(before) == []  # the leader makes one change at a time
    assert changes(after) == [AddVoterRequest(voter=voter(4), ack_when_committed=False)]


def test_a_node_asks_for_nothing_before_it_may_vote() -> None:
    voters = voter_set(1, 2).with_voter(voter(4, "lost"))
    _, orders = following(voters, is_new=True, high_watermark=2)  # it lacks a committed record
    assert changes(orders) == []
    _, orders = following(voters, is_new=True)
    assert isinstance(changes(orders)[0], RemoveVoterRequest)


@pytest.mark.parametrize(
    "given",
    [{"was_voter": True}, {"auto_join": False}, {"number": 3}],
    ids=["it was a voter", "it may not", "it is a voter at its known address"],
)
def test_nothing_is_asked_for(given: dict[str, Any]) -> None:
    assert kept_alive(follower(voter_set(1, 2, 3), **given), INTERVAL_MS) == []


def test_it_remembers_durably_that_it_was_a_voter() -> None:
    added, known = fetched(follower(voter_set(1, 2), number=3), voter_set(1, 2, 3))
    assert only(effects.VotersChanged, added).voters == voter_set(1, 2, 3)
    assert not any(isinstance(one, effects.PersistElection) for one in added)
    assert only(effects.PersistElection, known).was_voter


def test_one_that_learns_at_once_that_it_was_added_and_removed_does_not_come_back() -> None:
    quorum = follower(voter_set(1, 2, 3))
    _, orders = fetched(quorum, voter_set(1, 2, 3, 4), voter_set(1, 2, 3))
    assert quorum.state.was_voter
    for under_way in sent(orders, FetchRequest):
        fail(quorum, under_way.request_id, 500)
    assert kept_alive(quorum, 2 * INTERVAL_MS) == []


def test_a_voter_tells_its_new_address() -> None:
    quorum = follower(voter_set(1, 2, 3), number=3, address="moved:3", auto_join=False)
    moved = replace(voter(3), address="moved:3")
    update = UpdateVoterRequest(voter=moved, current_leader_epoch=Epoch(1))
    assert kept_alive(quorum, INTERVAL_MS) == [(INTERVAL_MS, update)]


def test_nothing_is_asked_of_a_leader_that_is_silent() -> None:
    quorum = follower(voter_set(1, 2, 3))
    for now_ms in range(500, 2 * INTERVAL_MS, 500):  # its fetch gets no answer
        assert changes(tick(quorum, now_ms)) == []


# --- voters that lost their disks do not elect a leader without the committed records ---


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
    assert node.state.voted_id == -1


def test_a_new_voter_does_not_stand_and_asks_around() -> None:
    node = started(is_new=True)
    tick(node, 60_000)
    assert isinstance(node.state.role, Unattached)
    node.step(60_000, asked(begin(2, 4)))
    assert asked_in_vain(node, range(62_000, 66_000, 500)) == {2, 3}  # its leader is silent
    assert isinstance(node.state.role, Follower)


def test_a_new_voter_takes_part_when_it_holds_durably_all_that_a_leader_knows_committed() -> None:
    node = started(is_new=True)
    orders = node.step(1, asked(begin(2, 4)))
    assert only(effects.PersistElection, orders).is_new
    assert requested(orders, FetchRequest).replica_is_new
    [fetch] = sent(orders, FetchRequest)
    [fetch] = sent(node.step(2, answered(fetch, fetch_response(4))), FetchRequest)
    assert node.state.is_new  # the leader does not know yet what is committed
    response = fetch_response(4, high_watermark=5)
    node.step(3, answered(fetch, response, records=records(0, 5, (4, 0))))
    assert node.state.is_new  # it holds them, but not durably
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
    assert isinstance(node.state.role, Follower)
    assert started(voters=(1,), is_new=True).is_leader
    assert not started(9, is_new=True).state.is_new  # an observer


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
    assert node.state.voted_id == -1


def test_a_new_node_that_is_configured_as_the_only_voter_asks_around_and_does_not_lead() -> None:
    node = bootstrapped(4)
    fail(node, 1)
    assert asked_in_vain(node, range(0, 6_000, 500)) == {-2, -3}
    assert isinstance(node.state.role, Unattached)


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
            await until(lambda: wiped.quorum.state.log.high_watermark > 5)
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
