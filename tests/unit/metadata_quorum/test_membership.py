"""A node follows the voter set of its own log: which it counts, asks and grants (KIP-853)."""

from dataclasses import replace
from typing import Any

import pytest

from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.effects import Effect
from quorumlog.metadata_quorum.core.messages import (
    NOBODY,
    FetchRequest,
    SnapshotId,
    VoteRequest,
    VoteResponse,
)
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.roles import Follower, Leader, Prospective, Unattached
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.metadata_quorum.quorums import (
    answered,
    asked,
    asked_in_vain,
    begin,
    diverging,
    fail,
    fetch_response,
    flush,
    only,
    quorum_of,
    records,
    reply,
    role_of,
    sent,
    tick,
    vote_request,
    vote_response,
)
from tests.support.metadata_quorum.voters import directory_id, voter_set


def node(
    number: int,
    *sets: VoterSet,
    configured: tuple[int, ...] = (1, 2, 3),
    directory: str | None = None,
    bootstrap: int = 0,
    **disk: Any,
) -> Quorum:
    """A controller whose log of epoch 1 holds these voter sets, one after the other."""
    quorum = quorum_of(
        number, configured, directory_id=directory_id(directory or str(number)), bootstrap=bootstrap
    )
    end = Offset(len(sets))
    started = {
        "leader_epoch": Epoch(1 if sets else 0),
        "log_end_offset": end,
        "flushed_offset": end,
        "epoch_starts": ((Epoch(1), Offset(0)),) if sets else (),
        "voter_sets": tuple((Offset(at), voters) for at, voters in enumerate(sets)),
    }
    quorum.step(0, events.Started(**{**started, **disk}))
    return quorum


def follow(quorum: Quorum, leader: int = 2, epoch: int = 1) -> effects.SendRequest:
    """Let a leader call, and return the fetch that it gets."""
    [fetch] = sent(quorum.step(0, asked(begin(leader, epoch))), FetchRequest)
    return fetch


def follow_on(quorum: Quorum) -> effects.SendRequest:
    """The fetch that is under way was lost: return the next."""
    fail(quorum, role_of(quorum, Follower).fetch_id)
    [fetch] = sent(tick(quorum, 100), FetchRequest)
    return fetch


def with_voters(base: int, voters: VoterSet) -> events.FetchedRecords:
    """One record of epoch 1, with these voters."""
    return records(base, base + 1, (1, base), voter_sets=((Offset(base), voters),))


def append(quorum: Quorum, voters: VoterSet) -> list[Effect]:
    """Fetch one record more, with these voters, and flush it."""
    fetched = with_voters(quorum.state.log.end_offset, voters)
    orders = quorum.step(0, answered(follow(quorum), fetch_response(1), records=fetched))
    return orders + flush(quorum, 0)


# --- the set in force ---


def test_the_voters_of_the_log_are_in_force_from_the_start() -> None:
    quorum = node(4, voter_set(1, 2), voter_set(1, 2, 4))
    assert (quorum.state.kraft_version, quorum.state.voter_set) == (1, voter_set(1, 2, 4))
    assert quorum.state.is_voter
    assert quorum.voters_at(Offset(1)) == voter_set(1, 2)


def test_an_observer_becomes_a_voter_with_the_record_and_a_voter_an_observer() -> None:
    quorum = node(4, voter_set(1, 2, 3))
    assert not quorum.state.is_voter
    orders = append(quorum, voter_set(1, 2, 3, 4))
    assert only(effects.VotersChanged, orders).voters == voter_set(1, 2, 3, 4)
    assert quorum.state.is_voter
    removed = node(3, voter_set(1, 2, 3))
    append(removed, voter_set(1, 2))
    assert not removed.state.is_voter
    assert isinstance(removed.state.role, Follower)


