"""`python -m tools.clean_runs`: which runs it makes, what it notes, and where it goes on."""

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quorumlog.chaos.node_simulation.simulate import settings_of
from quorumlog.chaos.run.run_settings import RunSettings
from tools import clean_runs, kill_rounds

Outcome = dict[str, Any]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the seeds that have run. Seed 3 finds something; seed 4 has no result."""
    made = list[int]()

    def run(seeds: Sequence[int]) -> Iterator[Outcome]:
        for seed in seeds:
            made.append(seed)
            valid = {3: False, 4: "no result"}.get(seed, True)
            yield {"seed": seed, "valid": valid, "why": []}

    monkeypatch.setattr(clean_runs, "RUNS", dict.fromkeys(clean_runs.RUNS, run))
    return made


def test_all_is_clean_only_if_every_run_was_valid(
    runs: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "runs.jsonl")]
    assert clean_runs.main(["nodes", "--seeds", "0:3", *out]) == 0
    assert capsys.readouterr().out == "{'True': 3}\n"
    for seeds, told in (("0:4", [3]), ("4:5", [4]), ("0:6", [3, 4])):
        assert clean_runs.main(["nodes", "--seeds", seeds, *out]) == 1
        _, *lines = capsys.readouterr().out.splitlines()
        assert [json.loads(line)["seed"] for line in lines] == told
    assert runs == [0, 1, 2, 3, 4, 5]  # each once


def test_an_interrupted_command_goes_on_behind_the_last_run(
    runs: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "runs.jsonl"

    def interrupted(seeds: Sequence[int]) -> Iterator[Outcome]:
        yield {"seed": seeds[0], "valid": True}
        raise KeyboardInterrupt

    with monkeypatch.context() as first:
        first.setattr(clean_runs, "RUNS", {"kills": interrupted})
        with pytest.raises(KeyboardInterrupt):
            clean_runs.main(["kills", "--seeds", "0:3", "--out", str(out)])
    assert clean_runs.main(["kills", "--seeds", "0:3", "--out", str(out)]) == 0
    assert runs == [1, 2]
    assert [json.loads(line)["seed"] for line in out.read_text().splitlines()] == [0, 1, 2]


def test_the_runs_follow_from_their_seeds() -> None:
    workloads = [clean_runs.workload_of(seed) for seed in range(50)]
    assert workloads.count("append_read") == 30
    assert {*workloads} == {"append_read", *clean_runs.OTHER_WORKLOADS}
    transactional = {clean_runs.transactions_workload_of(seed) for seed in range(4)}
    assert transactional == {*clean_runs.TRANSACTION_WORKLOADS}
    many = [
        seed
        for seed in range(21)
        if clean_runs.nodes_settings(seed, clean_runs.workload_of(seed)).partitions > 8
    ]
    assert many == [0, 7, 14]
    assert clean_runs.real_command(7) == clean_runs.real_command(7)
    faults = {clean_runs.real_command(seed)[8] for seed in range(7)}
    assert faults == {*clean_runs.REAL_FAULTS}


def test_seeds_of_transactions_run_whole_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_runs, "settings_of", partial(settings_of, duration_ms=2000))
    [noted] = clean_runs.transactions([2])
    assert (noted["seed"], noted["workload"], noted["valid"]) == (
        2,
        "consume_transform_produce",
        True,
    )


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        (0, {"valid": True, "anomalies": [], "operations": 9}, (True, [])),
        (1, {"valid": False, "anomalies": ["lost"]}, (False, ["lost"])),
        (2, {"error": "no cluster"}, ("no result", "no cluster")),
        (2, None, ("no result", "went wrong")),
        (70, {"valid": True, "anomalies": []}, ("no result", "went wrong")),
    ],
)
def test_what_a_run_on_real_processes_says_is_noted(
    status: int, said: Outcome | None, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = list[list[str]]()

    def done(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        text = "" if said is None else json.dumps(said)
        return subprocess.CompletedProcess(command, status, text, "went wrong")

    monkeypatch.setattr(subprocess, "run", done)
    [noted] = clean_runs.real([9])
    assert (noted["valid"], noted["why"]) == expected
    [command] = commands
    assert noted["command"].startswith("quorumlog chaos run --workload append_read")
    assert command[-2:] == ["local", "--json"]


def test_the_files_of_a_kill_round_that_is_not_valid_stay_and_the_totals_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def carry_out(settings: RunSettings) -> Outcome:
        settings.out.mkdir()
        counts = {"kills": 4, "cut": settings.seed}
        return {"seed": settings.seed, "counts": counts, "valid": settings.seed != 3}

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(kill_rounds, "carry_out", carry_out)
    assert clean_runs.main(["kills", "--seeds", "1:4", "--out", str(tmp_path / "out.jsonl")]) == 1
    counts, left, totals = capsys.readouterr().out.splitlines()
    assert counts == "{'True': 2, 'False': 1}"
    assert totals == "{'rounds': 2, 'kills': 8, 'cut': 3}"
    assert [*tmp_path.glob("quorumlog-*/run")] == [Path(json.loads(left)["files"])]
