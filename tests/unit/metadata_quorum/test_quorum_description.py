"""DescribeQuorum: what the leader says of the others, in the time of the wall clock."""

import pytest

from quorumlog.metadata_quorum.controller_client import QuorumDescription
from quorumlog.metadata_quorum.core import events
from quorumlog.metadata_quorum.core.messages import RemoveVoterRequest
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.roles import Progress
from quorumlog.metadata_quorum.driver.seams import NotController
from quorumlog.metadata_quorum.io.address_book import AddressBook
from quorumlog.metadata_quorum.io.quorum_description import describe_quorum
from quorumlog.wire.codec.identifiers import UNKNOWN_OFFSET, BrokerId, Epoch, Offset
from tests.support.metadata_quorum.quorums import started
from tests.support.metadata_quorum.voters import directory_id
from tests.unit.metadata_quorum.test_quorum_leader_edges import fetched, leader
from tests.unit.metadata_quorum.test_voter_changes import change, elected, fetch
from tests.unit.metadata_quorum.test_voter_changes import leader as leading

ADDRESSES = {BrokerId(1): "a:1", BrokerId(2): "b:2", BrokerId(3): "c:3"}
WALL_MS = 1_700_000_000_000


def described(quorum: Quorum, now_ms: int) -> QuorumDescription:
    return describe_quorum(quorum, AddressBook(ADDRESSES), now_ms=now_ms, wall_ms=WALL_MS)


def test_a_leader_describes_itself_its_followers_and_the_observers() -> None:
    quorum = leader()
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


def test_an_observer_that_is_silent_for_too_long_is_left_out() -> None:
    quorum = leader()
    fetched(quorum, 2000, 9)
    session_ms = quorum.settings.controller_quorum_observer_session_ms
    assert described(quorum, 2000 + session_ms).observers != ()
    assert described(quorum, 2001 + session_ms).observers == ()


def test_the_voters_of_the_log_are_described_with_their_directories_and_addresses() -> None:
    quorum = elected(1, 2, 3)
    fetch(quorum, 3, directory="wiped")
    fetch(quorum, 4)
    book = AddressBook({}, overrides={BrokerId(2): "proxy:2"})
    book.voters_changed(quorum.voter_set)
    book.hear_request(4, "four:4", None)
    seen = describe_quorum(quorum, book, now_ms=1000, wall_ms=1000, directory_id=directory_id("1"))
    keys = [(one.replica_id, one.directory_id) for one in seen.voters]
    assert keys == [(number, directory_id(str(number))) for number in (1, 2, 3)]
    observers = [(one.replica_id, one.directory_id) for one in seen.observers]
    assert observers == [(3, directory_id("wiped")), (4, directory_id("4"))]
    assert seen.voter_addresses == {1: "host1:1", 2: "host2:2", 3: "host3:3"}
    assert seen.observer_addresses == {3: "host3:3", 4: "four:4"}


def test_a_leader_that_removed_itself_is_an_observer() -> None:
    quorum = leading(1, 2, 3)
    removal = RemoveVoterRequest(voter_id=BrokerId(1), directory_id=directory_id("1"))
    change(quorum, removal)
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


def test_before_the_first_commit_the_high_watermark_is_unknown() -> None:
    description = described(leader(), 1000)
    assert (description.high_watermark, description.leader_epoch) == (UNKNOWN_OFFSET, Epoch(1))
