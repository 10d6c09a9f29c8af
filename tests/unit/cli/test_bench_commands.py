"""`quorumlog bench` against fake brokers: figures, documents, refusals."""

from pathlib import Path
from typing import Any

import pytest

from quorumlog.bench import running
from quorumlog.bench.claims import KillRun
from quorumlog.bench.load import Kept, Moment, ProduceResult
from quorumlog.bench.running import BenchFailed, Plan, Run
from quorumlog.bench.scenarios import KILL_CASES
from quorumlog.cli.output import EXIT_FAILED, EXIT_USAGE, EXIT_VALID
from tests.support.cli.in_process import CommandLine, Shell


def test_records_are_produced_and_counted(shell: Shell) -> None:
    before = len(shell.cluster.values())
    found = shell.json("bench", "produce", "--topic", "t", "--messages", "30", "--size", "16")
    assert (found["sent"], found["acknowledged"], found["failed"]) == (30, 30, {})
    assert found["messages_per_s"] > 0
    added = shell.cluster.values()[before:]
    numbers = [int.from_bytes((value or b"")[:8], "big") for value in added]
    assert [number for number in numbers if number < 30] == list(range(30))
    assert len(numbers) == 31  # one of the warm-up
    assert {len(value or b"") for value in added} == {16}
    text = shell("bench", "produce", "--topic", "t", "--messages", "5", "--mode", "one-by-one")
    assert "5 of 5 records acknowledged" in text
    assert "LATENCY, MS" in text


def test_records_are_consumed_up_to_the_end(shell: Shell) -> None:
    found = shell.json("bench", "consume", "--topic", "t")
    assert found["records"] == len(shell.cluster.values())
    assert shell.json("bench", "consume", "--topic", "t", "--messages", "4")["records"] == 4
    assert "MB/s" in shell("bench", "consume", "--topic", "t")


def test_latencies_are_drawn(shell: Shell) -> None:
    words = ("bench", "latency", "--topic", "t", "--rate", "500", "--messages", "20")
    text = shell(*words)
    assert "20 of 20 records acknowledged, 500 due a second" in text
    assert text.count("█") > 0
    found = shell.json(*words)
    assert (found["producer"]["count"], found["end_to_end"]["count"]) == (20, 20)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("produce", "--messages", "5", "--duration", "5s"), "--messages or --duration, not both"),
        (("produce", "--acks", "1", "--idempotence"), "--idempotence needs --acks all"),
        (("produce", "--size", "7"), "--size"),
        (("latency", "--messages", "5", "--duration", "5s"), "--messages or --duration, not both"),
        (("latency", "--duration", "never"), "is not a duration"),
        (("scenarios", "--out", "x", "--only", "1,7"), "write numbers of 1 to 6"),
        (("scenarios", "--out", "x", "--only", "5"), "it kills brokers of its own cluster"),
    ],
)
def test_arguments_that_have_no_sense_are_refused(
    shell: Shell,
    words: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in shell("bench", *words, status=EXIT_USAGE)
    assert not Path("x").exists()


def one_case(lost: int) -> Run:
    run = Run(plan=Plan(only=(5,), messages=100, modes=("pipelined",)), load_average=(1.0, 1.0))
    moments = [Moment(at_s=at_s, acknowledged=50, attempts={}) for at_s in (0.5, 1.5)]
    produced = ProduceResult(
        began_s=0, seconds=1.5, sent=100, acknowledged=100, size=8, moments=moments
    )
    kept = Kept(stored=100 - lost, lost=lost, duplicates=0, failed_stored=0)
    run.results.kills.append(
        KillRun(case=KILL_CASES[1], produced=produced, kept=kept, killed_s=1.0)
    )
    return run


@pytest.mark.parametrize(("lost", "status"), [(0, EXIT_VALID), (1, EXIT_FAILED)])
def test_a_false_claim_about_safety_is_the_exit_status(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lost: int, status: int
) -> None:
    plans: list[Plan] = []

    def run_scenarios(plan: Plan, client: Any, done: Any) -> Run:
        assert client is None
        plans.append(plan)
        done(plan.steps, "the end")
        return one_case(lost)

    monkeypatch.setattr(running, "run_scenarios", run_scenarios)
    out = tmp_path / "a" / "b"
    words = ("bench", "scenarios", "--only", "5", "--seed", "3", "--messages", "100", "--out", out)
    found = command.json(*words, status=status)
    assert found["scenarios"]["5"]["claims"]["C7"] is (lost == 0)
    assert found["scenarios"]["5"]["claims"]["C6"] is None
    assert {path.name for path in out.iterdir()} == {
        "scenarios.json", "scenarios.md", "scenarios.html"
    }  # fmt: skip
    assert (plans[0].only, plans[0].seed, plans[0].modes) == ([5], 3, ("pipelined", "one-by-one"))


def test_scenarios_that_cannot_run_end_in_one_line(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run_scenarios(*_: Any) -> Run:
        raise BenchFailed("no room")

    monkeypatch.setattr(running, "run_scenarios", run_scenarios)
    words = ("bench", "scenarios", "--out", tmp_path)
    assert command(*words, status=EXIT_FAILED) == "quorumlog: no room\n"
    said = command(*words, "--user", "a:b", "--sasl", "plain", status=EXIT_USAGE)
    assert "name the cluster of these options by --bootstrap" in said
