"""However a history is cut, into parts, anywhere or into ranges, its verdict is the whole's."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from quorumlog.chaos.checkers import check_history, stitched_keys
from quorumlog.chaos.checkers.checker import Checker, Facts
from quorumlog.chaos.checkers.entries import COUNT, READER
from quorumlog.chaos.checkers.kafka_log import CHECKER, check
from quorumlog.chaos.checkers.key_ranges import Evidence, examine, positions
from quorumlog.chaos.checkers.reader_lag import LATE_NS
from quorumlog.chaos.checkers.stitched_keys import stitch
from quorumlog.chaos.checkers.verdict import Partial
from quorumlog.chaos.checking import local
from quorumlog.chaos.checking.local import check_in_parts
from quorumlog.chaos.checking.parts import plan, row_groups
from quorumlog.chaos.checking.parts.row_groups import RowGroups, find_row_groups
from quorumlog.chaos.checking.parts.table_cuts import (
    Cuts,
    cut_by_key,
    cut_by_process,
    pack,
    spread,
    unpack,
)
from quorumlog.chaos.history import HistoryError, HistorySource, parquet
from quorumlog.chaos.history.operations_table import table_of
from quorumlog.chaos.history.parquet import write_operations
from tests.support.chaos.hand_made_histories import Op, Row, rows_of
from tests.support.chaos.joined_histories import apart, same
from tests.support.chaos.random_histories import PLANTS, good
from tests.support.chaos.runs import checked_in_runs
from tests.support.chaos.wild_histories import wild, with_transactions
from tests.support.sizes import tries


@pytest.fixture(scope="module")
def whole() -> pa.Table:
    tables = [table_of(rows_of(wild(seed))) for seed in range(tries(24))]
    for seed, plant in enumerate(PLANTS):
        sketch = good(2000 + seed, sends=120)
        plant(sketch)
        tables.append(table_of(rows_of(sketch.ops)))
    return apart(tables)


def row_groups_of(file: Path) -> RowGroups:
    groups = find_row_groups(HistorySource(file))
    assert groups is not None
    return groups


@pytest.mark.parametrize("cut", [(60, 180, 5), (400, 400, 1)])
def test_the_verdict_is_that_of_the_whole(
    whole: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: tuple[int, int, int]
) -> None:
    group_rows, chunk_rows, parts = cut
    file = tmp_path / "history.parquet"
    pq.write_table(whole, file, row_group_size=group_rows)
    monkeypatch.setattr(row_groups, "ROWS_PER_CHUNK", chunk_rows)
    groups = row_groups_of(file)
    assert len(groups.chunks) > 5
    monkeypatch.setattr(local, "MICRO_PER_PART", groups.micro // parts)
    same(check_in_parts(groups, CHECKER), check_history(whole))


@pytest.fixture
def hot(monkeypatch: pytest.MonkeyPatch) -> tuple[Checker, Counter[bool]]:
    """Small keys are hot; return a checker, and how many keys it proved clean, and how many not."""
    monkeypatch.setattr(plan, "HOT", 40)
    monkeypatch.setattr(plan, "MICRO_PER_RANGE", 20)
    proofs, ranges = Counter[bool](), CHECKER.ranges
    assert ranges is not None
    stitch = ranges.stitch

    def counted(evidence: Sequence[Any], facts: Facts) -> Partial | None:
        partial = stitch(evidence, facts)
        proofs[partial is not None] += 1
        return partial

    return replace(CHECKER, ranges=replace(ranges, stitch=counted)), proofs


def test_the_verdict_is_the_same_whether_hot_keys_are_proved_clean_or_not(
    whole: pa.Table, tmp_path: Path, hot: tuple[Checker, Counter[bool]]
) -> None:
    file, (checker, proofs) = tmp_path / "history.parquet", hot
    pq.write_table(whole, file, row_group_size=400)
    groups = row_groups_of(file)
    same(check_in_parts(groups, checker), check_history(whole))
    assert min(proofs[True], proofs[False]) >= 5


def test_a_key_is_cut_if_it_is_large_and_its_messages_have_offsets() -> None:
    size = plan.HOT + plan.MICRO_PER_RANGE
    extents = {
        "large": plan.Extent(size, 10, 50, 50 + size),
        "not placed": plan.Extent(size, plan.MICRO_PER_RANGE + 1, 0, size),
        "small": plan.Extent(plan.HOT, 0, 0, plan.HOT),
    }
    made = plan.plan_of(extents, 3 * size, CHECKER, parts_for=lambda micro: micro // size)
    assert (made.parts, {*made.places}) == (2, {"not placed", "small"})
    assert made.cuts == {"large": Cuts(2, (50, 50 + (size + 1) // 3, 50 + 2 * (size + 1) // 3))}
    assert made.parts_in_all == 5


def test_parts_hold_everything_once_in_order(whole: pa.Table) -> None:
    entries = CHECKER.explode(whole)
    found = {part: table.cast(entries.schema) for part, table in cut_by_key(entries, 7)}
    keys = [set(table.column("key").to_pylist()) for table in found.values()]
    assert sum(map(len, keys)) == len(set().union(*keys))
    assert sum(table.num_rows for table in found.values()) == entries.num_rows
    for table in found.values():
        first = table.column("key")[0]
        assert table.filter(pa.compute.equal(table.column("key"), first)).equals(
            entries.filter(pa.compute.equal(entries.column("key"), first))
        )
    processes = [set(table.column("process").to_pylist()) for _, table in cut_by_process(whole, 5)]
    assert sum(map(len, processes)) == len(set().union(*processes))


def test_a_table_without_rows_has_no_parts(whole: pa.Table) -> None:
    entries = CHECKER.explode(whole)
    assert list(cut_by_key(entries.schema.empty_table(), 7)) == []
    assert list(cut_by_key(entries.slice(0, 0), 7)) == []
    assert list(cut_by_process(whole.slice(0, 0), 7)) == []


def test_blocks_give_back_what_was_packed(whole: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumlog.chaos.checking.parts.table_cuts.ROWS_PER_BLOCK", 200)
    entries = CHECKER.explode(whole)
    ((_, cut),) = cut_by_key(entries, 1)
    assert unpack(pack(cut), entries.schema).equals(entries)
    assert unpack([], entries.schema).num_rows == 0


def test_what_no_part_sees_alone_is_an_error_before_any_check(
    whole: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_groups, "ROWS_PER_CHUNK", 50)
    monkeypatch.setattr(local, "_check", None)  # it is not reached
    file = tmp_path / "history.parquet"
    pq.write_table(pa.concat_tables([whole.slice(0, 50), whole.slice(100)]), file)
    groups = row_groups_of(file)
    with pytest.raises(HistoryError, match="operation"):
        check_in_parts(groups, CHECKER)


def test_a_row_group_that_was_changed_is_an_error(whole: pa.Table, tmp_path: Path) -> None:
    file = tmp_path / "history.parquet"
    write_operations(whole, file, whole.schema.metadata)
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 1
    file.write_bytes(data)
    groups = row_groups_of(file)
    with pytest.raises(HistoryError, match="not a history"):
        check_in_parts(groups, CHECKER)


def test_neither_row_groups_nor_chunks_grow_with_the_polls(
    whole: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MICRO_OF_A_GROUP", 240)
    monkeypatch.setattr(row_groups, "MICRO_PER_CHUNK", 600)
    file = tmp_path / "history.parquet"
    write_operations(whole, file, whole.schema.metadata)
    lengths = pc.list_value_length(whole.column("micro")).to_pylist()
    largest = max(lengths)
    groups = row_groups_of(file)
    tables = [[*row_groups.read_groups(file, chunk)] for chunk in groups.chunks]
    sizes = [[pc.sum(pc.list_value_length(one["micro"])).as_py() for one in few] for few in tables]
    assert pa.concat_tables(one for few in tables for one in few).equals(
        whole.replace_schema_metadata(None)
    )
    assert all(size <= max(240, largest) for few in sizes for size in few)
    assert all(sum(few) <= 600 or len(few) == 1 for few in sizes)
    assert max(len(few) for few in sizes) > 1
    same(check_in_parts(groups, CHECKER), check_history(whole))


@pytest.mark.parametrize("first", [0, 107])
def test_runs_of_any_length_in_any_order_give_the_verdict_of_the_whole(first: int) -> None:
    for seed in range(first, first + tries(8)):
        whole, rng = table_of(rows_of(wild(seed))), random.Random(seed)
        same(checked_in_runs(whole, CHECKER, rng), check_history(whole))


def test_transactions_may_be_cut_from_each_other() -> None:
    found = set()
    for seed in range(8):
        whole = table_of(rows_of(with_transactions(wild(seed), seed)))
        verdict = check_history(whole)
        same(checked_in_runs(whole, CHECKER, random.Random(seed)), verdict)
        found |= {result.name for result in verdict.results}
    assert "precommitted-read" in found


def test_the_context_of_contexts_is_that_of_their_runs() -> None:
    assert CHECKER.runs is not None
    for seed in range(tries(12)):
        whole = table_of(rows_of(wild(seed)))
        runs = [whole.slice(start, 7) for start in range(0, whole.num_rows, 7)]
        put_together = CHECKER.runs.context(pa.concat_tables(map(CHECKER.runs.context, runs)))
        assert put_together.equals(CHECKER.runs.context(whole).cast(put_together.schema))


def test_keys_of_all_sizes_are_spread_evenly() -> None:
    sizes = {f"key-{number}": 10 + number for number in range(12)}
    places = spread(sizes, 4)
    loads = [sum(sizes[key] for key in sizes if places[key] == part) for part in range(4)]
    assert max(loads) - min(loads) <= min(sizes.values())
    assert spread({}, 4) == {}


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
    monkeypatch.setattr(stitched_keys, name, lambda *_: forgotten)
    assert proved(key, [0, 6], facts) is not None


@pytest.mark.parametrize("sent_with_offset", [True, False])
def test_a_range_finds_a_record_that_was_altered(sent_with_offset: bool) -> None:
    def summed(row: Row, checksum: int, *, has_offset: bool = True) -> Any:
        return row[0], row[1] if has_offset else -1, row[2], "", "", checksum

    ops = ideal()
    for op in ops:
        if op.f == "send":
            op.outcome = "ok" if sent_with_offset else "info"
            op.messages = [summed(row, 5, has_offset=sent_with_offset) for row in op.messages]
        elif "poll" in op.f:
            op.messages = [summed(row, 6 if row[1] == 7 else 5) for row in op.messages]
    [key] = keys_of(ops)
    assert "altered-record" in {one.name for one in check(key, Facts()).results}
    for start in range(1, 12):
        assert proved(key, [0, start], Facts()) is None


@pytest.mark.parametrize("start", range(1, 12))
def test_wherever_a_range_begins_what_is_wrong_is_never_called_clean(start: int) -> None:
    for plant in FOUND_BY:
        ops = ideal()
        plant(ops)
        [key] = keys_of(ops)
        assert proved(key, [0, start], Facts(dense=True)) is None
