"""Which engine is chosen: this process while a history is not large, Spark beyond.

Either reads a history once.
"""

import io
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from quorumlog.chaos.checking.local import (
    BYTES_PER_MESSAGE,
    MESSAGES_OF_A_TABLE,
    is_one_table,
    machine_memory,
)
from quorumlog.chaos.history import HistoryError, HistorySource, HistoryWriter, Message
from quorumlog.chaos.history.files import BYTES_IN_A_FILE
from quorumlog.chaos.history.parquet import write_operations
from quorumlog.chaos.history.schema import MESSAGES
from quorumlog.chaos.report import write_report
from quorumlog.chaos.verify import (
    CORES_FOR_SPARK,
    MESSAGES_FOR_SPARK,
    choose_engine,
    verify_history,
)
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
    assert HistorySource(parquet).messages == sum(len(row) for row in micro)
    lines = tmp_path / "history.jsonl"
    lines.touch()
    assert HistorySource(lines).messages == 0


def test_the_messages_of_another_file_are_guessed_from_its_size(parquet: Path) -> None:
    pq.write_table(pq.read_table(parquet).replace_schema_metadata({}), parquet)
    assert HistorySource(parquet).messages == parquet.stat().st_size // BYTES_IN_A_FILE


def says(file: Path, messages: int) -> Path:
    table = pq.read_table(file)
    told = {**(table.schema.metadata or {}), MESSAGES: str(messages).encode()}
    pq.write_table(table.replace_schema_metadata(told), file)
    return file


def test_spark_takes_a_large_history_if_there_are_cores_to_share_it(parquet: Path) -> None:
    large = says(parquet, MESSAGES_FOR_SPARK)
    assert choose_engine(HistorySource(large), master=None, cores=CORES_FOR_SPARK) == "spark"
    assert choose_engine(HistorySource(large), master=None, cores=CORES_FOR_SPARK - 1) == "local"
    small = says(parquet, MESSAGES_FOR_SPARK - 1)
    assert choose_engine(HistorySource(small), master=None, cores=64) == "local"


