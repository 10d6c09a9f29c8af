"""A key that is proved clean from ranges of its offsets is one in which `check` finds nothing."""

import random
from collections.abc import Callable, Sequence
from itertools import combinations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from quorumlog.chaos.checkers import key_stitching
from quorumlog.chaos.checkers.checker import Facts
from quorumlog.chaos.checkers.entries import COUNT, READER
from quorumlog.chaos.checkers.kafka_log import CHECKER, check
from quorumlog.chaos.checkers.key_ranges import Evidence, examine, positions
from quorumlog.chaos.checkers.key_stitching import stitch
from quorumlog.chaos.checkers.reader_lag import LATE_NS
from quorumlog.chaos.checkers.verdict import Partial
from quorumlog.chaos.checking.parts.cutting import Cuts, cut_by_key
from quorumlog.chaos.history.pairing import table_of
from tests.support.chaos.hand_made_histories import Op, Row, rows_of
from tests.support.chaos.random_histories import PLANTS, good
from tests.support.chaos.wild_histories import wild
from tests.support.sizes import tries

ranges = CHECKER.ranges
assert ranges is not None


def keys_of(ops: Sequence[Op]) -> list[pa.Table]:
    """Return the entries of each key, without counts."""
    entries = CHECKER.explode(table_of(rows_of(ops)))
    entries = entries.filter(
        pc.or_(pc.less(entries["kind"], COUNT), pc.equal(entries["kind"], READER))
    )
    return [entries.filter(pc.equal(entries["key"], key)) for key in pc.unique(entries["key"])]


def cut(key: pa.Table, starts: Sequence[int]) -> list[pa.Table]:
    """Return the ranges that begin at `starts`."""
    cuts = Cuts(1, tuple(starts))
    found = dict(cut_by_key(key, 1, cuts={key["key"][0].as_py(): cuts}, ranges=ranges))
    return [found[part].cast(key.schema) for part in cuts.parts if part in found]


def proved(key: pa.Table, starts: Sequence[int], facts: Facts) -> Partial | None:
    return stitch([examine(one, facts) for one in cut(key, starts)], facts)


def is_clean(partial: Partial) -> bool:
    return not partial.results and not partial.gaps and not partial.across


def some_starts(key: pa.Table, rng: random.Random) -> list[int]:
    end = int(positions(key).max(initial=0)) + 1
    return [0, *sorted(rng.sample(range(1, end), min(end - 1, rng.randrange(1, 6))))]


def compare(ops: Sequence[Op], seed: int) -> list[bool]:
    """Cut all keys somewhere; return for each clean one whether it was proved so."""
    rng, proofs = random.Random(seed), []
    for key in keys_of(ops):
        facts = Facts(dense=rng.random() < 0.3)
        whole, found = check(key, facts), proved(key, some_starts(key, rng), facts)
        assert found is None or found == whole
        if is_clean(whole):
            proofs.append(found is not None)
    return proofs


def test_what_is_proved_is_what_the_check_finds() -> None:
    for seed in range(tries(12)):
        compare(wild(seed), seed)
        sketch = good(seed)
        PLANTS[seed % len(PLANTS)](sketch)
        compare(sketch.ops, seed)


def test_nearly_every_good_history_is_proved_clean() -> None:
    proofs = [proof for seed in range(8) for proof in compare(good(seed).ops, seed)]
    assert sum(proofs) > 0.8 * len(proofs) > 10


def records(low: int, high: int) -> list[Row]:
    return [("k", offset, offset + 100) for offset in range(low, high)]


def ideal() -> list[Op]:
    """Sends of three records by two producers, and readers from the beginning and from within."""
    ops = [Op(process, "assign", 0, 1, "ok", [("k", -1, 0)]) for process in (10, 11)]
    ops.append(Op(11, "seek", 2, 3, "ok", [("k", 2, 0)]))
    for n in range(4):
        now = 100 * n + 10
        ops.append(Op(n % 2, "send", now, now + 10, "ok", records(3 * n, 3 * n + 3)))
        ops.append(Op(10, "poll", now + 20, now + 30, "ok", records(max(3 * n - 1, 0), 3 * n + 2)))
        ops.append(Op(11, "poll", now + 40, now + 50, "ok", records(3 * n or 2, 3 * n + 3)))
    ops.append(Op(10, "poll", 500, 510, "ok", records(11, 12)))
    ops.append(Op(90, "final_poll", 600, 610, "ok", records(0, 7)))
    ops.append(Op(90, "final_poll", 620, 630, "ok", records(7, 12)))
    ops.append(Op(90, "final_end", 640, 650, "ok", [("k", 12, 0)]))
    return ops


@pytest.mark.parametrize("facts", [Facts(), Facts(dense=True)], ids=["", "dense"])
def test_an_ideal_history_is_proved_clean_wherever_it_is_cut(facts: Facts) -> None:
    [key] = keys_of(ideal())
    whole = check(key, facts)
    assert is_clean(whole)
    assert whole.peaks["worst_lag_ns"] > 0
    for starts in combinations(range(1, 12), 2):
        assert proved(key, [0, *starts], facts) == whole
    assert proved(key, range(12), facts) == whole
    assert proved(key, [0, 5, 20], facts) == whole  # nothing is in the last


