"""`quorumlog chaos verify`: exit statuses, what a person sees, and what is refused."""

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from quorumlog.chaos.checking.spark import SparkUnavailable
from quorumlog.cli.verify import judge, verify
from tests.support.chaos.hand_made_histories import History

app = typer.Typer()
app.command()(verify)

VALID = History().sent(1).final((0, 1), end=1)
INVALID = History().sent(1, 2).final((1, 2), end=2)
UNKNOWN = History().sent(1).poll((0, 1))


def run(history: History, directory: Path, *options: str) -> tuple[int, str]:
    pq.write_table(history.table(), directory / "history.parquet")
    result = CliRunner().invoke(app, [str(directory), "--engine", "local", *options])
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
    assert CliRunner().invoke(app, options).exit_code == 64


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
    result = CliRunner().invoke(app, [str(file), "--engine", "local", "--json"])
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
    result = CliRunner().invoke(app, [str(tmp_path), "--json"])
    assert result.exit_code == 2
    assert json.loads(result.stdout)["unknown_because"] == ["no Java"]
