"""Commands of the lab: what is refused before anything starts, and verify's statuses."""

import importlib.util
import json
import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from quorumlog.chaos.checking.spark import SparkUnavailable
from quorumlog.chaos.drawn_schedule import draw_schedule
from quorumlog.chaos.mutants import FOR_PROCESSES, mutant_module
from quorumlog.chaos.mutants.registry import EVERY, MUTANTS
from quorumlog.chaos.run.run_settings import RunSettings, meta_at_start
from quorumlog.cli.chaos_commands import app
from quorumlog.cli.verify import check_engine, judge, verify
from quorumlog.cluster.processes import Program
from tests.support.chaos.hand_made_histories import History


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rate", "0"], "rate 0: it must be above 0"),
        (["--rate", "nan"], "rate nan"),
        (["--workload-option", "producers=0"], "producers 0: it must be above 0"),
        (["--workload-option", "producers=x"], "producers x: it must be of type int"),
        (["--workload-option", "speed=1"], "append_read has no option 'speed'; choose from rate"),
        (["--workload-option", "rate"], "NAME=VALUE"),
        (["--engine", "flink"], "'flink' is not one of"),
        (["--engine", "local", "--master", "local[2]"], "--master applies to Spark only"),
        (["--spark-conf", "spark.x"], "--spark-conf spark.x: write it as NAME=VALUE"),
        (["--spark-conf", "x=1"], "--spark-conf x: a setting of Spark begins with spark."),
        (["--engine", "local", "--spark-conf", "spark.x=1"], "--spark-conf applies to Spark only"),
        (["--master", "flink://host"], "--master flink://host"),
        (["--driver", "java"], "no driver is called 'java'"),
        (["--workload", "bank"], "no workload is called 'bank'"),
        (["--fault", "kil"], "no fault is called 'kil' - did you mean kill?"),
        (["--fault", "loss"], "a cluster of processes cannot do it"),
        (["--mutant", "none"], "no mutant is called 'none'"),
        (["--mutant", "high-watermark", "--node-module", "mine"], "give one"),
        (["--duration", "0s"], "it must be positive"),
        (["--duration", "2s"], "no room for a fault"),
        (["--nodes", "0"], "--nodes"),
        (["--record-responses", "--network", "netns"], "--record-responses needs forwarders"),
        (
            ["--record-responses", "--bootstrap", "localhost:1", "--fault", "none"],
            "--record-responses needs forwarders",
        ),
        (["--partitions", "0"], "--partitions"),
    ],
)
def test_a_usage_error_is_told_at_once(options: list[str], said: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["run", "--out", str(tmp_path / "run"), *options])
    # The framework itself ends with 2 here; `main` makes it 64.
    assert result.exit_code in {2, 64}
    assert said in result.output
    assert not (tmp_path / "run").exists()


def test_a_spark_that_is_not_there_is_told_before_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        return None if name == "pyspark" else importlib.util.find_spec(name)

    monkeypatch.setattr("quorumlog.cli.verify.find_spec", find_spec)
    with pytest.raises(typer.Exit) as ended:
        check_engine("spark", None)
    assert ended.value.exit_code == 2
    assert "--engine spark needs PySpark: pip install '" in capsys.readouterr().err
    check_engine("auto", None)
    check_engine("local", None)