@pytest.mark.parametrize("outcome", ["ok", "info"])
def test_sends_that_are_interleaved_over_a_border_are_counted(outcome: str) -> None:
    ops = ideal()
    for op in ops:
        if op.f == "send" and op.start_ns in (110, 210):
            places = (3, 4, 7) if op.start_ns == 110 else (5, 6, 8)
            op.start_ns, op.end_ns = (110, 120) if op.process else (111, 121)
            op.outcome = outcome
            op.messages = [records(place, place + 1)[0] for place in places]
            if outcome == "info":
                op.messages = [(key, -1, value) for key, _, value in op.messages]
    [entries] = keys_of(ops)
    whole = check(entries, Facts())
    assert whole.counts["interleaved_sends"] == 2
    for starts in combinations(range(1, 12), 2):
        assert proved(entries, [0, *starts], Facts()) == whole


# Each of these breaks a promise at offset 6, where a range begins: no range shows it alone.


def sent_twice(ops: list[Op]) -> None:
    """Offset 7 holds the value of offset 1."""
    for op in ops:
        op.messages = [("k", 7, 101) if row == ("k", 7, 107) else row for row in op.messages]


def visible_before_sent(ops: list[Op]) -> None:
    """The records below the border were sent after those above it had been acknowledged."""
    early = next(op for op in ops if op.f == "send" and op.start_ns == 210)
    late = next(op for op in ops if op.f == "send" and op.start_ns == 110)
    (late.start_ns, late.end_ns), (early.start_ns, early.end_ns) = (113, 119), (110, 112)


def skipped(ops: list[Op]) -> None:
    """A reader that sought leaves out the last record below the border."""
    _read_by_the_reader_that_sought(ops, records(3, 5), records(6, 7))


def gone_back(ops: list[Op]) -> None:
    """A reader that sought reads over the border, and then the last record below it."""
    _read_by_the_reader_that_sought(ops, records(3, 5), records(6, 8), records(5, 6))


def _read_by_the_reader_that_sought(ops: list[Op], *polled: list[Row]) -> None:
    ops[:] = [op for op in ops if op.process != 11 or op.start_ns < 150]
    for n, messages in enumerate(polled):
        ops.append(Op(11, "poll", 550 + 10 * n, 560 + 10 * n, "ok", messages))


def begun_late(ops: list[Op]) -> None:
    """A reader from the beginning begins at the border."""
    ops.append(Op(12, "assign", 550, 551, "ok", [("k", -1, 0)]))
    ops.append(Op(12, "poll", 552, 553, "ok", records(6, 8)))


def sent_backwards(ops: list[Op]) -> None:
    """One operation sent the record above the border before the one below it."""
    for op in ops:
        if op.f == "send" and op.start_ns == 110:
            op.messages = [*records(3, 5), *records(6, 7), *records(5, 6)]
        if op.f == "send" and op.start_ns == 210:
            op.messages = records(7, 9)
            op.start_ns, op.end_ns = 211, 220


def sent_backwards_perhaps(ops: list[Op]) -> None:
    """The same of an operation of unknown outcome, whose records were polled."""
    sent_backwards(ops)
    for op in ops:
        if op.f == "send" and op.start_ns == 110:
            op.outcome = "info"
            op.messages = [(key, -1, value) for key, _, value in op.messages]


def not_read_to_the_end(ops: list[Op]) -> None:
    """The final reader stops before the border."""
    del ops[-3:]
    ops.append(Op(90, "final_poll", 600, 610, "ok", records(0, 6)))


def claimed_too_much(ops: list[Op]) -> None:
    """The final reader says that the log ends behind its last record."""
    ops[-1].messages = [("k", 13, 0)]


def left_out(ops: list[Op]) -> None:
    """No record is at offset 6."""
    for op in ops:
        op.messages = [row for row in op.messages if row[1] != 6]


def stopped(ops: list[Op]) -> None:
    """The readers stop early."""
    ops[:] = [op for op in ops if op.f != "poll" or op.start_ns < 100]


def late(ops: list[Op]) -> None:
    """A reader waits long for the last record."""
    for op in ops:
        if op.start_ns >= 500:
            op.start_ns += LATE_NS
            op.end_ns = (op.end_ns or 0) + LATE_NS


Plant = Callable[[list[Op]], None]
FOUND_BY: dict[Plant, str] = {
    sent_twice: "_values_differ",
    visible_before_sent: "_is_linearizable",
    skipped: "_polls_follow",
    gone_back: "_polls_follow",
    begun_late: "_polls_follow",
    sent_backwards: "_sends_ascend",
    sent_backwards_perhaps: "_operations_ascend",
    not_read_to_the_end: "_is_read_to_the_end",
    claimed_too_much: "_is_read_to_the_end",
    left_out: "_has_holes",
    stopped: "_stopped_early",
    late: "_worst_lag",
}


@pytest.mark.parametrize("plant", FOUND_BY, ids=lambda plant: plant.__name__)
def test_what_is_wrong_at_a_border_is_found_and_by_one_condition_alone(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops, facts = ideal(), Facts(dense=plant is left_out)
    plant(ops)
    [key] = keys_of(ops)
    assert not is_clean(check(key, facts))
    assert all(isinstance(examine(one, facts), Evidence) for one in cut(key, [0, 6]))
    assert proved(key, [0, 6], facts) is None
    # A stitch that forgets the condition is wrong: the tests above would find it.
    name = FOUND_BY[plant]
    forgotten = name not in ("_has_holes", "_stopped_early", "_worst_lag")
    monkeypatch.setattr(key_stitching, name, lambda *_: forgotten)
    assert proved(key, [0, 6], facts) is not None


@pytest.mark.parametrize("start", range(1, 12))
def test_wherever_a_range_begins_what_is_wrong_is_never_called_clean(start: int) -> None:
    for plant in FOUND_BY:
        ops = ideal()
        plant(ops)
        [key] = keys_of(ops)
        assert proved(key, [0, start], Facts(dense=True)) is None
