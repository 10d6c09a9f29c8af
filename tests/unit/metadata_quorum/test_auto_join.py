"""A node that keeps its place among the voters: KIP-853 UpdateVoter, KIP-1186 auto-join."""

from typing import Any

from quorumlog.invariants import some
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.effects import Effect
from quorumlog.metadata_quorum.core.messages import (
    AddVoterRequest,
    BeginQuorumEpochRequest,
    FetchRequest,
    RemoveVoterRequest,
    UpdateVoterRequest,
)
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.roles import Follower
from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.metadata_quorum.core.voter_sets import Voter, VoterSet
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.metadata_quorum.quorums import answered, asked, fetch_response, only, sent
from tests.support.metadata_quorum.voters import directory_id, voter, voter_set

INTERVAL_MS = 3 * QuorumSettings().controller_quorum_fetch_timeout_ms
CHANGES = AddVoterRequest | RemoveVoterRequest | UpdateVoterRequest


def follower(
    voters: VoterSet, *, number: int = 4, auto_join: bool = True, address: str = "", **disk: Any
) -> Quorum:
    """A controller that follows node 2, and fetched from it at 0 ms."""
    return following(voters, number=number, auto_join=auto_join, address=address, **disk)[0]


def following(
    voters: VoterSet,
    *,
    number: int = 4,
    auto_join: bool = True,
    address: str = "",
    high_watermark: int = 1,
    **disk: Any,
) -> tuple[Quorum, list[Effect]]:
    """The same, and its orders after that fetch."""
    quorum = Quorum(
        node_id=BrokerId(number),
        voters=VoterSet(()),
        settings=QuorumSettings(),
        random_fraction=lambda: 0.0,
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
    begin = BeginQuorumEpochRequest(
        leader_id=BrokerId(2), leader_epoch=Epoch(1), leader_address="host2:2"
    )
    [fetch] = sent(quorum.step(0, asked(begin)), FetchRequest)
    orders = quorum.step(0, answered(fetch, fetch_response(1, high_watermark=high_watermark)))
    assert isinstance(quorum.role, Follower)
    under_way = some(quorum.role.fetch_id, "it fetches on")
    quorum.step(0, events.RequestFailed(request_id=under_way))  # the next one is a test's
    return quorum, orders


def changes(orders: list[Effect]) -> list[CHANGES]:
    """Return the changes of the voters that a node requests."""
    requests = [one.request for one in orders if isinstance(one, effects.SendRequest)]
    return [one for one in requests if isinstance(one, CHANGES)]


def kept_alive(quorum: Quorum, until_ms: int) -> list[tuple[int, CHANGES]]:
    """What it asks its leader for until then, while each fetch is answered after 500 ms."""
    found: list[tuple[int, CHANGES]] = []
    orders: list[Effect] = quorum.step(100, events.Ticked())
    for now_ms in range(500, until_ms + 1, 500):
        fetches = sent(orders, FetchRequest)
        orders = quorum.step(now_ms, events.Ticked())
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
    [fetch] = sent(quorum.step(500, events.Ticked()), FetchRequest)
    removed = events.FetchedRecords(
        base_offset=Offset(1),
        end_offset=Offset(2),
        epoch_starts=((Epoch(1), Offset(1)),),
        voter_sets=((Offset(1), voter_set(1, 2)),),
    )
    orders = quorum.step(500, answered(fetch, fetch_response(1, high_watermark=1), records=removed))
    orders += quorum.step(500, events.LogFlushed(flushed_offset=Offset(2)))
    [fetch] = sent(orders, FetchRequest)
    assert changes(orders) == []  # the leader makes one change at a time
    orders = quorum.step(500, answered(fetch, fetch_response(1, high_watermark=2)))
    assert changes(orders) == [AddVoterRequest(voter=voter(4), ack_when_committed=False)]


def test_a_node_asks_for_nothing_before_it_may_vote() -> None:
    voters = voter_set(1, 2).with_voter(voter(4, "lost"))
    _, orders = following(voters, is_new=True, high_watermark=2)  # it lacks a committed record
    assert changes(orders) == []
    _, orders = following(voters, is_new=True)
    assert isinstance(changes(orders)[0], RemoveVoterRequest)


def test_one_that_was_a_voter_does_not_come_back() -> None:
    assert kept_alive(follower(voter_set(1, 2, 3), was_voter=True), INTERVAL_MS) == []


def test_it_remembers_durably_that_it_was_a_voter() -> None:
    quorum = follower(voter_set(1, 2), number=3)
    [fetch] = sent(quorum.step(500, events.Ticked()), FetchRequest)
    voters = events.FetchedRecords(
        base_offset=Offset(1),
        end_offset=Offset(2),
        epoch_starts=((Epoch(1), Offset(1)),),
        voter_sets=((Offset(1), voter_set(1, 2, 3)),),
    )
    added = quorum.step(500, answered(fetch, fetch_response(1, high_watermark=1), records=voters))
    assert only(effects.VotersChanged, added).voters == voter_set(1, 2, 3)
    assert not any(isinstance(one, effects.PersistElection) for one in added)
    [fetch] = sent(quorum.step(500, events.LogFlushed(flushed_offset=Offset(2))), FetchRequest)
    known = quorum.step(500, answered(fetch, fetch_response(1, high_watermark=2)))
    assert only(effects.PersistElection, known).was_voter


def test_one_that_learns_at_once_that_it_was_added_and_removed_does_not_come_back() -> None:
    quorum = follower(voter_set(1, 2, 3))
    [fetch] = sent(quorum.step(100, events.Ticked()), FetchRequest)
    added_and_removed = events.FetchedRecords(
        base_offset=Offset(1),
        end_offset=Offset(3),
        epoch_starts=((Epoch(1), Offset(1)),),
        voter_sets=((Offset(1), voter_set(1, 2, 3, 4)), (Offset(2), voter_set(1, 2, 3))),
    )
    response = fetch_response(1, high_watermark=3)
    quorum.step(100, answered(fetch, response, records=added_and_removed))
    [fetch] = sent(quorum.step(100, events.LogFlushed(flushed_offset=Offset(3))), FetchRequest)
    orders = quorum.step(100, answered(fetch, response))
    assert quorum._state.was_voter
    under_way = sent(orders, FetchRequest)
    for one in under_way:
        quorum.step(100, events.RequestFailed(request_id=one.request_id))
    assert kept_alive(quorum, 2 * INTERVAL_MS) == []


def test_nothing_is_asked_for_without_leave() -> None:
    assert kept_alive(follower(voter_set(1, 2, 3), auto_join=False), INTERVAL_MS) == []


def test_a_voter_at_its_known_address_asks_for_nothing() -> None:
    assert kept_alive(follower(voter_set(1, 2, 3), number=3), INTERVAL_MS) == []


def test_a_voter_tells_its_new_address() -> None:
    quorum = follower(voter_set(1, 2, 3), number=3, address="moved:3", auto_join=False)
    moved = Voter(voter_id=BrokerId(3), directory_id=directory_id("3"), address="moved:3")
    update = UpdateVoterRequest(voter=moved, current_leader_epoch=Epoch(1))
    assert kept_alive(quorum, INTERVAL_MS) == [(INTERVAL_MS, update)]


def test_nothing_is_asked_of_a_leader_that_is_silent() -> None:
    quorum = follower(voter_set(1, 2, 3))
    for now_ms in range(500, 2 * INTERVAL_MS, 500):  # its fetch gets no answer
        orders = quorum.step(now_ms, events.Ticked())
        requests = [one.request for one in orders if isinstance(one, effects.SendRequest)]
        assert not any(isinstance(request, CHANGES) for request in requests)