def test_a_removed_voter_stands_until_it_knows_that_it_is_out() -> None:
    quorum = node(3, voter_set(1, 2, 3))
    append(quorum, voter_set(1, 2))
    assert quorum.state.takes_part
    quorum.step(0, answered(follow_on(quorum), fetch_response(1, high_watermark=2)))
    assert not quorum.state.takes_part
    tick(quorum, 60_000)
    assert isinstance(quorum.state.role, Follower)


def test_a_node_that_is_leaving_leads_by_the_votes_of_the_others_alone() -> None:
    quorum = node(1, voter_set(1, 2), voter_set(2), leader_id=BrokerId(1), voted_id=BrokerId(1))
    [asked_for] = sent(tick(quorum, 60_000), VoteRequest)
    assert role_of(quorum, Prospective).ballot.granted == set()
    granted = vote_response(quorum.state.leader_epoch, granted=True)
    [vote] = sent(quorum.step(60_000, answered(asked_for, granted)), VoteRequest)
    quorum.step(60_000, answered(vote, vote_response(quorum.state.leader_epoch, granted=True)))
    assert role_of(quorum, Leader).granting_voters == (2,)


def test_a_truncation_brings_the_voters_back() -> None:
    quorum = node(3, voter_set(1, 2, 3))
    append(quorum, voter_set(1, 2, 3, 4))
    parted = fetch_response(1, diverging_epoch=diverging(1, 1))
    kinds = [type(one) for one in quorum.step(100, answered(follow_on(quorum), parted))]
    assert kinds.index(effects.TruncateLog) < kinds.index(effects.VotersChanged)
    assert quorum.state.voter_set == voter_set(1, 2, 3)


def test_a_truncation_of_the_upgrade_brings_the_configured_voters_back() -> None:
    quorum = node(3)
    append(quorum, voter_set(1, 2, 3))
    assert quorum.state.kraft_version == 1
    parted = fetch_response(1, diverging_epoch=diverging(0, 0))
    orders = quorum.step(100, answered(follow_on(quorum), parted))
    assert only(effects.VotersChanged, orders).voters is None
    assert (quorum.state.kraft_version, quorum.state.voter_set.ids) == (0, (1, 2, 3))


@pytest.mark.parametrize("voters", [voter_set(1, 2), None])
def test_a_snapshot_replaces_the_voters(voters: VoterSet | None) -> None:
    quorum = node(4, voter_set(1, 2, 3))
    snapshot_id = SnapshotId(Offset(9), Epoch(1))
    quorum.step(0, answered(follow(quorum), fetch_response(1, snapshot_id=snapshot_id)))
    checked = events.SnapshotChecked(snapshot_id=snapshot_id, is_whole=True, voters=voters)
    quorum.state.log.is_checking = True
    orders = quorum.step(100, checked)
    assert only(effects.VotersChanged, orders).voters == voters
    assert quorum.voters_at(Offset(9)) == voters


@pytest.mark.parametrize("offset", [0, 2, 5])
def test_voters_outside_of_the_records_that_they_came_with_are_refused(offset: int) -> None:
    quorum = node(4, voter_set(1, 2, 3))
    impossible = records(1, 2, (1, 1), voter_sets=((Offset(offset), voter_set(1)),))
    quorum.step(0, answered(follow(quorum), fetch_response(1), records=impossible))
    assert (quorum.state.log.end_offset, quorum.state.voter_set) == (1, voter_set(1, 2, 3))


# --- directories ---


def test_a_node_with_another_directory_is_not_the_voter_of_its_id() -> None:
    assert not node(9, voter_set(1, 2, 3)).state.is_voter
    wiped = node(3, voter_set(1, 2, 3), configured=(), directory="new")
    assert not wiped.state.is_voter
    tick(wiped, 60_000)
    assert isinstance(wiped.state.role, Unattached)


def vote_of(quorum: Quorum, request: VoteRequest) -> VoteResponse:
    response: VoteResponse = reply(quorum, request, 0)
    return response


