"""Which engine is chosen, which Spark master, and how often a history is read; exports."""

import io
import json
import socket
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from quorumlog.chaos.checkers import check_history
from quorumlog.chaos.checking.local import (
    BYTES_PER_MESSAGE,
    MESSAGES_OF_A_TABLE,
    is_one_table,
    machine_memory,
)
from quorumlog.chaos.checking.spark import SparkUnavailable
from quorumlog.chaos.checking.spark.context import in_short
from quorumlog.chaos.checking.spark.masters import (
    check_master,
    driver_host,
    is_here,
    is_one_process,
)
from quorumlog.chaos.history import (
    HistoryError,
    HistorySource,
    HistoryWriter,
    Message,
    read_history,
)
from quorumlog.chaos.history.edn import read_forms
from quorumlog.chaos.history.export import Format, exported
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


def test_messages_of_files_are_counted_or_guessed(parquet: Path, tmp_path: Path) -> None:
    micro = pq.read_table(parquet).column("micro").to_pylist()
    assert HistorySource(parquet).messages == sum(len(row) for row in micro)
    lines = tmp_path / "history.jsonl"
    lines.touch()
    assert HistorySource(lines).messages == 0
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
    assert is_one_table(MESSAGES_OF_A_TABLE, 1 << 40)
    assert not is_one_table(MESSAGES_OF_A_TABLE + 1, 1 << 40)


def test_a_too_large_history_is_cut(parquet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = verify_history(parquet, engine="local").as_json()
    monkeypatch.setattr("quorumlog.chaos.checking.local.machine_memory", lambda: 1)
    monkeypatch.setattr("quorumlog.chaos.checking.local.check_history", None)  # it is not called
    in_parts = verify_history(parquet, engine="local").as_json()
    assert {**in_parts, "seconds": 0} == {**whole, "seconds": 0}


def test_a_master_or_a_remote_path_asks_for_spark(parquet: Path) -> None:
    assert choose_engine(HistorySource(parquet), master="local[1]", cores=1) == "spark"
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


@pytest.mark.parametrize(
    "master", ["local", "local[2]", "local[*]", "local[2,4]", "yarn", "k8s://https://host:443"]
)
def test_these_name_a_master(master: str) -> None:
    check_master(master)


@pytest.mark.parametrize(
    "master", ["", "nobody", "local[x]", "spark://", "spark://host", "spark://host:0", "http://h:1"]
)
def test_these_name_none(master: str) -> None:
    with pytest.raises(ValueError, match="--master"):
        check_master(master)


def test_one_standalone_master_of_several_must_listen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # it does not listen
        absent, present = bound.getsockname()[1], listener.getsockname()[1]
        check_master(f"spark://127.0.0.1:{absent},127.0.0.1:{present}")
        with pytest.raises(SparkUnavailable, match=f"127.0.0.1:{absent}: Connection refused"):
            check_master(f"spark://127.0.0.1:{absent}")


def test_an_error_of_the_jvm_is_told_without_its_stack() -> None:
    text = "\nA: first\n\tat a\nCaused by: B: second\n\tat b\nCaused by: e: third\n\t.."
    assert in_short(text) == "A: first Caused by: e: third"
    assert in_short("loading\nException in thread 'main' A: no\n\tat b") == (
        "Exception in thread 'main' A: no"
    )
    python = "A: a worker:\nTraceback (most recent call last):\n  File b\nC: no module\n\n\tat d"
    assert in_short(python) == "A: a worker: C: no module"
    assert in_short("") == ""
    assert len(in_short("x" * 10_000)) <= 500


def test_tasks_of_a_cluster_of_spark_itself_are_in_other_processes() -> None:
    masters = ("local", "local[*]", "local-cluster[1,1,1024]", "yarn")
    assert [is_one_process(master) for master in masters] == [True, True, False, False]
    assert [is_here(master) for master in masters] == [True, True, True, False]


@pytest.mark.parametrize(
    ("master", "host"),
    [
        ("local[*]", "127.0.0.1"),
        ("spark://127.0.0.1:7077", "127.0.0.1"),
        ("spark://no.such.host.invalid:7077,localhost:7077", "127.0.0.1"),
        ("spark://no.such.host.invalid:7077", None),
        ("yarn", None),
        ("k8s://https://127.0.0.1:443", None),
    ],
)
def test_executors_reach_us_where_their_route_starts(master: str, host: str | None) -> None:
    assert driver_host(master) == host


@pytest.mark.parametrize(
    ("text", "remote", "local"),
    [
        ("runs/1", False, "runs/1"),
        ("/runs/a:/b", False, "/runs/a:/b"),
        ("file:///runs/a%20b", False, "/runs/a b"),
        ("file:/runs/1", False, "/runs/1"),
        ("hdfs://host/runs/1", True, None),
        ("s3a://bucket/h.parquet", True, None),
    ],
)
def test_a_path_with_a_scheme_is_for_spark(text: str, remote: bool, local: str | None) -> None:
    source = HistorySource(text)
    assert source.is_remote is remote
    if local is not None:
        assert source.local_path == Path(local)


ROOT = Path(__file__).parents[2] / "data/histories"
FILES = [
    ("porcupine/jepsen/etcd_000.log", "cas-register"),
    ("porcupine/kv/c01-bad.txt", "kv"),
    ("knossos/cas-register/bad/rethink-fail-minimal.edn", "cas-register"),
    ("elle/paper-example.edn", "list-append"),
    ("elle-cli/bank-negative-balances.json", "bank"),
    ("elle-cli/rw-register.json", "rw-register"),
]


@pytest.mark.parametrize("format_", ["edn", "jsonl"])
@pytest.mark.parametrize(("name", "model"), FILES)
def test_an_export_reads_as_it_was(name: str, model: str, format_: Format, tmp_path: Path) -> None:
    table = read_history(ROOT / name)
    file = tmp_path / f"history.{format_}"
    file.write_text("\n".join(exported(table, format_)))
    again = read_history(file)
    for column in ("process", "f", "type", "invoked", "completed", "micro"):
        assert again.column(column).to_pylist() == table.column(column).to_pylist()
    assert check_history(again, model).valid is check_history(table, model).valid


def test_a_kafka_history_is_written_as_jepsen_does(tmp_path: Path) -> None:
    table = History().sent(1).nemesis("kill", "2").final((0, 1), end=1).table()
    lines = [*exported(table, "edn")]
    assert [form.value["f"] for form in read_forms("\n".join(lines))] == [
        "send",
        "send",
        "kill",
        *["poll"] * (len(lines) - 3),
    ]
    assert ':value [[:send "x-0" [0 1]]]' in lines[1]
    assert ':process :nemesis, :type :info, :f :kill, :value "2"' in lines[2]
    assert '[[:poll {"x-0" [[0 1]]}]]' in lines[-1]
    file = tmp_path / "history.edn"
    file.write_text("\n".join(lines))
    assert check_history(read_history(file)).valid is True
