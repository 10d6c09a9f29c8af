"""Rules of a leader: appends, fetches, the high watermark, its office, and its description."""

import pytest

from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.controller_client import QuorumDescription
from quorumlog.metadata_quorum.core import effects, events, leadership
from quorumlog.metadata_quorum.core.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    RemoveVoterRequest,
)
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.roles import Leader, Progress, Resigned
from quorumlog.metadata_quorum.driver.dependencies import NotController
from quorumlog.metadata_quorum.io.address_book import AddressBook
from quorumlog.metadata_quorum.io.quorum_description import describe_quorum
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import UNKNOWN_OFFSET, BrokerId, Epoch, Offset
from tests.support.metadata_quorum.quorums import (
    answered,
    asked,
    elect,
    fail,
    fetch_request,
    fetch_response,
    flush,
    only,
    role_of,
    sent,
    started,
    tick,
)
from tests.support.metadata_quorum.voters import directory_id
from tests.unit.metadata_quorum import test_voter_changes as changes


def leader(voters: tuple[int, ...] = (1, 2, 3)) -> Quorum:
    """Node 1, elected in epoch 1 at 1000 ms; its log is LeaderChange, and durable."""
    quorum = elect(started(voters=voters))
    flush(quorum)
    return quorum


def fetch(quorum: Quorum, request: FetchRequest, now_ms: int = 1000) -> effects.AnswerFetch:
    return only(effects.AnswerFetch, quorum.step(now_ms, asked(request)))


def fetched(quorum: Quorum, now_ms: int, *replicas: int, offset: int = 1) -> None:
    for replica in replicas:
        request = fetch_request(replica, epoch=1, offset=offset, last_epoch=1)
        quorum.step(now_ms, asked(request, 100 + replica))


def append(quorum: Quorum, end_offset: int, *, epoch: int = 1, now_ms: int = 1001) -> None:
    appended = events.RecordsAppended(leader_epoch=Epoch(epoch), log_end_offset=Offset(end_offset))
    quorum.step(now_ms, appended)
    flush(quorum, now_ms)


# --- fetches ---