def named(number: int, *, candidate: int = 2, epoch: int = 2, directory: str = "") -> VoteRequest:
    """A request for the vote of a node, as the voter with its own directory or another."""
    request = vote_request(candidate, epoch=epoch, voter=number, log=(1, 9))
    return replace(
        request,
        voter_directory_id=directory_id(directory or str(number)),
        replica_directory_id=directory_id(str(candidate)),
    )


def test_a_vote_is_asked_of_one_directory() -> None:
    quorum = node(3, voter_set(1, 2, 3))
    refused = vote_of(quorum, named(3, directory="lost"))
    assert (refused.error_code, refused.vote_granted) == (ErrorCode.INVALID_VOTER_KEY, False)
    assert vote_of(quorum, named(3)).vote_granted
    new = node(4, voter_set(1, 2), is_new=True)  # it is named, and without its past
    assert not vote_of(new, named(4)).vote_granted


@pytest.mark.parametrize("sets", [(voter_set(1, 2),), ()])
def test_a_node_votes_that_has_not_heard_that_it_is_a_voter(sets: tuple[VoterSet, ...]) -> None:
    quorum = node(4, *sets)
    assert not quorum.state.is_voter
    assert vote_of(quorum, named(4)).vote_granted
    assert not vote_of(quorum, named(4, candidate=3)).vote_granted  # once in an epoch


@pytest.mark.parametrize("restarts", [False, True])
def test_a_candidate_with_another_directory_does_not_get_the_same_vote_again(
    restarts: bool,
) -> None:
    voted: dict[str, Any] = {
        "leader_epoch": Epoch(2),
        "voted_id": BrokerId(2),
        "voted_directory_id": directory_id("2"),
    }
    quorum = node(3, voter_set(1, 2, 3), **voted if restarts else {})
    assert vote_of(quorum, named(3)).vote_granted
    assert vote_of(quorum, named(3)).vote_granted
    again = replace(named(3), replica_directory_id=directory_id("wiped"))
    assert not vote_of(quorum, again).vote_granted


def test_strangers_are_judged_at_version_1_alone() -> None:
    request = vote_request(9, epoch=2, voter=3, log=(1, 9))
    assert vote_of(node(3), request).error_code is ErrorCode.INCONSISTENT_VOTER_SET
    named = replace(request, replica_directory_id=directory_id("9"))
    assert vote_of(node(3, voter_set(1, 2, 3)), named).vote_granted


def test_a_candidate_without_a_directory_gets_no_vote_at_version_1() -> None:
    """It is of a release that reads no voter sets: it would commit by the configured voters."""
    old = vote_request(1, epoch=2, voter=3, log=(1, 9))
    assert vote_of(node(3), old).vote_granted
    for request in (old, replace(old, pre_vote=True)):
        response = vote_of(node(3, voter_set(1, 2, 3)), request)
        assert (response.error_code, response.vote_granted) == (ErrorCode.INVALID_VOTER_KEY, False)


# --- the leader ---


def test_a_leader_that_is_no_voter_yet_is_believed_at_version_1_or_with_an_address() -> None:
    call = begin(9, 4)
    for quorum, request, leader_id in (
        (node(3), call, NOBODY),
        (node(3), replace(call, leader_address="host9:9"), 9),
        (node(3, voter_set(1, 2, 3)), call, 9),
        (node(3, configured=()), call, 9),
    ):
        quorum.step(0, asked(request))
        assert quorum.state.leader_id == leader_id


def test_a_leader_calls_one_directory_and_is_told_where_the_leader_is() -> None:
    quorum = node(3, voter_set(1, 2, 3))
    lost = begin(9, 4, leader_address="host9:9", voter_directory_id=directory_id("lost"))
    assert reply(quorum, lost, 0).error_code is ErrorCode.INVALID_VOTER_KEY
    response = reply(quorum, replace(lost, voter_directory_id=directory_id("3")), 0)
    assert (response.error_code, response.leader_address) == (ErrorCode.NONE, "host9:9")