def test_without_spark_any_history_is_local(parquet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumlog.chaos.verify.find_spec", lambda _: None)
    large = says(parquet, MESSAGES_FOR_SPARK)
    assert choose_engine(HistorySource(large), master=None, cores=64) == "local"


def test_a_table_is_held_whole_in_a_quarter_of_the_memory(parquet: Path) -> None:
    messages = HistorySource(parquet).messages
    needed_bytes = messages * BYTES_PER_MESSAGE
    assert is_one_table(messages, 4 * needed_bytes)
    assert not is_one_table(messages, 4 * needed_bytes - 1)


def test_a_table_is_not_too_large() -> None:
    assert is_one_table(MESSAGES_OF_A_TABLE, 1 << 40)
    assert not is_one_table(MESSAGES_OF_A_TABLE + 1, 1 << 40)


def test_a_too_large_history_is_cut(parquet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = verify_history(parquet, engine="local").as_json()
    monkeypatch.setattr("quorumlog.chaos.checking.local.machine_memory", lambda: 1)
    monkeypatch.setattr("quorumlog.chaos.checking.local.check_history", None)  # it is not called
    in_parts = verify_history(parquet, engine="local").as_json()
    assert {**in_parts, "seconds": 0} == {**whole, "seconds": 0}


def test_a_master_asks_for_spark(parquet: Path) -> None:
    assert choose_engine(HistorySource(parquet), master="local[1]", cores=1) == "spark"


def test_a_path_that_only_spark_reads_asks_for_spark() -> None:
    assert choose_engine(HistorySource("hdfs://host/run"), master=None, cores=1) == "spark"


def test_a_program_that_spark_submit_started_asks_for_spark(
    parquet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert choose_engine(HistorySource(parquet), master=None, cores=1) == "spark"


def test_what_is_no_history_is_told_before_an_engine_is_chosen(tmp_path: Path) -> None:
    (tmp_path / "history.parquet").write_bytes(b"not Parquet")
    with pytest.raises(HistoryError, match="not a history"):
        choose_engine(HistorySource(tmp_path / "history.parquet"), master=None, cores=1)


@pytest.mark.parametrize(("text", "is_limit"), [("1000000\n", True), ("max\n", False)])
def test_a_container_has_its_cgroups_memory(tmp_path: Path, text: str, is_limit: bool) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(text)
    assert (machine_memory(limit) == 1_000_000) is is_limit
    assert machine_memory(tmp_path / "absent") > 1_000_000


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the opens of files by name, and the bytes read of them: `NAME bytes`."""
    counts, open_path, open_parquet = Counter[str](), Path.open, pq.ParquetFile.__init__

    class Counting(io.FileIO):
        def readinto(self, buffer: Any) -> int | None:
            read = super().readinto(buffer)
            counts[f"{Path(str(self.name)).name} bytes"] += read or 0
            return read

        def readall(self) -> bytes:
            text = super().readall()
            counts[f"{Path(str(self.name)).name} bytes"] += len(text or b"")
            return text or b""

    def open_counted(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if mode not in ("r", "rb"):
            return open_path(path, mode, *args, **kwargs)
        counts[path.name] += 1
        file = io.BufferedReader(Counting(str(path)))
        return file if mode == "rb" else io.TextIOWrapper(file, encoding="utf-8-sig")

    def open_parquet_counted(self: Any, source: Any, *args: Any, **kwargs: Any) -> None:
        counts["footer" if kwargs.get("metadata") is None else "columns"] += 1
        open_parquet(self, source, *args, **kwargs)

    monkeypatch.setattr(Path, "open", open_counted)
    monkeypatch.setattr(pq.ParquetFile, "__init__", open_parquet_counted)
    return counts


def write_run(directory: Path) -> int:
    """Write a run without meta.json; return the size of its lines."""
    with HistoryWriter(directory) as writer:
        for value in range(3_000):
            writer.append(0, "invoke", "send", [Message("t-0", -1, value)])
            writer.append(0, "ok", "send", [Message("t-0", value, value)])
    (directory / "meta.json").unlink()
    return (directory / "history.jsonl").stat().st_size


def test_lines_are_hashed_once_and_parsed_once(tmp_path: Path, opened: Counter[str]) -> None:
    size = write_run(tmp_path)
    (tmp_path / "history.parquet").unlink()
    opened.clear()
    source = HistorySource(tmp_path)
    assert verify_history(source, engine="local").valid == "unknown"  # no final reads
    # The beginning for the format, twice; the hash, after both ends; the operations.
    assert opened["history.jsonl"] == 4
    assert 2 * size <= opened["history.jsonl bytes"] < 2.5 * size
    write_report(source, verify_history(source, engine="local"), tmp_path / "report.html")
    assert opened["history.jsonl"] == 4  # neither a second check nor a report reads it again


def test_footer_and_columns_of_parquet_are_read_once(tmp_path: Path, opened: Counter[str]) -> None:
    size = write_run(tmp_path)
    opened.clear()
    verify_history(tmp_path, engine="local")
    assert (opened["footer"], opened["columns"]) == (1, 1)
    assert opened["history.jsonl"] == 1  # its digest: both files are of one run
    assert opened["history.jsonl bytes"] == size
    opened.clear()
    verify_history(tmp_path / "history.parquet", engine="local")
    assert (opened["footer"], opened["columns"], opened["history.jsonl"]) == (1, 1, 0)


def test_a_file_of_another_tool_is_parsed_once(tmp_path: Path, opened: Counter[str]) -> None:
    file = tmp_path / "history.json"
    rows = [
        {"process": 0, "type": type_, "f": "write", "value": value, "index": 2 * value + ended}
        for value in range(5_000)
        for ended, type_ in enumerate(("invoke", "ok"))
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    size = file.stat().st_size
    opened.clear()
    verify_history(file, engine="local")  # the model is guessed from the operations
    assert opened["history.json"] == 3  # for the format, twice, and all of it
    assert size <= opened["history.json bytes"] < 1.5 * size
