"""Where a node reaches the others while the voters change, move and are heard of (KIP-853)."""

import pytest

from quorumlog.metadata_quorum.core.messages import (
    BeginQuorumEpochRequest,
    FetchResponse,
    VoteResponse,
)
from quorumlog.metadata_quorum.core.voter_sets import Voter
from quorumlog.metadata_quorum.io import address_book
from quorumlog.metadata_quorum.io.address_book import AddressBook
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch
from tests.support.metadata_quorum.voters import directory_id, voter_set

ONE, TWO, THREE = map(BrokerId, (1, 2, 3))
CONFIGURED = {ONE: "configured1:1", TWO: "configured2:2"}


def named(leader_id: int, address: str) -> FetchResponse:
    return FetchResponse(
        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
        leader_id=BrokerId(leader_id),
        leader_epoch=Epoch(1),
        leader_address=address,
    )


def begun(leader_id: int, address: str) -> BeginQuorumEpochRequest:
    return BeginQuorumEpochRequest(
        leader_id=BrokerId(leader_id), leader_epoch=Epoch(1), leader_address=address
    )


def test_at_kraft_version_0_the_configured_voters_are_right() -> None:
    book = AddressBook(CONFIGURED)
    book.hear_response(named(1, "heard:1"))
    book.hear_request(1, "heard:1", begun(1, "heard:1"))
    assert (book.find(ONE), book.kraft_version) == ("configured1:1", 0)
    assert book.voter_addresses() == CONFIGURED


def test_the_voter_set_in_force_comes_before_what_others_say_and_what_is_configured() -> None:
    book = AddressBook(CONFIGURED)
    book.voters_changed(voter_set(1, 3))
    book.hear_response(named(3, "heard:3"))
    assert [book.find(node) for node in (ONE, TWO, THREE)] == [
        "host1:1",
        "configured2:2",
        "host3:3",
    ]
    assert book.voter_addresses() == {ONE: "host1:1", THREE: "host3:3"}
    assert book.kraft_version == 1
    book.voters_changed(None)
    assert (book.find(ONE), book.kraft_version) == ("configured1:1", 0)


def test_a_node_whose_directory_is_not_the_one_of_its_voter_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for number, directory in ((2, "2"), (2, "emptied"), (4, "4")):
        own = Voter(voter_id=BrokerId(number), directory_id=directory_id(directory))
        AddressBook(CONFIGURED, own=own).voters_changed(voter_set(1, 2, 3))
    [record] = [one for one in caplog.records if one.levelname == "WARNING"]
    assert f"the voters name node 2 with directory {directory_id('2')}" in record.getMessage()
    assert f"its directory is {directory_id('emptied')}" in record.getMessage()


def test_a_leader_that_moved_says_so_until_the_voters_say_it_too() -> None:
    book = AddressBook({})
    book.voters_changed(voter_set(1, 2))
    book.hear_request(2, "", begun(2, "moved:2"))
    assert book.find(TWO) == "moved:2"
    moved_again = Voter(voter_id=TWO, directory_id=directory_id("2"), address="again:2")
    book.voters_changed(voter_set(1, 2).with_voter(moved_again))
    assert book.find(TWO) == "again:2"


def test_a_node_without_voters_hears_where_the_leader_is() -> None:
    book = AddressBook({}, bootstrap=("b0:1", "[::1]:2"))
    assert [book.find(BrokerId(node)) for node in (-2, -3, -4, -1, 3)] == [
        "b0:1", "[::1]:2", None, None, None,
    ]  # fmt: skip
    book.hear_response(named(3, "host3:3"))
    assert book.find(THREE) == "host3:3"
    book.hear_response(
        VoteResponse(
            error_code=ErrorCode.NONE, leader_id=THREE, leader_epoch=Epoch(1), vote_granted=False
        )
    )  # it does not know the address
    assert book.find(THREE) == "host3:3"


def test_a_node_says_where_it_is_with_its_requests() -> None:
    book = AddressBook({})
    book.hear_request(3, "three:3", named(-1, ""))
    assert book.find(THREE) == "three:3"


def test_an_override_is_right_here_and_told_to_no_other_node() -> None:
    book = AddressBook(CONFIGURED, overrides={ONE: "proxy:1"})
    book.voters_changed(voter_set(1))
    assert (book.find(ONE), book.known_to_all(ONE)) == ("proxy:1", "host1:1")


@pytest.mark.parametrize(
    "text",
    ["", "no-port", ":1", "host:0", "host:65536", "host:x", "a/b:1", "a@b:1", "a b:1", "é:1"],
)
def test_what_is_no_address_is_not_believed(text: str) -> None:
    book = AddressBook({})
    book.hear_response(named(1, text))
    book.hear_request(1, text, begun(1, text))
    assert book.find(ONE) is None


def test_no_more_nodes_are_remembered_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(address_book, "HEARD_MAX", 2)
    book = AddressBook({})
    for node in (1, 2, 1, 3):
        book.hear_request(node, f"host:{node}", None)
    assert [book.find(node) for node in (ONE, TWO, THREE)] == ["host:1", None, "host:3"]
