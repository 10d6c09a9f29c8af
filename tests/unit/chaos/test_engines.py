"""Which engine is chosen: this process while a history fits into memory, Spark beyond."""

import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from quorumlog.chaos.engines import (
    BYTES_PER_BYTE_OF_JSON,
    BYTES_PER_MESSAGE,
    choose_engine,
    machine_memory,
    memory_needed,
)
from quorumlog.chaos.history import HistoryError
from tests.support.chaos.hand_made_histories import History

MESSAGES = 3 + 3  # of three sends, and one final poll


@pytest.fixture(autouse=True)
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of Spark, in the same process, may have one."""
    monkeypatch.delitem(sys.modules, "pyspark.sql", raising=False)


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    file = tmp_path / "history.parquet"
    table = History().sent(1, 2, 3).final((0, 1), (1, 2), (2, 3)).table()
    pq.write_table(table, file, row_group_size=2)
    return file


def test_a_parquet_file_needs_memory_for_each_of_its_messages(parquet: Path) -> None:
    table = pq.read_table(parquet)
    messages = sum(len(row) for row in table.column("micro").to_pylist())
    empty = sum(not row for row in table.column("micro").to_pylist())
    # An empty list takes a place in the column, too.
    assert memory_needed(parquet) == (messages + empty) * BYTES_PER_MESSAGE
    assert messages >= MESSAGES


def test_json_lines_need_memory_by_their_size(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_bytes(b" " * 1000)
    assert memory_needed(file) == 1000 * BYTES_PER_BYTE_OF_JSON


def test_what_fits_into_half_of_the_memory_is_checked_here(parquet: Path) -> None:
    needed_bytes = memory_needed(parquet)
    assert choose_engine(parquet, master=None, memory_bytes=2 * needed_bytes) == "local"
    assert choose_engine(parquet, master=None, memory_bytes=2 * needed_bytes - 1) == "spark"


def test_a_master_asks_for_spark(parquet: Path) -> None:
    assert choose_engine(parquet, master="local[1]", memory_bytes=1 << 40) == "spark"


def test_a_program_that_spark_submit_started_asks_for_spark(
    parquet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert choose_engine(parquet, master=None, memory_bytes=1 << 40) == "spark"


def test_what_is_no_history_is_told_before_an_engine_is_chosen(tmp_path: Path) -> None:
    (tmp_path / "history.parquet").write_bytes(b"not Parquet")
    with pytest.raises(HistoryError, match="not a history"):
        choose_engine(tmp_path / "history.parquet", master=None, memory_bytes=1 << 40)


@pytest.mark.parametrize(("text", "is_limit"), [("1000000\n", True), ("max\n", False)])
def test_a_container_has_the_memory_that_its_cgroup_allows(
    tmp_path: Path, text: str, is_limit: bool
) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(text)
    assert (machine_memory(limit) == 1_000_000) is is_limit
    assert machine_memory(tmp_path / "absent") > 1_000_000
