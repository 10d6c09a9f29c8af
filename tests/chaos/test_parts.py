"""However a history is cut into parts, its verdict is that of the whole, with every witness."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quorumlog.chaos.checkers import check_history
from quorumlog.chaos.checkers.kafka_log import CHECKER
from quorumlog.chaos.history import HistoryError
from quorumlog.chaos.history.pairing import table_of
from quorumlog.chaos.history.parquet import write_operations
from quorumlog.chaos.parts import local, sources
from quorumlog.chaos.parts.cutting import cut_by_key, cut_by_process, pack, unpack
from quorumlog.chaos.parts.local import check_in_parts
from quorumlog.chaos.parts.sources import find_row_groups
from tests.support.chaos.hand_made_histories import rows_of
from tests.support.chaos.joined_histories import apart, same
from tests.support.chaos.random_histories import PLANTS, good
from tests.support.chaos.wild_histories import wild
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
    whole: pa.Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cut: tuple[int, int, int],
) -> None:
    group_rows, chunk_rows, parts = cut
    file = tmp_path / "history.parquet"
    pq.write_table(whole, file, row_group_size=group_rows)
    monkeypatch.setattr(sources, "ROWS_PER_CHUNK", chunk_rows)
    groups = find_row_groups(file)
    assert groups is not None
    assert len(groups.chunks) > 5
    monkeypatch.setattr(local, "MICRO_PER_PART", groups.micro // parts)
    same(check_in_parts(groups, CHECKER), check_history(whole))


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
    monkeypatch.setattr("quorumlog.chaos.parts.cutting.ROWS_PER_BLOCK", 200)
    entries = CHECKER.explode(whole)
    ((_, cut),) = cut_by_key(entries, 1)
    assert unpack(pack(cut), entries.schema).equals(entries)
    assert unpack([], entries.schema).num_rows == 0


def test_what_no_part_sees_alone_is_an_error_before_any_check(
    whole: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "ROWS_PER_CHUNK", 50)
    monkeypatch.setattr(local, "_check", None)  # it is not reached
    file = tmp_path / "history.parquet"
    pq.write_table(pa.concat_tables([whole.slice(0, 50), whole.slice(100)]), file)
    groups = find_row_groups(file)
    assert groups is not None
    with pytest.raises(HistoryError, match="operation"):
        check_in_parts(groups, CHECKER)


def test_a_row_group_that_was_changed_is_an_error(whole: pa.Table, tmp_path: Path) -> None:
    file = tmp_path / "history.parquet"
    write_operations(whole, file, whole.schema.metadata)
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 1
    file.write_bytes(data)
    groups = find_row_groups(file)
    assert groups is not None
    with pytest.raises(HistoryError, match="not a history"):
        check_in_parts(groups, CHECKER)
