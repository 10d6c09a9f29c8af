"""Options and schedules of `chaos run` and `simulate nodes`: where they arrive, what is told."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from quorumlog.chaos.back_ends.local_processes import LocalProcesses
from quorumlog.chaos.faults.fault import StepFault
from quorumlog.chaos.faults.registry import STEP_FAULTS
from quorumlog.chaos.node_simulation.forked import RunFailed
from quorumlog.chaos.node_simulation.settings import NodesSettings
from quorumlog.chaos.run.figures import OfferedLoad
from quorumlog.chaos.run.run_settings import Progress, RunSettings, RunSummary
from quorumlog.chaos.schedule import Schedule
from quorumlog.chaos.workloads.registry import WORKLOADS
from quorumlog.cli import chaos_commands, simulate_nodes
from quorumlog.cli.chaos_commands import _duration_s, _fault_names, _workload
from quorumlog.cli.output import EXIT_FAILED, EXIT_UNKNOWN, EXIT_USAGE
from tests.support.chaos.hand_made_histories import History
from tests.support.cli.in_process import CommandLine


@pytest.mark.parametrize(
    ("words", "expected"),
    [((), "proxy"), (("--network", "netns"), "netns"), (("--network", "proxy"), "proxy")],
)
def test_the_network_of_a_chaos_run_is_the_one_that_is_named(
    monkeypatch: pytest.MonkeyPatch,
    command: CommandLine,
    tmp_path: Path,
    words: tuple[str, ...],
    expected: str,
) -> None:
    asked = list[RunSettings]()

    def refuse(settings: RunSettings, *_: object) -> Any:
        asked.append(settings)
        raise ValueError("not here")

    monkeypatch.setattr(chaos_commands, "_run_with_progress", refuse)
    command("chaos", "run", "--out", tmp_path / "run", *words, status=EXIT_USAGE)
    assert [one.network for one in asked] == [expected]


def simulated(
    monkeypatch: pytest.MonkeyPatch, command: CommandLine, *words: str
) -> list[NodesSettings]:
    """Return what `simulate nodes` would run."""
    asked = list[NodesSettings]()

    def fail_all(wanted: list[NodesSettings]) -> list[RunFailed]:
        asked.extend(wanted)
        return [RunFailed("not here") for _ in wanted]

    monkeypatch.setattr(simulate_nodes, "run_nodes", fail_all)
    command("simulate", "nodes", "--seed", "4", *words, status=EXIT_FAILED)
    return asked


def test_power_is_lost_at_any_time_only_if_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, command: CommandLine
) -> None:
    [careful] = simulated(monkeypatch, command)
    assert not careful.any_power_loss
    assert "--any-power-loss" not in command.out + command.said
    words = ("--any-power-loss", "--config", "log.flush.acks=true")
    [careless] = simulated(monkeypatch, command, *words)
    assert careless.any_power_loss
    assert careless.config == {"log.flush.acks": "true"}
    again = "quorumlog simulate nodes --seed 4 --duration 12s"
    text = f"{again} --any-power-loss --config log.flush.acks=true"
    assert text in command.out + command.said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("chaos run --network pigeons", "pigeons.*netns"),
        ("simulate quorum --any-power-loss", "--any-power-loss"),  # of whole nodes alone
        *(
            (f"simulate nodes {option} {text}", f"{option} {text}: write it as NAME=VALUE")
            for option in ("--config", "--workload-option")
            for text in ("retention", "=5")
        ),
    ],
)
def test_a_wrong_option_is_a_usage_error(words: str, said: str, command: CommandLine) -> None:
    assert re.search(said, command(*words.split(), status=EXIT_USAGE), re.DOTALL)


def test_help_and_errors_of_a_chaos_run_name_the_faults_that_it_takes(command: CommandLine) -> None:
    shown = " ".join(command("chaos", "run", "--help").split())
    listed = shown.partition("Faults to inject: ")[2].partition("; or none")[0].split(", ")
    said = command("chaos", "run", "--fault", "kil", status=EXIT_USAGE)
    assert said.partition("choose from ")[2].strip().split(", ") == listed
    possible = {name for name, kind in STEP_FAULTS.items() if takes(kind)}
    assert {*listed} == possible
    assert {"kill", "partition_one"} <= possible < {*STEP_FAULTS}


def takes(kind: type[StepFault]) -> bool:
    """Return whether a run has the operations of the fault; a tool may be missing here."""
    return "there is no operation" not in LocalProcesses.missing(kind)


def test_without_a_terminal_a_run_leaves_no_bars(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: CommandLine
) -> None:
    def go_through_phases(_: RunSettings, progress: Progress) -> Any:
        for fraction in (0.0, 0.5, 1.0):
            progress("warm up", fraction, f"{fraction} sends")
        progress("faults", 0.0, "")
        raise ValueError("not here")

    monkeypatch.setattr(chaos_commands, "run", go_through_phases)
    said = command("chaos", "run", "--out", tmp_path / "run", status=EXIT_USAGE)
    assert said == "quorumlog: not here\n"


@pytest.mark.parametrize(
    ("least", "status", "word"), [("0", 0, "Valid"), ("9.5", EXIT_UNKNOWN, "Unknown")]
)
def test_a_run_that_acknowledged_less_than_is_required_is_unknown(  # noqa: PLR0917 - fixtures
    least: str,
    status: int,
    word: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: CommandLine,
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
            in_faults=(120, 60),
            topic_settings={},
        )

    monkeypatch.setattr(chaos_commands, "_run_with_progress", run)
    words = ("--min-acknowledged", least)
    out = tmp_path / "text"
    command("chaos", "run", "--out", out, *words, status=status)
    assert f"\n{load.text()}\n" in command.out
    assert "\n120 acknowledgements lie among the faults; 60 are required\n" in command.out
    assert f"<h1>{word}</h1>" in (out / "report.html").read_text()
    command("verify", out)  # the history itself is valid
    out = tmp_path / "document"
    document = command.json("chaos", "run", "--out", out, *words, status=status)
    assert (document["acknowledged_in_faults"], document["required_in_faults"]) == (120, 60)
    assert document["load"] == {"offered": 100, "acknowledged": 9, "silent_s": 2.0}
    assert document["valid"] == json.loads((out / "verdict.json").read_text())["valid"]
    assert bool(document["unknown_because"]) == (status == EXIT_UNKNOWN)


FILE = Schedule(
    seed=1, duration_us=7_000_000, workload="idempotent_send", options={"burst": 3, "rate": 9.0}
)


@pytest.mark.parametrize(
    ("name", "given", "rate", "schedule", "expected"),
    [
        (None, [], None, None, ("append_read", {})),
        (None, ["producers=2"], 5.0, None, ("append_read", {"producers": "2", "rate": 5.0})),
        (None, [], None, FILE, ("idempotent_send", {"burst": 3, "rate": 9.0})),
        (None, ["burst=4"], None, FILE, ("idempotent_send", {"burst": "4", "rate": 9.0})),
        ("append_read", [], None, FILE, ("append_read", {})),
        (None, [], None, Schedule(seed=1, duration_us=0), ("append_read", {})),
    ],
)
def test_the_workload_is_the_schedules_unless_another_is_named(
    name: str | None,
    given: list[str],
    rate: float | None,
    schedule: Schedule | None,
    expected: tuple[str, dict[str, object]],
) -> None:
    found = _workload(name, given, rate, schedule, "pause")
    assert (found["workload"], found["options"]) == expected
    assert found["faults"] == ("pause",)


def test_the_faults_are_the_workloads_unless_others_are_named() -> None:
    assert _fault_names(None, "append_read") == ("kill",)
    assert _fault_names(None, "idempotent_send") == ("kill", "pause_kill", "ack_kill")
    assert _fault_names("pause, kill:any", "idempotent_send") == ("pause", "kill:any")
    assert _fault_names("none", "append_read") == ()
    for name, workload in WORKLOADS.items():
        assert RunSettings(out=Path(), workload=name, faults=workload.faults).faults


def test_the_duration_is_the_schedules_unless_one_is_given() -> None:
    assert _duration_s(None, None) == 60.0
    assert _duration_s(None, FILE) == 7.0
    assert _duration_s("30s", FILE) == 30.0
