"""Which engine is chosen: this process while a history is not large, Spark beyond."""

import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from quorumlog.chaos.engines import (
    BYTES_IN_A_FILE,
    BYTES_PER_MESSAGE,
    CORES_FOR_SPARK,
    MESSAGES_FOR_SPARK,
    MESSAGES_OF_A_TABLE,
    choose_engine,
    is_one_table,
    machine_memory,
    messages_in,
)
from quorumlog.chaos.history import HistoryError
from quorumlog.chaos.history.parquet import write_operations
from quorumlog.chaos.history.schema import MESSAGES
from quorumlog.chaos.verify import verify_history
from tests.support.chaos.hand_made_histories import History


@pytest.fixture(autouse=True)
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of Spark, in the same process, may have one."""
    monkeypatch.delitem(sys.modules, "pyspark.sql", raising=False)


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    file = tmp_path / "history.parquet"
    table = History().sent(1, 2, 3).final((0, 1), (1, 2), (2, 3)).table()
    write_operations(table, file, table.schema.metadata)
    return file


def test_a_file_of_ours_says_how_many_messages_it_holds(parquet: Path, tmp_path: Path) -> None:
    micro = pq.read_table(parquet).column("micro").to_pylist()
    assert messages_in(parquet) == sum(len(row) for row in micro)
    assert messages_in(tmp_path / "history.jsonl") == 0


def test_the_messages_of_another_file_are_guessed_from_its_size(parquet: Path) -> None:
    pq.write_table(pq.read_table(parquet).replace_schema_metadata({}), parquet)
    assert messages_in(parquet) == parquet.stat().st_size // BYTES_IN_A_FILE


def says(file: Path, messages: int) -> Path:
    table = pq.read_table(file)
    told = {**(table.schema.metadata or {}), MESSAGES: str(messages).encode()}
    pq.write_table(table.replace_schema_metadata(told), file)
    return file


def test_spark_takes_a_large_history_if_there_are_cores_to_share_it(parquet: Path) -> None:
    large = says(parquet, MESSAGES_FOR_SPARK)
    assert choose_engine(large, master=None, cores=CORES_FOR_SPARK) == "spark"
    assert choose_engine(large, master=None, cores=CORES_FOR_SPARK - 1) == "local"
    small = says(parquet, MESSAGES_FOR_SPARK - 1)
    assert choose_engine(small, master=None, cores=64) == "local"


def test_without_spark_this_process_checks_any_history(
    parquet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumlog.chaos.engines.find_spec", lambda _: None)
    large = says(parquet, MESSAGES_FOR_SPARK)
    assert choose_engine(large, master=None, cores=64) == "local"


def test_a_table_is_held_whole_in_a_quarter_of_the_memory(parquet: Path) -> None:
    needed_bytes = messages_in(parquet) * BYTES_PER_MESSAGE
    assert is_one_table(parquet, 4 * needed_bytes)
    assert not is_one_table(parquet, 4 * needed_bytes - 1)


def test_a_table_is_not_too_large(parquet: Path) -> None:
    assert is_one_table(says(parquet, MESSAGES_OF_A_TABLE), 1 << 40)
    assert not is_one_table(says(parquet, MESSAGES_OF_A_TABLE + 1), 1 << 40)


def test_a_history_that_is_too_large_is_checked_in_parts(
    parquet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = verify_history(parquet, engine="local").as_json()
    monkeypatch.setattr("quorumlog.chaos.verify.machine_memory", lambda: 1)
    monkeypatch.setattr("quorumlog.chaos.verify.check_history", None)  # it is not called
    in_parts = verify_history(parquet, engine="local").as_json()
    assert {**in_parts, "seconds": 0} == {**whole, "seconds": 0}


def test_a_master_asks_for_spark(parquet: Path) -> None:
    assert choose_engine(parquet, master="local[1]", cores=1) == "spark"


def test_a_path_that_only_spark_reads_asks_for_spark() -> None:
    assert choose_engine("hdfs://host/run", master=None, cores=1) == "spark"


def test_a_program_that_spark_submit_started_asks_for_spark(
    parquet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert choose_engine(parquet, master=None, cores=1) == "spark"


def test_what_is_no_history_is_told_before_an_engine_is_chosen(tmp_path: Path) -> None:
    (tmp_path / "history.parquet").write_bytes(b"not Parquet")
    with pytest.raises(HistoryError, match="not a history"):
        choose_engine(tmp_path / "history.parquet", master=None, cores=1)


@pytest.mark.parametrize(("text", "is_limit"), [("1000000\n", True), ("max\n", False)])
def test_a_container_has_the_memory_that_its_cgroup_allows(
    tmp_path: Path, text: str, is_limit: bool
) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(text)
    assert (machine_memory(limit) == 1_000_000) is is_limit
    assert machine_memory(tmp_path / "absent") > 1_000_000
