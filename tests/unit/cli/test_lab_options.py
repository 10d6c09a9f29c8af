"""Options of `chaos run` and `simulate nodes` arrive where the run is made, and are told again."""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from quorumlog.chaos.back_ends.local_processes import LocalProcesses
from quorumlog.chaos.faults.fault import StepFault
from quorumlog.chaos.faults.registry import STEP_FAULTS
from quorumlog.chaos.figures import OfferedLoad
from quorumlog.chaos.node_simulation.forked import RunFailed
from quorumlog.chaos.node_simulation.settings import NodesSettings
from quorumlog.chaos.run import Progress, RunSettings, RunSummary
from quorumlog.cli import chaos_commands, simulate_nodes
from quorumlog.cli.main import main
from quorumlog.cli.output import EXIT_FAILED, EXIT_UNKNOWN, EXIT_USAGE
from tests.support.chaos.hand_made_histories import History


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["quorumlog", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("words", "expected"),
    [((), "proxy"), (("--network", "netns"), "netns"), (("--network", "proxy"), "proxy")],
)
def test_the_network_of_a_chaos_run_is_the_one_that_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...], expected: str
) -> None:
    asked = list[RunSettings]()

    def refuse(settings: RunSettings, *_: object) -> Any:
        asked.append(settings)
        raise ValueError("not here")

    monkeypatch.setattr(chaos_commands, "_run_with_progress", refuse)
    status = call(monkeypatch, "chaos", "run", "--out", str(tmp_path / "run"), *words)
    assert status in {EXIT_UNKNOWN, EXIT_USAGE}
    assert [one.network for one in asked] == [expected]


def test_a_network_that_there_is_not_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "chaos", "run", "--network", "pigeons") == EXIT_USAGE
    said = capsys.readouterr().err
    assert "pigeons" in said
    assert "netns" in said


def simulated(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[NodesSettings]:
    """Return what `simulate nodes` would run."""
    asked = list[NodesSettings]()

    def fail_all(wanted: list[NodesSettings]) -> list[RunFailed]:
        asked.extend(wanted)
        return [RunFailed("not here") for _ in wanted]

    monkeypatch.setattr(simulate_nodes, "run_nodes", fail_all)
    assert call(monkeypatch, "simulate", "nodes", "--seed", "4", *words) == EXIT_FAILED
    return asked


def test_power_is_lost_at_any_time_only_if_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [careful] = simulated(monkeypatch)
    assert not careful.any_power_loss
    assert "--any-power-loss" not in "".join(capsys.readouterr())
    [careless] = simulated(monkeypatch, "--any-power-loss", "--config", "log.flush.acks=true")
    assert careless.any_power_loss
    assert careless.config == {"log.flush.acks": "true"}
    again = "quorumlog simulate nodes --seed 4 --duration 12s"
    assert f"{again} --any-power-loss --config log.flush.acks=true" in "".join(capsys.readouterr())


def test_power_loss_is_an_option_of_whole_nodes_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "simulate", "quorum", "--any-power-loss") == EXIT_USAGE
    assert "--any-power-loss" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--config", "--workload-option"])
def test_a_pair_of_another_form_is_a_usage_error(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("retention", "=5"):
        assert call(monkeypatch, "simulate", "nodes", option, text) == EXIT_USAGE
        assert f"{option} {text}: write it as NAME=VALUE" in capsys.readouterr().err


def test_help_and_errors_of_a_chaos_run_name_the_faults_that_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "chaos", "run", "--help") == 0
    shown = " ".join(capsys.readouterr().out.split())
    listed = shown.partition("Faults to inject: ")[2].partition("; or none")[0].split(", ")
    assert call(monkeypatch, "chaos", "run", "--fault", "kil") == EXIT_USAGE
    assert capsys.readouterr().err.partition("choose from ")[2].strip().split(", ") == listed
    possible = {name for name, kind in STEP_FAULTS.items() if takes(kind)}
    assert {*listed} == possible
    assert {"kill", "partition_one"} <= possible < {*STEP_FAULTS}


def takes(kind: type[StepFault]) -> bool:
    """Return whether a run has the operations of the fault; a tool may be missing here."""
    return "there is no operation" not in LocalProcesses.missing(kind)


def test_without_a_terminal_a_run_leaves_no_bars(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def go_through_phases(_: RunSettings, progress: Progress) -> Any:
        for fraction in (0.0, 0.5, 1.0):
            progress("warm up", fraction, f"{fraction} sends")
        progress("faults", 0.0, "")
        raise ValueError("not here")

    monkeypatch.setattr(chaos_commands, "run", go_through_phases)
    call(monkeypatch, "chaos", "run", "--out", str(tmp_path / "run"))
    assert capsys.readouterr().err == "quorumlog: not here\n"


@pytest.mark.parametrize(
    ("least", "status", "word"), [("0", 0, "Valid"), ("9.5", EXIT_UNKNOWN, "Unknown")]
)
def test_a_run_that_acknowledged_less_than_is_required_is_unknown(  # noqa: PLR0917 - fixtures
    least: str,
    status: int,
    word: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    load = OfferedLoad(offered=100, acknowledged=9, silent_s=2.0)

    def run(settings: RunSettings) -> RunSummary:
        settings.out.mkdir()
        history = History().sent(1).final((0, 1), end=1)
        pq.write_table(history.table(), settings.out / "history.parquet")
        return RunSummary(
            figures="1 send",
            sends_ok=1,
            faults=1,
            not_met=(),
            reads_complete=True,
            seconds=1.0,
            load=load,
            topic_settings={},
        )

    monkeypatch.setattr(chaos_commands, "_run_with_progress", run)
    words = ("--min-acknowledged", least)
    out = tmp_path / "text"
    assert call(monkeypatch, "chaos", "run", "--out", str(out), *words) == status
    assert f"\n{load.text()}\n" in capsys.readouterr().out
    assert f"<h1>{word}</h1>" in (out / "report.html").read_text()
    assert call(monkeypatch, "verify", str(out)) == 0  # the history itself is valid
    capsys.readouterr()
    out = tmp_path / "document"
    assert call(monkeypatch, "chaos", "run", "--out", str(out), *words, "--json") == status
    document = json.loads(capsys.readouterr().out)
    assert document["load"] == {"offered": 100, "acknowledged": 9, "silent_s": 2.0}
    assert document["valid"] == json.loads((out / "verdict.json").read_text())["valid"]
    assert bool(document["unknown_because"]) == (status == EXIT_UNKNOWN)