def test_a_mistyped_setting_costs_nothing_of_an_earlier_run(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text("an earlier run\n")
    options = ["run", "--out", str(tmp_path), "--fault", "none", "--config", "log.rol.ms=5"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 64
    assert "did you mean log.roll.ms?" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["history.jsonl"]


@pytest.mark.parametrize(
    "changes", [{"options": {"rate": -1.0}}, {"duration_s": 0.0}, {"faults": ("x",)}]
)
def test_settings_that_no_run_can_have_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"above 0|no fault"):
        RunSettings(out=Path("run"), **changes)  # type: ignore[arg-type]  # wrong on purpose


def test_every_mutant_is_listed_and_those_for_processes_alone_come_first() -> None:
    listed = json.loads(CliRunner().invoke(app, ["list", "--json"]).stdout)["mutants"]
    assert [*listed] == [*EVERY] == [*FOR_PROCESSES, *MUTANTS]


@pytest.mark.parametrize("name", ["low-ends", "cuts_too_much", "cuts-too-much"])
def test_every_mutant_runs_as_a_process_by_one_program(name: str) -> None:
    program = Program(module=mutant_module(name))
    *_, module, argument = program.command
    assert importlib.util.find_spec(f"{module}.__main__") is not None
    assert module == "quorumlog.chaos.mutants"
    assert argument.replace("-", "_") == name.replace("-", "_")
    assert argument in EVERY


def test_the_list_says_of_each_fault_what_it_needs_and_what_is_possible_here() -> None:
    faults = json.loads(CliRunner().invoke(app, ["list", "--json"]).stdout)["faults"]
    known = {fault["name"]: fault for fault in faults}
    network = (
        "partition-one partition-halves partition-ring partition-one-way isolate-role delay "
        "slow-link reset refuse drop-request reply-lost"
    )
    for name in network.split():
        assert known[name]["available"], name
        assert "proxy" in known[name]["backends"]
        assert known[name]["why_not"] == ""
    assert "client" in known["isolate-role"]["roles"]
    assert known["kill"]["backends"] == ["processes", "commands", "simulation"]
    assert not known["power-loss"]["available"]
    assert "lose_power" in known["power-loss"]["why_not"]


def test_what_explains_a_run_is_written_before_it() -> None:
    settings = RunSettings(out=Path("run"), command=("quorumlog", "chaos", "run", "--out", "a b"))
    meta = meta_at_start(settings, draw_schedule(5, faults=("kill",), duration_ms=20_000))
    assert meta["command"] == "quorumlog chaos run --out 'a b'"
    assert {"started_at", "quorumlog", "python", "platform", "driver_version"} <= set(meta)
    assert (meta["faults"], meta["schedule"]["given"]) == (["kill"], False)
    given = draw_schedule(3, faults=("pause",), duration_ms=20_000)
    meta = meta_at_start(RunSettings(out=Path("run"), schedule=given), given)
    assert meta["faults"] == ["pause"]  # and not the default of --fault
    assert meta["schedule"] == {"given": True, "seed": 3, "actions": len(given.actions)}
    settings = RunSettings(out=Path("run"), driver="confluent")
    meta = meta_at_start(settings, draw_schedule(3, faults=("kill",), duration_ms=20_000))
    assert meta["driver_version"] == f"confluent-kafka {version('confluent-kafka')}"
    config = {"sasl.jaas.config": "secret", "log.segment.bytes": "7"}
    settings = RunSettings(out=Path("run"), config=config)
    meta = meta_at_start(settings, draw_schedule(3, faults=("kill",), duration_ms=20_000))
    assert meta["config"] == {"sasl.jaas.config": "[hidden]", "log.segment.bytes": "7"}


verifying = typer.Typer()
verifying.command()(verify)

VALID = History().sent(1).final((0, 1), end=1)
INVALID = History().sent(1, 2).final((1, 2), end=2)
UNKNOWN = History().sent(1).poll((0, 1))


def run(history: History, directory: Path, *options: str) -> tuple[int, str]:
    pq.write_table(history.table(), directory / "history.parquet")
    result = CliRunner().invoke(verifying, [str(directory), "--engine", "local", *options])
    return result.exit_code, result.stdout


@pytest.mark.parametrize(
    ("history", "status", "word", "valid"),
    [(VALID, 0, "VALID", True), (INVALID, 1, "INVALID", False), (UNKNOWN, 2, "UNKNOWN", "unknown")],
)
def test_the_exit_status_is_the_verdict(
    history: History, status: int, word: str, valid: object, tmp_path: Path
) -> None:
    code, text = run(history, tmp_path)
    assert (code, text.split(":")[0]) == (status, word)
    code, text = run(history, tmp_path, "--json")
    document = json.loads(text)
    assert (code, document["valid"]) == (status, valid)
    assert [*document][:5] == ["valid", "operations", "engine", "seconds", "anomalies"]


def test_a_person_sees_the_first_witness(tmp_path: Path) -> None:
    _, text = run(INVALID, tmp_path)
    assert "lost-write: 1 (invalid)" in text
    assert "lost send: send ok value 1 offset 0 by process 0" in text


@pytest.mark.parametrize("options", [["absent"], [".", "--engine", "local", "--master", "yarn"]])
def test_what_cannot_be_asked_is_a_usage_error(options: list[str]) -> None:
    assert CliRunner().invoke(verifying, options).exit_code == 64


def test_a_small_history_is_checked_in_process_unless_spark_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tests of Spark, in the same process, may have a session.
    monkeypatch.delitem(sys.modules, "pyspark.sql", raising=False)
    _, text = run(VALID, tmp_path, "--engine", "auto", "--json")
    assert json.loads(text)["engine"] == "local"


@pytest.mark.parametrize("text", ["", "{}\n", "nonsense\n", "[]"])
def test_what_cannot_be_read_is_unknown_and_never_valid(text: str, tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text(text)
    result = CliRunner().invoke(verifying, [str(file), "--engine", "local", "--json"])
    document = json.loads(result.stdout)
    assert (result.exit_code, document["valid"]) == (2, "unknown")
    assert document["unknown_because"]


def test_a_run_keeps_its_verdict_and_its_report(tmp_path: Path) -> None:
    pq.write_table(INVALID.table(), tmp_path / "history.parquet")
    verdict, report = judge(tmp_path, engine="local", master=None)
    assert report == tmp_path / "report.html"
    assert "Invalid" in report.read_text()
    assert json.loads((tmp_path / "verdict.json").read_text()) == verdict.as_json()


def test_without_spark_there_is_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object, **__: object) -> None:
        raise SparkUnavailable("no Java")

    monkeypatch.setattr("quorumlog.chaos.verify.verify_history", absent)
    pq.write_table(VALID.table(), tmp_path / "history.parquet")
    result = CliRunner().invoke(verifying, [str(tmp_path), "--json"])
    assert result.exit_code == 2
    assert json.loads(result.stdout)["unknown_because"] == ["no Java"]
