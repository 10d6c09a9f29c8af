"""Changes of the voters, as a leader makes them (KIP-853)."""

from dataclasses import replace
from typing import Any

import pytest

from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.effects import Effect
from quorumlog.metadata_quorum.core.messages import (
    AddVoterRequest,
    BeginQuorumEpochRequest,
    RemoveVoterRequest,
    UpdateVoterRequest,
    UpgradeKRaftVersionRequest,
    VoterChangeRequest,
    VoterChangeResponse,
)
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.roles import Leader, Resigned, Unattached
from quorumlog.metadata_quorum.core.voter_sets import Voter, VoterSet
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.metadata_quorum.quorums import (
    asked,
    begin,
    elect,
    fetch_request,
    flush,
    only,
    quorum_of,
    role_of,
    sent,
    tick,
)
from tests.support.metadata_quorum.voters import directory_id, voter, voter_set

CONFIGURED = VoterSet(
    tuple(Voter(voter_id=BrokerId(one), address=f"host{one}:{one}") for one in (1, 2, 3))
)


def node(*numbers: int, **given: Any) -> Quorum:
    """Node 1 with a log of one record; these are the voters in it, or kraft.version is 0."""
    quorum = quorum_of(1, CONFIGURED, directory_id=directory_id("1"), **given)
    started = events.Started(
        leader_epoch=Epoch(1),
        log_end_offset=Offset(1),
        flushed_offset=Offset(1),
        epoch_starts=((Epoch(1), Offset(0)),),
        voter_sets=((Offset(0), voter_set(*numbers)),) if numbers else (),
    )
    quorum.step(0, started)
    return quorum


def elected(*numbers: int, **given: Any) -> Quorum:
    """The same node as the leader of epoch 2; its log is durable, and nothing is committed yet."""
    quorum = elect(node(*numbers, **given))
    flush(quorum)
    return quorum


def fetch(
    quorum: Quorum,
    replica: int,
    *,
    offset: int | None = None,
    directory: str | None = None,
    now_ms: int = 1000,
    is_new: bool = False,
) -> list[Effect]:
    """A fetch of a replica that holds all, or all below an offset."""
    end = quorum.state.log.end_offset if offset is None else offset
    request = fetch_request(
        replica,
        epoch=2,
        offset=end,
        last_epoch=2 if end > 1 else 1,
        replica_directory_id=directory_id(str(replica) if directory is None else directory),
        replica_is_new=is_new,
    )
    return quorum.step(now_ms, asked(request, 1000 + replica))


def leader(*numbers: int, **given: Any) -> Quorum:
    """The leader, with a record of its epoch committed."""
    quorum = elected(*numbers, **given)
    for number in numbers or (1, 2, 3):
        if number != 1:
            fetch(quorum, number)
    assert quorum.state.log.high_watermark == quorum.state.log.end_offset
    return quorum


def change(quorum: Quorum, request: VoterChangeRequest, now_ms: int = 1000) -> list[Effect]:
    return quorum.step(now_ms, asked(request, 9))


def answer(orders: list[Effect]) -> VoterChangeResponse:
    answers = [one.response for one in orders if isinstance(one, effects.SendResponse)]
    [response] = [one for one in answers if isinstance(one, VoterChangeResponse)]
    return response


def check_delayed(response: VoterChangeResponse, reason: str) -> None:
    assert response.error_code is ErrorCode.REQUEST_TIMED_OUT
    assert reason in response.error_message


def code(orders: list[Effect]) -> ErrorCode:
    return answer(orders).error_code


def add(number: int, directory: str | None = None, **given: Any) -> AddVoterRequest:
    return AddVoterRequest(voter=voter(number, directory), **given)


def remove(number: int, directory: str | None = None) -> RemoveVoterRequest:
    return RemoveVoterRequest(
        voter_id=BrokerId(number), directory_id=voter(number, directory).directory_id
    )


UPGRADE = UpgradeKRaftVersionRequest(kraft_version=1)


# --- the upgrade ---


