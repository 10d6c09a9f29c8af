"""Where a replica's log is opened: where it is, and else where it cannot hide another one."""

import pytest

from quorumlog.broker.partitions.core.placement import Candidate, NoPlace, place

A3, B1, C1 = Candidate("a", 3), Candidate("b", 1), Candidate("c", 1)
HELD_A, HELD_B = Candidate("a", 3, holds_log=True), Candidate("b", 1, holds_log=True)


@pytest.mark.parametrize(
    ("candidates", "assigned", "expected"),
    [
        ([A3, B1, C1], None, 1),  # the fewest logs; of two, the first
        ([A3], None, 0),
        ([HELD_A, B1], None, 0),  # it is there already
        ([HELD_A, B1], "b", 0),  # it is elsewhere than the metadata says
        ([A3, B1], "a", 0),  # as the metadata says
        ([HELD_A, HELD_B], "b", 1),
        ([HELD_A, HELD_B], None, NoPlace.AMBIGUOUS),
        ([HELD_A, HELD_B], "c", NoPlace.AMBIGUOUS),
        ([HELD_A, HELD_B, C1], "c", NoPlace.AMBIGUOUS),
        ([A3, B1], "gone", 1),  # all directories are there, and it is in none
        ([], None, NoPlace.NONE_ONLINE),
    ],
)
def test_a_log_is_where_it_is_or_where_the_fewest_are(
    candidates: list[Candidate], assigned: str | None, expected: int | NoPlace
) -> None:
    for is_new in (False, True):
        assert place(candidates, assigned, has_offline=False, is_new=is_new) == expected


def test_no_log_is_made_beside_one_that_cannot_be_seen() -> None:
    """KAFKA-16234: the empty log would be taken for the replica."""
    for assigned in (None, "offline"):
        refused = place([A3, B1], assigned, has_offline=True, is_new=False)
        assert refused is NoPlace.MAY_BE_OFFLINE
    assert place([A3, B1], None, has_offline=True, is_new=True) == 1
    assert place([A3, B1], "a", has_offline=True, is_new=False) == 0
    assert place([HELD_A, B1], None, has_offline=True, is_new=False) == 0
