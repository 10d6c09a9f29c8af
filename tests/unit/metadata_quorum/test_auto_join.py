"""A node that keeps its place among the voters: KIP-853 UpdateVoter, KIP-1186 auto-join."""

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
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.roles import Follower
from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.metadata_quorum.quorums import (
    answered,
    asked,
    begin,
    fail,
    fetch_response,
    flush,
    only,
    quorum_of,
    records,
    role_of,
    sent,
    tick,
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
    assert quorum._state.was_voter
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