def test_the_upgrade_writes_the_configured_voters_with_their_directories() -> None:
    quorum = leader()
    assert (quorum.state.kraft_version, quorum.state.voter_set) == (0, CONFIGURED)
    orders = change(quorum, UPGRADE)
    append = only(effects.AppendVoters, orders)
    assert (append.voters, append.sets_kraft_version) == (voter_set(1, 2, 3), True)
    assert only(effects.VotersChanged, orders).voters == voter_set(1, 2, 3)
    assert (quorum.state.kraft_version, quorum.state.log.end_offset) == (1, append.base_offset + 2)
    flush(quorum)
    assert code(fetch(quorum, 2)) is ErrorCode.NONE
    assert code(change(quorum, UPGRADE)) is ErrorCode.NONE  # it is 1 already


def test_an_upgrade_waits_for_the_directory_of_each_voter() -> None:
    quorum = elected()
    fetch(quorum, 2)
    check_delayed(answer(change(quorum, UPGRADE)), "voter 3")  # one by request is asked for again
    assert quorum.state.kraft_version == 0
    assert quorum.step(1000, events.UpgradeDecided()) == []  # one that is decided is made later
    end_offset = quorum.state.log.end_offset
    tick(quorum, 1001)
    fetch(quorum, 2, now_ms=1002)
    assert (quorum.state.kraft_version, quorum.state.log.end_offset) == (0, end_offset)
    append = only(effects.AppendVoters, fetch(quorum, 3, now_ms=1003))
    assert (append.voters, append.sets_kraft_version) == (voter_set(1, 2, 3), True)
    assert quorum.state.kraft_version == 1
    quorum.step(1004, events.UpgradeDecided())
    tick(quorum, 1005)
    assert quorum.state.log.end_offset == end_offset + 2


def test_a_decided_upgrade_waits_for_a_committed_record_of_the_epoch() -> None:
    quorum = elected()
    quorum.step(1000, events.UpgradeDecided())
    fetch(quorum, 3, offset=1)
    fetch(quorum, 2, offset=1)
    assert (quorum.state.log.high_watermark, quorum.state.kraft_version) == (0, 0)
    fetch(quorum, 2)
    assert quorum.state.kraft_version == 1


def test_a_decided_upgrade_is_that_of_the_leader_alone() -> None:
    quorum = node()
    assert quorum.step(1, events.UpgradeDecided()) == []
    quorum = elected()
    quorum.step(1000, events.UpgradeDecided())
    quorum.step(1001, asked(begin(2, 7)))
    quorum.step(1002, events.UpgradeDecided())
    assert (quorum.is_leader, quorum.state.kraft_version) == (False, 0)


@pytest.mark.parametrize(("numbers", "version"), [((), 2), ((1, 2, 3), 0), ((1, 2, 3), 2)])
def test_the_version_neither_falls_nor_rises_above_the_highest(
    numbers: tuple[int, ...], version: int
) -> None:
    request = UpgradeKRaftVersionRequest(kraft_version=version)
    assert code(change(leader(*numbers), request)) is ErrorCode.INVALID_UPDATE_VERSION


# --- who may change what ---


def test_a_node_that_does_not_lead_names_the_leader() -> None:
    quorum = node(1, 2, 3)
    quorum.step(1, asked(begin(2, 5)))
    response = answer(change(quorum, add(4)))
    assert response.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (response.leader_id, response.leader_address) == (2, "host2:2")


def test_at_version_0_the_voters_are_configured_and_the_last_one_stays() -> None:
    for request in (add(4), remove(3)):
        assert code(change(leader(), request)) is ErrorCode.UNSUPPORTED_VERSION
    assert code(change(leader(1), remove(1))) is ErrorCode.INVALID_REQUEST


def test_one_change_at_a_time_once_a_record_of_the_own_epoch_is_committed() -> None:
    check_delayed(answer(change(elected(1, 2, 3), remove(3))), "a record of its epoch")
    quorum = leader(1, 2, 3)
    change(quorum, remove(3))
    second = answer(quorum.step(1000, asked(remove(2), 10)))
    check_delayed(second, "the previous voter change")


# --- adding ---


def test_a_voter_that_has_caught_up_is_added_and_the_new_majority_commits() -> None:
    quorum = leader(1, 2)
    fetch(quorum, 4)
    orders = change(quorum, add(4))
    assert only(effects.AppendVoters, orders).voters == voter_set(1, 2, 4)
    assert [one.destination for one in sent(orders, BeginQuorumEpochRequest)] in ([], [4])
    flush(quorum)
    assert quorum.state.log.high_watermark < quorum.state.log.end_offset  # 1 of 3 holds it
    assert code(fetch(quorum, 4)) is ErrorCode.NONE
    assert quorum.state.log.high_watermark == quorum.state.log.end_offset


