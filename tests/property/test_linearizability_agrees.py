"""Three ways to decide whether a register is linearizable agree: zones, a search, all orders."""

import numpy as np
import pytest

from quorumlog.chaos.checkers.models import Register
from quorumlog.chaos.checkers.wgl import Answer, Budget, search
from quorumlog.chaos.checkers.zones import CAS, OPEN, READ, WRITE, check_zones, repeats_values
from tests.support.chaos.register_histories import (
    INITIAL,
    Op,
    has_an_order,
    random_history,
    registers,
    timed,
)
from tests.support.sizes import tries

MODEL = Register("register", has_cas=True, initial=INITIAL)
AMPLE = Budget(steps=1_000_000, held_bytes=1 << 30)


def found_by_search(ops: list[Op]) -> bool:
    answer = search(MODEL, timed(ops), AMPLE).answer
    assert answer is not Answer.UNDECIDED
    return answer is Answer.YES


def test_all_three_agree_on_small_histories() -> None:
    valid = {True: 0, False: 0}
    for seed in range(tries(4000)):
        ops = random_history(seed, longest=7)
        assert len(repeats_values(registers(ops))) == 0
        expected = has_an_order(ops)
        assert found_by_search(ops) == expected, (seed, ops)
        assert (not check_zones(registers(ops))) == expected, (seed, ops)
        valid[expected] += 1
    assert min(valid.values()) > tries(4000) // 4


def test_zones_and_the_search_agree_on_longer_histories() -> None:
    for seed in range(tries(1500)):
        ops = random_history(10**6 + seed, longest=14)
        assert (not check_zones(registers(ops))) == found_by_search(ops), (seed, ops)


def test_the_search_is_right_about_values_that_are_written_again() -> None:
    for seed in range(tries(2000)):
        ops = random_history(seed, longest=7, is_unique=False)
        assert found_by_search(ops) == has_an_order(ops), (seed, ops)


@pytest.mark.parametrize("last_reads", [2, 1])
def test_a_write_that_only_a_compare_and_set_of_unknown_outcome_saw_happened(
    last_reads: int,
) -> None:
    ops = [
        Op(WRITE, 0, 1, 0, OPEN),  # nothing that is known saw 1
        Op(CAS, 1, 2, 1, OPEN),  # but for this, and 2 was read
        Op(READ, 2, 0, 2, 3),
        Op(READ, last_reads, 0, 4, 5),
    ]
    is_valid = last_reads == 2
    assert has_an_order(ops) == is_valid
    assert (not check_zones(registers(ops))) == is_valid
    assert found_by_search(ops) == is_valid


def test_what_nothing_saw_is_left_out_whatever_the_chain_of_unknown_outcomes() -> None:
    ops = [Op(CAS, value, value + 1, value, OPEN) for value in range(5)]
    ops.append(Op(READ, 3, 0, 10, 11))
    ops.append(Op(CAS, 3, 9, 12, 13))  # 3 -> 4 is of unknown outcome, so this may be the one
    assert not check_zones(registers(ops))
    ops.append(Op(READ, 4, 0, 14, 15))
    assert [finding.key for finding in check_zones(registers(ops))] == [0]


@pytest.mark.parametrize(
    ("ops", "note"),
    [
        ([Op(READ, 5, 0, 0, 1)], "no operation wrote"),
        ([Op(CAS, 0, 1, 0, 1), Op(CAS, 0, 2, 2, 3)], "replaced by two"),
        ([Op(CAS, 1, 2, 0, 1), Op(CAS, 2, 1, 2, 3)], "in a ring"),
        ([Op(READ, 1, 0, 0, 1), Op(WRITE, 0, 1, 2, 3)], "precede it began"),
        ([Op(WRITE, 0, 1, 0, 1), Op(READ, 0, 0, 2, 3)], "while another value must have been"),
        (
            [
                Op(WRITE, 0, 1, 0, 1),
                Op(WRITE, 0, 2, 2, 3),
                Op(READ, 2, 0, 4, 5),
                Op(READ, 1, 0, 6, 7),
            ],
            "while the other was",
        ),
    ],
)
def test_a_finding_names_the_rule_and_operations_that_prove_it(ops: list[Op], note: str) -> None:
    (finding,) = check_zones(registers(ops))
    assert note in finding.note
    told = [ops[at] for _, at in finding.told]
    assert told
    assert not has_an_order(ops)


def test_each_key_is_found_once_and_good_keys_are_not() -> None:
    histories = [random_history(seed, longest=9) for seed in range(60)]
    moved = [registers(ops) for ops in histories]
    whole = type(moved[0])(
        **{
            name: np.concatenate([getattr(one, name) for one in moved])
            for name in ("kind", "seen", "made", "invoked", "completed")
        },
        key=np.repeat(range(60), [len(one) for one in moved]),
        initial=INITIAL,
    )
    bad = [seed for seed, ops in enumerate(histories) if check_zones(registers(ops))]
    assert [finding.key for finding in check_zones(whole)] == bad
    assert 10 < len(bad) < 50
