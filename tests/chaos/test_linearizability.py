"""The near-linear check against a search through every order that real time allows."""

import random
from dataclasses import dataclass

import numpy as np
import pytest

from quorumlog.chaos.checkers.explode import explode
from quorumlog.chaos.checkers.linearizability import bounds_of, violations
from quorumlog.chaos.checkers.version_order import distinct, order_versions, sorted_pairs
from tests.support.chaos.hand_made_histories import History, found
from tests.support.sizes import tries

CASES = tries(5000)
NEVER = 1 << 60


@dataclass(frozen=True)
class Step:
    start: int
    end: int
    offset: int | None  # of an append
    reads: int  # of a poll: how many records must be there; 0 for an append


def search(steps: list[Step], appended: int) -> bool:
    """Is there an order of all steps, each between its start and its end, that a log can do?"""
    if not steps:
        return True
    first_end = min(step.end for step in steps)
    for place, step in enumerate(steps):
        if step.start > first_end:
            continue  # another one ended before this one began
        if step.offset is not None and step.offset != appended:
            continue
        if step.reads > appended:
            continue
        rest = steps[:place] + steps[place + 1 :]
        if search(rest, appended + (step.offset is not None)):
            return True
    return False


def add_random_case(history: History, case: int, rng: random.Random) -> list[Step]:
    """Draw a few sends, some indeterminate, and polls of slices, all of one key."""
    key, process = f"case-{case}", case * 100
    count = rng.randrange(2, 6)
    starts = [rng.randrange(14) for _ in range(count)]
    ends = [start + rng.randrange(1, 7) for start in starts]
    wish = sorted(range(count), key=lambda n: starts[n] + rng.randrange(6))
    polls = []
    for _ in range(rng.randrange(3)):
        low = rng.randrange(count)
        start = rng.randrange(16)
        polls.append((start, start + rng.randrange(1, 5), low, rng.randrange(low, count) + 1))
    polled = {offset for *_, low, high in polls for offset in range(low, high)}
    info = {offset for offset in polled if rng.random() < 0.3}
    steps = []
    for offset, n in enumerate(wish):
        end = NEVER if offset in info else ends[n]
        steps.append(Step(starts[n], end, offset, 0))
        history.send(
            100 + n,
            -1 if offset in info else offset,
            process=process + n,
            key=key,
            outcome="info" if offset in info else "ok",
            at=(starts[n], ends[n] + 30 if offset in info else ends[n]),
        )
    for place, (start, end, low, high) in enumerate(polls):
        steps.append(Step(start, end, None, high))
        pairs = [(offset, 100 + wish[offset]) for offset in range(low, high)]
        history.poll(*pairs, process=process + 20 + place, key=key, at=(start, end))
    return steps


def test_it_agrees_with_a_search_through_all_orders() -> None:
    rng, history = random.Random(20261121), History()
    possible = [search(add_random_case(history, case, rng), 0) for case in range(CASES)]
    entries = explode(history.table())
    entries = entries.take(np.lexsort((entries.ordinal, entries.op)))
    order = order_versions(entries)
    bounds = bounds_of(order)
    at, _ = violations(bounds.lower, bounds.upper, order.key_start)
    broken = {entries.keys[key] for key in order.place_key[at].tolist()}
    assert broken == {f"case-{case}" for case in range(CASES) if not possible[case]}
    assert CASES // 4 < sum(possible) < 3 * CASES // 4


def test_what_it_finds_is_in_the_verdict() -> None:
    rng = random.Random(7)
    for _ in range(100):
        history = History()
        possible = search(add_random_case(history, 0, rng), 0)
        assert ("nonlinearizable-log" not in found(history.verdict())) is possible, history.ops


@pytest.mark.parametrize("widest", [3, 181, 182, 1 << 62])  # 182 * 363 values are above 16 bits
@pytest.mark.parametrize("rows", [0, 1, 500])
def test_pairs_are_in_order_and_rows_of_one_pair_stay(rows: int, widest: int) -> None:
    rng = np.random.default_rng(rows)
    major = rng.integers(0, min(widest, 1 << 30), rows).astype(np.int32)
    minor = rng.integers(-widest, widest, rows)
    wanted = sorted(range(rows), key=lambda row: (int(major[row]), int(minor[row]), row))
    assert sorted_pairs(major, minor).tolist() == wanted
    numbers, first = distinct(major, minor)
    pairs = sorted({*zip(major.tolist(), minor.tolist(), strict=True)})
    assert [pairs[number] for number in numbers.tolist()] == list(
        zip(major.tolist(), minor.tolist(), strict=True)
    )
    earliest = [int(np.flatnonzero(numbers == place)[0]) for place in range(len(pairs))]
    assert first.tolist() == earliest