FOUR = voter(4)


def added(**changes: str) -> AddVoterRequest:
    return AddVoterRequest(voter=replace(FOUR, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (add(2), ErrorCode.DUPLICATE_VOTER),
        (add(2, "another"), ErrorCode.DUPLICATE_VOTER),
        (add(5), ErrorCode.REQUEST_TIMED_OUT),  # it does not fetch
        (add(4, "another"), ErrorCode.REQUEST_TIMED_OUT),  # it fetches with its own directory
        (added(address=""), ErrorCode.INVALID_REQUEST),
        (AddVoterRequest(voter=replace(FOUR, voter_id=BrokerId(-1))), ErrorCode.INVALID_REQUEST),
        (added(directory_id="x"), ErrorCode.INVALID_REQUEST),
        (added(directory_id="A" * 22), ErrorCode.INVALID_REQUEST),
        (added(address="host:99999"), ErrorCode.INVALID_REQUEST),
        (remove(4), ErrorCode.VOTER_NOT_FOUND),
        (remove(2, "another"), ErrorCode.VOTER_NOT_FOUND),
    ],
)
def test_what_cannot_be_changed(request_: VoterChangeRequest, expected: ErrorCode) -> None:
    quorum = leader(1, 2)
    fetch(quorum, 4)
    end_offset = quorum.state.log.end_offset
    assert code(change(quorum, request_)) is expected
    assert (quorum.state.log.end_offset, quorum.state.voter_set) == (end_offset, voter_set(1, 2))


def test_a_node_that_lags_or_was_silent_for_an_hour_is_not_added() -> None:
    quorum = leader(1)
    fetch(quorum, 4, offset=1)
    assert code(change(quorum, add(4))) is ErrorCode.REQUEST_TIMED_OUT
    fetch(quorum, 4)
    assert code(change(quorum, add(4), 1000 + 3_600_000)) is ErrorCode.REQUEST_TIMED_OUT
    fetch(quorum, 4, now_ms=3_700_000)
    assert only(effects.AppendVoters, change(quorum, add(4), 3_700_000)).voters.ids == (1, 4)


def test_a_new_node_is_added_once_it_may_vote() -> None:
    """If the leader of one died behind the change, the next would need that vote for ever."""
    quorum = leader(1)
    fetch(quorum, 2, is_new=True)
    assert code(change(quorum, add(2))) is ErrorCode.REQUEST_TIMED_OUT
    assert quorum.state.voter_set == voter_set(1)
    fetch(quorum, 2)
    change(quorum, add(2))
    assert quorum.state.voter_set == voter_set(1, 2)


def test_a_leader_that_was_alone_waits_for_the_fetches_of_the_voter_that_it_adds() -> None:
    quorum = leader(1)
    fetch(quorum, 2, now_ms=60_000)
    change(quorum, add(2), now_ms=60_000)
    within_ms = quorum.settings.controller_quorum_fetch_timeout_ms * 3 // 2
    tick(quorum, 60_000 + within_ms - 1)
    assert isinstance(quorum.state.role, Leader)
    tick(quorum, 60_000 + within_ms)
    assert isinstance(quorum.state.role, Resigned)


def test_an_answer_may_be_asked_for_before_the_commit() -> None:
    quorum = leader(1, 2)
    fetch(quorum, 4)
    assert code(change(quorum, add(4, ack_when_committed=False))) is ErrorCode.NONE
    assert quorum.state.log.high_watermark < quorum.state.log.end_offset


def test_a_change_that_waits_too_long_or_whose_leader_is_deposed_may_still_be_made() -> None:
    quorum = leader(1, 2, 3)
    change(quorum, remove(3))
    flush(quorum)
    assert quorum.next_deadline_ms() is not None
    fetch(quorum, 3, now_ms=2999)
    check_delayed(answer(tick(quorum, 3000)), "may still be made")
    fetch(quorum, 2, now_ms=3000)
    assert quorum.state.log.high_watermark == quorum.state.log.end_offset
    quorum = leader(1, 2, 3)
    change(quorum, remove(3))
    response = answer(quorum.step(1001, asked(begin(2, 7), 99)))
    assert (response.error_code, response.leader_id) == (ErrorCode.REQUEST_TIMED_OUT, 2)


# --- directories ---


