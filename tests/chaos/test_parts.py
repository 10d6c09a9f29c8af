"""However a history is cut, into parts or anywhere, its verdict is that of the whole."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from quorumlog.chaos.checkers import check_history
from quorumlog.chaos.checkers.checker import Checker, Facts
from quorumlog.chaos.checkers.kafka_log import CHECKER
from quorumlog.chaos.checkers.verdict import Partial
from quorumlog.chaos.checking import local
from quorumlog.chaos.checking.local import check_in_parts
from quorumlog.chaos.checking.parts import plan, row_groups
from quorumlog.chaos.checking.parts.cutting import (
    Cuts,
    cut_by_key,
    cut_by_process,
    pack,
    spread,
    unpack,
)
from quorumlog.chaos.checking.parts.row_groups import find_row_groups
from quorumlog.chaos.history import HistoryError, HistorySource, parquet
from quorumlog.chaos.history.pairing import table_of
from quorumlog.chaos.history.parquet import write_operations
from tests.support.chaos.hand_made_histories import rows_of
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


@pytest.mark.parametrize("cut", [(60, 180, 5), (400, 400, 1)])
def test_the_verdict_is_that_of_the_whole(
    whole: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: tuple[int, int, int]
) -> None:
    group_rows, chunk_rows, parts = cut
    file = tmp_path / "history.parquet"
    pq.write_table(whole, file, row_group_size=group_rows)
    monkeypatch.setattr(row_groups, "ROWS_PER_CHUNK", chunk_rows)
    groups = find_row_groups(HistorySource(file))
    assert groups is not None
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
    groups = find_row_groups(HistorySource(file))
    assert groups is not None
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
    monkeypatch.setattr("quorumlog.chaos.checking.parts.cutting.ROWS_PER_BLOCK", 200)
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
    groups = find_row_groups(HistorySource(file))
    assert groups is not None
    with pytest.raises(HistoryError, match="operation"):
        check_in_parts(groups, CHECKER)


def test_a_row_group_that_was_changed_is_an_error(whole: pa.Table, tmp_path: Path) -> None:
    file = tmp_path / "history.parquet"
    write_operations(whole, file, whole.schema.metadata)
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 1
    file.write_bytes(data)
    groups = find_row_groups(HistorySource(file))
    assert groups is not None
    with pytest.raises(HistoryError, match="not a history"):
        check_in_parts(groups, CHECKER)


def test_neither_row_groups_nor_chunks_grow_with_the_polls(
    whole: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MICRO_OF_A_GROUP", 60)
    monkeypatch.setattr(row_groups, "MICRO_PER_CHUNK", 150)
    file = tmp_path / "history.parquet"
    write_operations(whole, file, whole.schema.metadata)
    lengths = pc.list_value_length(whole.column("micro")).to_pylist()
    largest = max(lengths)
    groups = find_row_groups(HistorySource(file))
    assert groups is not None
    tables = [[*row_groups.read_groups(file, chunk)] for chunk in groups.chunks]
    sizes = [[pc.sum(pc.list_value_length(one["micro"])).as_py() for one in few] for few in tables]
    assert pa.concat_tables(one for few in tables for one in few).equals(
        whole.replace_schema_metadata(None)
    )
    assert all(size <= max(60, largest) for few in sizes for size in few)
    assert all(sum(few) <= 150 or len(few) == 1 for few in sizes)
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
