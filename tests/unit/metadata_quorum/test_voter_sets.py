"""The voters in force at each offset of the log (KIP-853)."""

import pytest

from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.core.voter_sets import Voter, VoterSet, VoterSets
from quorumlog.wire.codec.identifiers import BrokerId, Offset
from tests.support.metadata_quorum.voters import directory_id, voter, voter_set


def test_a_set_is_sorted_and_its_majority_is_more_than_half() -> None:
    voters = VoterSet((voter(3), voter(1), voter(2)))
    assert voters.ids == (1, 2, 3)
    assert [voter_set(*range(1, count + 1)).majority for count in (1, 2, 3, 4, 5)] == [
        1,
        2,
        2,
        3,
        3,
    ]
    assert str(voters) == "1,2,3"


def test_an_id_is_there_once() -> None:
    with pytest.raises(ValueError, match="a voter is there twice"):
        VoterSet((voter(1), voter(1, "another")))


def test_a_voter_is_an_id_and_a_directory() -> None:
    voters = voter_set(1, 2)
    assert voters.has_key(BrokerId(1), directory_id("1"))
    assert not voters.has_key(BrokerId(1), directory_id("wiped"))
    assert not voters.has_key(BrokerId(1), None)
    assert not voters.has_key(BrokerId(3), directory_id("3"))
    assert voters.get(BrokerId(3)) is None


def test_voters_are_added_replaced_and_removed() -> None:
    voters = voter_set(1, 2)
    assert voters.with_voter(voter(3)) == voter_set(1, 2, 3)
    moved = Voter(voter_id=BrokerId(2), directory_id=directory_id("2"), address="there:1")
    assert voters.with_voter(moved).get(BrokerId(2)) == moved
    assert voters.without(BrokerId(1)) == voter_set(2)
    assert VoterSet.of_ids([BrokerId(2), BrokerId(1)]).ids == (1, 2)


@pytest.mark.parametrize(
    ("address", "is_one"),
    [
        ("h:1", True),
        ("[::1]:65535", True),
        ("h" * 255 + ":1", True),
        ("h" * 256 + ":1", False),
        ("h" * 32_767 + ":1", False),
        ("h:0", False),
        ("h:65536", False),
        (":1", False),
        ("h", False),
        ("a b:1", False),
        ("x/y?z:80", False),
        ("x\0:2", False),
        ("h\u00e4:1", False),
    ],
)
def test_a_voter_has_an_address_that_others_can_read_and_use(address: str, is_one: bool) -> None:
    named = Voter(voter_id=BrokerId(4), directory_id=directory_id("4"), address=address)
    assert named.is_well_formed is is_one


def history() -> VoterSets:
    return VoterSets(
        ((Offset(2), voter_set(1)), (Offset(5), voter_set(1, 2)), (Offset(9), voter_set(1, 2, 3)))
    )


def test_the_last_set_is_in_force_and_each_offset_has_its_own() -> None:
    sets = history()
    assert (sets.last, sets.last_offset) == (voter_set(1, 2, 3), 9)
    found = [sets.at(Offset(end)) for end in (2, 3, 5, 6, 9, 10)]
    assert found == [
        None, voter_set(1), voter_set(1), voter_set(1, 2), voter_set(1, 2), voter_set(1, 2, 3),
    ]  # fmt: skip


def test_a_truncation_brings_back_the_set_before() -> None:
    sets = history()
    sets.truncate(Offset(9))
    assert sets.last == voter_set(1, 2)
    sets.truncate(Offset(2))
    assert sets.last is None
    assert (sets.last_offset, sets.history) == (-1, ())


def test_a_log_that_starts_later_keeps_the_set_in_force_at_its_start() -> None:
    sets = history()
    sets.move_start(Offset(7))
    assert [offset for offset, _ in sets.history] == [5, 9]
    assert sets.at(Offset(7)) == voter_set(1, 2)
    sets.move_start(Offset(10))
    assert [offset for offset, _ in sets.history] == [9]


def test_a_snapshot_replaces_the_history() -> None:
    sets = history()
    sets.install(Offset(20), voter_set(4))
    assert (sets.last, sets.history) == (voter_set(4), ((19, voter_set(4)),))
    assert sets.at(Offset(20)) == voter_set(4)
    sets.install(Offset(30), None)
    assert sets.last is None


def test_sets_come_in_the_order_of_the_log() -> None:
    with pytest.raises(InvariantViolation, match="in the order of the log"):
        history().append([(Offset(9), voter_set(1))])