def test_the_only_voter_follows_a_leader_that_has_removed_itself() -> None:
    quorum = node(2, voter_set(1, 2))
    fetched = with_voters(1, voter_set(2))
    quorum.step(0, answered(follow(quorum, 1), fetch_response(1, leader=1), records=fetched))
    [fetch] = sent(flush(quorum, 0), FetchRequest)
    assert fetch.destination == 1


@pytest.mark.parametrize("leader", [1, 3, -1])
@pytest.mark.parametrize("voted", [1, 3])
def test_a_controller_that_became_a_broker_only_starts_with_the_vote_it_gave(
    leader: int, voted: int
) -> None:
    quorum = quorum_of(3, VoterSet(()), bootstrap=2)
    started = events.Started(
        leader_epoch=Epoch(5),
        leader_id=BrokerId(leader),
        voted_id=BrokerId(voted),
        voted_directory_id=directory_id(str(voted)),
        log_end_offset=Offset(9),
        flushed_offset=Offset(9),
        epoch_starts=((Epoch(5), Offset(0)),),
        voter_sets=((Offset(3), voter_set(1, 2)),),
    )
    quorum.step(0, started)
    for now_ms in range(0, 20_000, 500):
        tick(quorum, now_ms)
    assert isinstance(quorum.state.role, Follower | Unattached)
    if leader != 3:
        assert (quorum.state.leader_epoch, quorum.state.voted_id) == (5, voted)  # the vote is kept
    follow(quorum, epoch=6)
    assert quorum.state.voted_id == NOBODY


def test_a_node_that_stood_against_a_leader_which_was_removed_starts_again() -> None:
    """It voted for itself in the epoch that the other has led: it is no candidate of that epoch."""
    quorum = node(
        2,
        voter_set(1, 2, 3),
        voter_set(2, 3),
        leader_id=BrokerId(1),
        voted_id=BrokerId(2),
        voted_directory_id=directory_id("2"),
    )
    assert isinstance(quorum.state.role, Unattached)
    assert (quorum.state.leader_id, quorum.state.voted_id) == (NOBODY, 2)
    orders = tick(quorum, 10_000)
    assert isinstance(quorum.state.role, Prospective)
    assert sent(orders, VoteRequest)


# --- a node without a leader, or with a silent one, asks others for it, and by its address ---


def test_a_node_without_voters_asks_addresses_for_the_leader() -> None:
    quorum = node(4, configured=(), bootstrap=2)
    fail(quorum, role_of(quorum, Unattached).fetch_id)  # it asks at once
    assert asked_in_vain(quorum, range(0, 3000, 500)) == {-2, -3}
    [fetch] = sent(tick(quorum, 9000), FetchRequest)
    told = fetch_response(
        3, leader=7, leader_address="host7:7", error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER
    )
    [fetch] = sent(quorum.step(9000, answered(fetch, told)), FetchRequest)
    assert (quorum.state.leader_id, fetch.destination) == (7, 7)
    assert isinstance(fetch.request, FetchRequest)
    assert fetch.request.replica_directory_id == directory_id("4")


def test_a_follower_finds_its_leader_again_by_an_address() -> None:
    quorum = node(4, configured=(), bootstrap=1)
    follow(quorum, leader=7)
    orders = tick(quorum, 2000)  # the leader was silent
    [fetch] = sent(orders, FetchRequest)
    assert fetch.destination == -2
    found = fetch_response(1, leader=7, high_watermark=0)
    [fetch] = sent(quorum.step(2000, answered(fetch, found)), FetchRequest)
    assert fetch.destination == 7


def test_a_leader_that_is_no_voter_here_is_asked_again_after_a_silence() -> None:
    quorum = node(4, voter_set(1, 2))
    follow(quorum, leader=7)
    refusal = {"leader": 7, "error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert asked_in_vain(quorum, range(2000, 4000, 500), **refusal) == {1, 2, 7}