@pytest.mark.parametrize(
    ("request_", "error_code"),
    [
        (fetch_request(epoch=0, offset=0, last_epoch=0), ErrorCode.FENCED_LEADER_EPOCH),
        (fetch_request(epoch=2, offset=0, last_epoch=0), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (fetch_request(epoch=1, offset=-1, last_epoch=0), ErrorCode.INVALID_REQUEST),
        (fetch_request(1, epoch=1, offset=0, last_epoch=0), ErrorCode.INVALID_REQUEST),
        (fetch_request(-2, epoch=1, offset=0, last_epoch=0), ErrorCode.INVALID_REQUEST),
        (fetch_request(epoch=1, offset=0, last_epoch=-1), ErrorCode.INVALID_REQUEST),
        (fetch_request(epoch=1, offset=0, last_epoch=0, max_wait_ms=-1), ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_fetch_is_refused_at_once(request_: FetchRequest, error_code: ErrorCode) -> None:
    quorum = leader()
    answer = fetch(quorum, request_)
    assert answer.response.error_code is error_code
    assert (answer.response.leader_id, answer.response.leader_epoch) == (1, 1)
    assert answer.records_from == answer.records_to
    assert not role_of(quorum, Leader).observers


def test_one_that_does_not_lead_says_so() -> None:
    answer = fetch(started(), fetch_request(epoch=0, offset=0, last_epoch=0))
    assert answer.response.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_second_fetch_of_a_replica_answers_its_first() -> None:
    quorum = leader()
    request = fetch_request(
        epoch=1, offset=1, last_epoch=1, max_wait_ms=60_000, high_watermark=Offset(1)
    )
    orders = quorum.step(1100, asked(request))
    assert not [one for one in orders if isinstance(one, effects.AnswerFetch)]
    [parked] = role_of(quorum, Leader).parked.values()
    assert parked.deadline_ms == 3100  # it waits no longer than its sender would
    orders = quorum.step(1101, asked(request, 78))
    assert only(effects.AnswerFetch, orders).request_id == 77


def _waits(quorum: Quorum, replica: int, now_ms: int) -> None:
    """Let a voter that holds the whole log fetch at this time, with the number 70 + replica."""
    held = Offset(1)
    request = fetch_request(replica, epoch=1, offset=1, last_epoch=1, high_watermark=held)
    orders = quorum.step(now_ms, asked(request, 70 + replica))
    assert not [one for one in orders if isinstance(one, effects.AnswerFetch)]


@pytest.mark.parametrize(("second_ms", "answered_ids"), [(1225, [72, 73]), (1226, [72])])
def test_a_wait_that_is_over_ends_the_waits_that_are_over_soon(
    second_ms: int, answered_ids: list[int]
) -> None:
    quorum = leader()
    _waits(quorum, 2, 1100)
    _waits(quorum, 3, second_ms)
    assert not tick(quorum, 1599)
    orders = tick(quorum, 1600)
    assert [
        one.request_id for one in orders if isinstance(one, effects.AnswerFetch)
    ] == answered_ids


def test_only_voters_that_do_not_fetch_get_another_begin_quorum_epoch() -> None:
    quorum = leader()
    _waits(quorum, 2, 1500)
    begun = sent(tick(quorum, 2000), BeginQuorumEpochRequest)
    assert [one.destination for one in begun] == [3]


def test_no_voter_gets_another_begin_quorum_epoch_while_all_fetch() -> None:
    quorum = leader()
    for begun_ms in range(1100, 9000, 502):
        for replica in (2, 3):
            _waits(quorum, replica, begun_ms + replica - 2)
        assert quorum.next_deadline_ms() == begun_ms + 500
        assert not sent(tick(quorum, begun_ms + 500), BeginQuorumEpochRequest)


@pytest.mark.parametrize(
    ("offset", "last_epoch", "diverging"),
    [
        (1, 0, (0, 0)),  # records of an epoch that had none
        (3, 1, (1, 2)),  # more of epoch 1 than there is
        (2, 3, (1, 2)),  # an epoch that we do not have
        (9, 4, (4, 4)),
        (3, 9, (5, 5)),  # an epoch of the future
        (2, 1, None),
        (0, 0, None),
        (5, 5, None),
    ],
)
def test_logs_that_part(offset: int, last_epoch: int, diverging: tuple[int, int] | None) -> None:
    quorum = elect(started(leader_epoch=4, log_end_offset=4, epoch_starts=((1, 0), (4, 2))))
    request = fetch_request(epoch=5, offset=offset, last_epoch=last_epoch, max_wait_ms=0)
    found = fetch(quorum, request).response.diverging_epoch
    assert (found and (found.epoch, found.end_offset)) == diverging
    follower = role_of(quorum, Leader).followers[request.replica_id]
    assert (follower.last_fetch_ms is not None) == (diverging is None)


def test_a_voter_with_an_empty_disk_is_let_in_again() -> None:
    quorum = leader()
    fetch(quorum, fetch_request(epoch=1, offset=1, last_epoch=1))
    answer = fetch(quorum, fetch_request(epoch=1, offset=0, last_epoch=0), 1100)
    assert (answer.records_from, answer.records_to) == (0, 1)
    assert quorum.state.log.high_watermark == 1


def test_an_offset_that_goes_back_is_believed_and_the_high_watermark_stays() -> None:
    """A disk was lost: what its voter held before counts no more (KAFKA-12181)."""
    quorum = leader()
    append(quorum, 3)
    fetched(quorum, 1100, 2, offset=3)
    assert quorum.state.log.high_watermark == 3
    fetched(quorum, 1200, 2, offset=2)
    role = role_of(quorum, Leader)
    assert role.followers[BrokerId(2)].fetch_offset == 2
    assert (role.high_watermark, quorum.state.log.high_watermark) == (3, 3)
    append(quorum, 4, now_ms=1300)
    assert quorum.state.log.high_watermark == 3


def test_observers_count_for_nothing_and_are_forgotten() -> None:
    quorum = leader()
    fetched(quorum, 1100, 9)
    assert quorum.state.log.high_watermark == 0
    observers = role_of(quorum, Leader).observers
    assert list(observers) == [9]
    for now_ms in range(2000, 302_000, 1000):
        quorum.step(now_ms, asked(fetch_request(2, epoch=1, offset=0, last_epoch=0)))
    fetched(quorum, 302_000, 8)
    assert list(observers) == [8]


def test_observers_have_a_number_and_the_one_silent_for_longest_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leadership, "OBSERVERS_MAX", 20)
    quorum = leader()
    fetched(quorum, 1100, *range(10, 30))
    fetched(quorum, 1101, 10)  # so 11 has been silent for longest
    fetched(quorum, 1102, 5)
    assert {*role_of(quorum, Leader).observers} == {5, 10, *range(12, 30)}


@pytest.mark.parametrize(
    ("epoch", "end_offset", "message"),
    [(7, 2, "only the leader of epoch 7"), (1, 1, "an append makes the log longer")],
)
def test_an_append_is_that_of_the_leader_and_makes_the_log_longer(
    epoch: int, end_offset: int, message: str
) -> None:
    with pytest.raises(InvariantViolation, match=message):
        append(leader(), end_offset, epoch=epoch)


def test_voters_are_counted_once_and_in_order() -> None:
    assert started(voters=(3, 1, 2, 3)).state.voters == (1, 2, 3)


# --- the end: check-quorum (KAFKA-15489, KAFKA-16144), resignation ---


def test_a_fetch_that_diverges_does_not_hold_a_leader() -> None:
    quorum = leader()
    fetched(quorum, 3999, 2, offset=9)
    tick(quorum, 4000)
    assert isinstance(quorum.state.role, Resigned)


def test_a_clock_that_goes_back_moves_no_deadline() -> None:
    quorum = leader()
    fetched(quorum, 3000, 2)
    role = role_of(quorum, Leader)
    before = role.check_quorum_deadline_ms
    fetched(quorum, 10, 2)
    assert role.check_quorum_deadline_ms >= before


def test_one_that_resigned_asks_again_soon_whom_it_did_not_reach() -> None:
    assert started().step(1, events.ResignRequested()) == []  # it does not lead
    quorum = leader()
    ends = sent(quorum.step(1100, events.ResignRequested()), EndQuorumEpochRequest)
    assert quorum.resignation_pending
    fail(quorum, ends[0].request_id, 1101)
    assert quorum.next_deadline_ms() == 1121
    heard = EndQuorumEpochResponse(
        error_code=ErrorCode.NONE, leader_id=BrokerId(1), leader_epoch=Epoch(1)
    )
    quorum.step(1102, answered(ends[1], heard))
    assert quorum.resignation_pending
    [again] = sent(tick(quorum, 1121), EndQuorumEpochRequest)
    assert quorum.resignation_pending
    quorum.step(1122, answered(again, heard))
    assert not quorum.resignation_pending


def test_an_observer_without_a_leader_has_no_election_timeout() -> None:
    observer = started(9, leader_epoch=4, leader_id=2)
    unknown = fetch_response(6, leader=-1, error_code=ErrorCode.FENCED_LEADER_EPOCH)
    observer.step(1, events.ResponseReceived(request_id=1, source=BrokerId(2), response=unknown))
    assert observer.state.leader_epoch == 6
    assert getattr(observer.state.role, "election_deadline_ms", 0) is None


# --- DescribeQuorum: the others, in the time of the wall clock ---

ADDRESSES = {BrokerId(1): "a:1", BrokerId(2): "b:2", BrokerId(3): "c:3"}
WALL_MS = 1_700_000_000_000


def described(quorum: Quorum, now_ms: int) -> QuorumDescription:
    return describe_quorum(quorum, AddressBook(ADDRESSES), now_ms=now_ms, wall_ms=WALL_MS)


def test_a_leader_describes_itself_its_followers_and_the_observers() -> None:
    quorum = leader()
    first = described(quorum, 1000)  # before the first commit
    assert (first.high_watermark, first.leader_epoch) == (UNKNOWN_OFFSET, Epoch(1))
    fetched(quorum, 2000, 2, 9, 8)
    description = described(quorum, 2500)
    assert (description.leader_id, description.leader_epoch) == (1, 1)
    assert description.high_watermark == 1
    assert description.voter_addresses == ADDRESSES
    own, follower, silent = description.voters
    assert (own.replica_id, own.log_end_offset, own.last_fetch_ms) == (1, 1, WALL_MS)
    assert (follower.replica_id, follower.log_end_offset) == (2, 1)
    assert (follower.last_fetch_ms, follower.last_caught_up_ms) == (WALL_MS - 500,) * 2
    assert (silent.replica_id, silent.log_end_offset) == (3, UNKNOWN_OFFSET)
    assert (silent.last_fetch_ms, silent.last_caught_up_ms) == (-1, -1)
    assert [observer.replica_id for observer in description.observers] == [8, 9]
    session_ms = quorum.settings.controller_quorum_observer_session_ms
    assert described(quorum, 2000 + session_ms).observers != ()
    assert described(quorum, 2001 + session_ms).observers == ()  # silent for too long


def test_a_follower_has_caught_up_with_what_the_leader_had_when_it_fetched_last() -> None:
    progress = Progress()
    caught_up = []
    for now_ms, fetch_offset, leader_end in (
        (100, 5, 9),
        (200, 8, 12),
        (300, 12, 15),  # it holds all that the leader had at 200
        (400, 15, 15),
        (500, 3, 15),  # its disk was lost
    ):
        progress.fetched(now_ms, Offset(fetch_offset), Offset(leader_end))
        caught_up.append(progress.caught_up_ms)
    assert caught_up == [None, None, 200, 400, 400]
    assert (progress.fetch_offset, progress.last_fetch_ms) == (3, 500)


def test_the_voters_of_the_log_are_described_with_their_directories_and_addresses() -> None:
    quorum = changes.elected(1, 2, 3)
    changes.fetch(quorum, 3, directory="wiped")
    changes.fetch(quorum, 4)
    book = AddressBook({}, overrides={BrokerId(2): "proxy:2"})
    book.voters_changed(quorum.state.voter_set)
    book.hear_request(4, "four:4", None)
    seen = describe_quorum(quorum, book, now_ms=1000, wall_ms=1000, directory_id=directory_id("1"))
    keys = [(one.replica_id, one.directory_id) for one in seen.voters]
    assert keys == [(number, directory_id(str(number))) for number in (1, 2, 3)]
    observers = [(one.replica_id, one.directory_id) for one in seen.observers]
    assert observers == [(3, directory_id("wiped")), (4, directory_id("4"))]
    assert seen.voter_addresses == {1: "host1:1", 2: "host2:2", 3: "host3:3"}
    assert seen.observer_addresses == {3: "host3:3", 4: "four:4"}


def test_a_leader_that_removed_itself_is_an_observer() -> None:
    quorum = changes.leader(1, 2, 3)
    removal = RemoveVoterRequest(voter_id=BrokerId(1), directory_id=directory_id("1"))
    changes.change(quorum, removal)
    assert quorum.is_leader
    seen = described(quorum, 1000)
    assert [one.replica_id for one in seen.voters] == [2, 3]
    assert [one.replica_id for one in seen.observers] == [1]


def test_only_the_leader_describes_the_quorum() -> None:
    with pytest.raises(NotController):
        described(started(), 0)
    quorum = leader()
    quorum.step(1500, events.ResignRequested())
    with pytest.raises(NotController):
        described(quorum, 1500)