def test_the_fetches_of_another_directory_do_not_count() -> None:
    quorum = elected(1, 2, 3)
    fetch(quorum, 2, directory="wiped")
    assert quorum.state.log.high_watermark == 0
    observer = role_of(quorum, Leader).observers[BrokerId(2)]
    assert observer.directory_id == directory_id("wiped")
    fetch(quorum, 2)
    assert quorum.state.log.high_watermark == quorum.state.log.end_offset


def test_a_node_with_another_disk_has_not_caught_up_because_its_old_disk_had() -> None:
    quorum = leader(1)
    fetch(quorum, 4)
    fetch(quorum, 4, directory="empty", offset=1)
    check_delayed(answer(change(quorum, add(4, "empty"))), "has not caught up")
    fetch(quorum, 4, directory="empty")
    assert code(change(quorum, add(4, "empty", ack_when_committed=False))) is ErrorCode.NONE


def test_a_voter_is_replaced_by_removing_and_adding_it() -> None:
    quorum = leader(1, 2, 3)
    fetch(quorum, 3, directory="new")
    change(quorum, remove(3))
    flush(quorum)
    fetch(quorum, 2)
    fetch(quorum, 3, directory="new")
    orders = change(quorum, add(3, "new"))
    assert only(effects.AppendVoters, orders).voters.has_key(BrokerId(3), directory_id("new"))


# --- removing ---


def test_the_fetch_of_a_voter_that_is_removed_then_does_not_hold_the_quorum() -> None:
    quorum = leader(1, 2, 3, 4, 5)
    role = role_of(quorum, Leader)
    deadline_ms = role.check_quorum_deadline_ms
    fetch(quorum, 5)
    change(quorum, remove(5))
    fetch(quorum, 2, now_ms=2000)
    assert role.check_quorum_deadline_ms == deadline_ms
    fetch(quorum, 3, now_ms=2000)
    assert role.check_quorum_deadline_ms > deadline_ms


@pytest.fixture
def leaving() -> Quorum:
    """A leader that has removed itself."""
    quorum = leader(1, 2, 3)
    change(quorum, remove(1))
    flush(quorum)
    return quorum


def test_a_leader_that_removes_itself_does_not_count_itself_and_resigns_at_the_commit(
    leaving: Quorum,
) -> None:
    assert not leaving.state.is_voter
    assert leaving.is_leader
    fetch(leaving, 2)  # it is 1 of the 2 that are left
    assert leaving.is_leader
    orders = fetch(leaving, 3)
    assert leaving.state.log.high_watermark == leaving.state.log.end_offset
    assert code(orders) is ErrorCode.NONE
    assert isinstance(leaving.state.role, Resigned)
    for now_ms in (60_000, 120_000):  # it does not stand any more
        tick(leaving, now_ms)
        assert isinstance(leaving.state.role, Unattached)


def test_a_leader_that_removed_itself_needs_the_fetches_of_a_majority_of_the_others(
    leaving: Quorum,
) -> None:
    fetch(leaving, 2, now_ms=3000)
    tick(leaving, 4000)
    assert isinstance(leaving.state.role, Resigned)  # 1 of 2 is no majority


# --- addresses ---


def test_a_leader_at_another_address_says_so_when_its_epoch_begins() -> None:
    quorum = elected(1, 2, 3, address="moved:1")
    known = quorum.state.voter_set.get(BrokerId(1))
    assert known is not None
    assert (known.address, quorum.state.log.end_offset) == ("moved:1", 3)


def test_a_voter_tells_its_address() -> None:
    quorum = leader(1, 2, 3)
    moved = replace(voter(2), address="moved:2")
    for told, epoch, expected, address in (
        (moved, 1, ErrorCode.FENCED_LEADER_EPOCH, "host2:2"),
        (moved, 3, ErrorCode.UNKNOWN_LEADER_EPOCH, "host2:2"),
        (voter(2), 2, ErrorCode.NONE, "host2:2"),
        (voter(4), 2, ErrorCode.VOTER_NOT_FOUND, "host2:2"),
        (moved, 2, ErrorCode.NONE, "moved:2"),
    ):
        request = UpdateVoterRequest(voter=told, current_leader_epoch=Epoch(epoch))
        assert code(change(quorum, request)) is expected
        in_force = voter_set(1, 2, 3).with_voter(replace(voter(2), address=address))
        assert quorum.state.voter_set == in_force
