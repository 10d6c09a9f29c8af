"""Each rule of the oracle of groups, broken by hand beside a history that keeps it."""

from collections.abc import Mapping

import pytest

from quorumlog.chaos.simulation.kernel.rules import Violation
from quorumlog.chaos.simulation.worlds.groups.oracle import (
    Commit,
    GroupOracle,
    Membership,
    Position,
)

A1, B1 = (Membership(name, name, 1) for name in "ab")
A2, B2 = (Membership(name, name, 2) for name in "ab")
STATIC, RESTARTED = Membership("i", "before", 2), Membership("i", "after", 2)


# The log of the offsets topic: the tag of each record.
LOG = ["x", "early", "y", "late"]


def grouped() -> GroupOracle:
    """A and B own 0 and 1 in generation 1; A has committed 5. Assignment y is of generation 2."""
    oracle = GroupOracle(lambda tag: LOG.index(tag) if tag in LOG else None)
    oracle.assigned(A1, "x", [0])
    oracle.assigned(B1, "x", [1])
    oracle.acknowledge(commit(A1, 0, 5))
    return oracle


def commit(membership: Membership, partition: int, offset: int, tag: str = "early") -> Commit:
    return Commit(membership, shown(partition, offset, tag))


def shown(partition: int, offset: int, tag: str = "early") -> Mapping[int, Position]:
    return {partition: Position(offset, tag)}


def broken(rule: str) -> "pytest.RaisesExc[Violation]":
    return pytest.raises(Violation, match=f"^{rule}: ")


def test_what_holds_is_accepted() -> None:
    oracle = grouped()
    oracle.assigned(A1, "x", [0])  # received again
    oracle.assigned(B2, "y", [0, 1])
    oracle.fetched(B2, shown(0, 5))
    oracle.acknowledge(commit(B2, 0, 6, "late"))
    oracle.fetched(B2, shown(0, 5))  # of an older coordinator of this generation
    oracle.fetched(A1, {})  # its answer was late
    oracle.finish(shown(0, 6))


def test_an_offset_of_a_transaction_is_shown_once_that_is_committed() -> None:
    oracle = grouped()
    pending = commit(B1, 1, 6, "late")
    oracle.began(pending)
    with broken("transaction-shown"):
        oracle.fetched(A1, shown(1, 6, "late"))
    with broken("transaction-shown"):
        oracle.finish({**shown(0, 5), **shown(1, 6, "late")})
    oracle.decided(pending)
    oracle.fetched(A1, {**shown(0, 5), **shown(1, 6, "late")})


def test_a_commit_of_the_last_generation_may_be_acknowledged_late() -> None:
    oracle = grouped()
    oracle.assigned(B2, "y", [0])
    oracle.acknowledge(commit(A1, 0, 7, "early"))


def test_a_partition_has_one_owner_in_a_generation() -> None:
    with broken("one-owner"):
        grouped().assigned(B1, "x", [0])


def test_a_static_member_keeps_its_partitions_when_it_restarts() -> None:
    oracle = grouped()
    oracle.assigned(STATIC, "y", [0])
    oracle.assigned(RESTARTED, "y", [0])
    oracle.acknowledge(commit(STATIC, 0, 8, "late"))
    with broken("offset-lost"):
        oracle.fetched(RESTARTED, shown(0, 7))


def test_a_generation_has_one_assignment() -> None:
    with broken("one-assignment"):
        grouped().assigned(B1, "y", [2])


def test_an_old_generation_does_not_commit() -> None:
    oracle = grouped()
    oracle.assigned(B2, "y", [0])
    with broken("old-generation"):
        oracle.acknowledge(commit(A1, 0, 6, "late"))


def test_an_old_generation_that_has_committed_is_seen_when_the_new_one_is_told() -> None:
    oracle = grouped()
    oracle.acknowledge(commit(A1, 0, 6, "late"))
    with broken("old-generation"):
        oracle.assigned(B2, "y", [0])


def test_what_members_are_told_is_committed() -> None:
    with broken("told-committed"):
        grouped().assigned(B2, "lost", [0])


def test_what_is_acknowledged_is_committed() -> None:
    with broken("acked-committed"):
        grouped().acknowledge(commit(A1, 0, 6, "lost"))


def test_what_is_shown_is_committed() -> None:
    with broken("fetched-committed"):
        grouped().fetched(A2, shown(0, 6, "lost"))


@pytest.mark.parametrize("positions", [{}, shown(0, 4)])
def test_the_next_owner_finds_what_was_acknowledged(positions: Mapping[int, Position]) -> None:
    with broken("offset-lost"):
        grouped().fetched(B2, positions)


def test_the_last_coordinator_shows_what_was_acknowledged() -> None:
    with broken("offset-lost"):
        grouped().finish(shown(0, 4))
