"""Planted bugs on real processes: the options by which `chaos run` finds each, and how often."""

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import track

FILE: Final = Path("tests/data/recall_real.json")
REAL_RUNS: Final = 3
"""Seeds 1 to this: a run on real processes is not a function of its seed."""

_ALONE: Final = "--fault pause_kill --duration 12s --partitions 1"
_ALONE_AGAIN: Final = "--fault pause_kill --duration 20s --partitions 1"
_ON_THE_WIRE: Final = "--workload wire_rules --fault none --duration 6s"
_MIRRORED: Final = "--workload mirror --fault none --duration 20s --nodes 1"
_SHRINKS: Final = (
    "--fault lag-kill --duration 20s --partitions 4 --replication 2"
    " --config replica.lag.time.max.ms=300"
)

REAL_OPTIONS: Final[dict[str, str]] = {
    "high-watermark": _ALONE,
    "broken-invariant": _ALONE,
    "forgets-producers": "--workload idempotent_send --fault pause --duration 12s",
    "spoils-reads": "--fault none --duration 5s",
    "low-ends": "--fault none --duration 5s",
    "commits_alone": _ALONE,
    "recovery_cuts_whole_batches": "--fault kill-all --duration 15s",
    "skips_where_segments_begin": "--fault none --duration 8s --config log.segment.bytes=20000",
    "elects_any_that_lives": _SHRINKS,
    "elects_outside_the_isr": _SHRINKS,
    "ignores_divergence": _ALONE_AGAIN,
    "forgets_epochs_at_start": _ALONE_AGAIN,
    "files_are_not_cut": _ALONE_AGAIN,
    "stamps_copies_anew": _ALONE_AGAIN,
    "takes_gaps": _ON_THE_WIRE,
    "answers_early_under_load": ("--workload wire_rules --fault pause:isr-follower --duration 15s"),
    "latest_is_the_log_end": _ON_THE_WIRE,
    "session_forgets_one_partition": _ON_THE_WIRE,
    "drops_headers": _ON_THE_WIRE,
    "followers_forget_producers": "--workload idempotent_send --fault ack-kill --duration 15s",
    "forgets_one_producer": (
        "--workload idempotent_send --fault ack-kill --duration 15s --replication 1"
    ),
    "acks_early_under_load": "--workload idempotent_send --duration 20s",
    "drops_the_newest_of_some_keys": (
        "--workload compacted_register --fault kill --duration 15s"
        " --config log.segment.bytes=20000 --config log.cleaner.backoff.ms=300"
        " --config log.cleaner.min.cleanable.ratio=0.01"
    ),
    "truncates_to_its_high_watermark": "--fault late_start --duration 20s --partitions 4",
    "alters_some_copies": "--fault none --duration 5s",
    "commits_positions_first": (
        f"{_MIRRORED} --workload-option pauses=0 --workload-option replacements=0"
    ),
    "translates_one_too_far": _MIRRORED,
    "resumes_in_reverse": _MIRRORED,
}

Found = dict[str, dict[str, Any]]  # mutant -> its options, and the first anomaly of each run


def read_real() -> Found:
    """Return the recorded results of the current options."""
    known: Found = json.loads(FILE.read_text()) if FILE.exists() else {}
    return {
        name: known[name]
        for name in (*REAL_OPTIONS, *sound_runs())
        if name in known and known[name]["options"] == options_of(name)
    }


def sound_runs() -> list[str]:
    """Return the names of the runs with the same options without a mutant."""
    return [f"sound: {options}" for options in dict.fromkeys(REAL_OPTIONS.values())]


def options_of(name: str) -> str:
    """Return the options of a mutant, or of a run without one."""
    return REAL_OPTIONS[name] if name in REAL_OPTIONS else name.removeprefix("sound: ")


def real_command(name: str, seed: int) -> list[str]:
    """Return the command, as a user types it."""
    mutant = ["--mutant", name] if name in REAL_OPTIONS else []
    options = shlex.split(options_of(name))
    return ["quorumlog", "chaos", "run", *mutant, *options, "--seed", str(seed)]


def carry_out(names: Sequence[str]) -> None:
    """Execute the missing runs, one after the other; write the file after each."""
    found = read_real()
    missing = [
        (name, seed)
        for seed in range(1, REAL_RUNS + 1)
        for name in names
        if seed == 1 or name in REAL_OPTIONS  # a run without a mutant is made once
        if len(found.get(name, {"told_by": []})["told_by"]) < seed
    ]
    for name, seed in track(missing, "on real processes", console=Console(stderr=True)):
        noted = found.setdefault(name, {"options": options_of(name), "told_by": []})
        noted["told_by"].append(_told_by(name, seed))
        FILE.write_text(json.dumps(found, indent=1) + "\n")


def _told_by(mutant: str, seed: int) -> str:
    """Return the first anomaly, "" if the verdict is not invalid."""
    with tempfile.TemporaryDirectory(prefix="quorumlog-recall-") as scratch:
        _, *arguments = real_command(mutant, seed)
        out = ["--out", str(Path(scratch) / "run"), "--engine", "local", "--json"]
        command = [sys.executable, "-m", "quorumlog", *arguments, *out]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    if done.returncode not in {0, 1, 2} or not done.stdout:
        raise RuntimeError(f"{shlex.join(command)}: {done.returncode}: {done.stderr[-2000:]}")
    verdict: dict[str, Any] = json.loads(done.stdout)
    if "error" in verdict:
        raise RuntimeError(f"{shlex.join(command)}: {verdict['error']}")
    invalid = [name for name, one in verdict["anomalies"].items() if one["severity"] == "invalid"]
    return invalid[0] if verdict["valid"] is False else ""
