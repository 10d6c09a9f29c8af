"""Run the unmodified product under faults, many times: every verdict must be valid.

    python -m tools.clean_runs nodes --seeds 0:2000         whole nodes in simulation
    python -m tools.clean_runs transactions --seeds 0:2000  the same, with transactions and groups
    python -m tools.clean_runs real --seeds 1:31            real processes
    python -m tools.clean_runs kills --seeds 0:20           nodes die repeatedly, replicas move

The seed determines the workload and, on real processes, the client and the faults. `kills` runs
rounds of `tools.kill_rounds`, and prints the counts of all events in the valid rounds at the end.

Each run is a line of --out (clean_runs.jsonl): an interrupted command resumes behind the last line.
Exit status 1 if a run was not valid.
"""

import argparse
import json
import logging
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import track

from quorumlog.chaos.node_simulation.forked import RunFailed, run_forked
from quorumlog.chaos.node_simulation.settings import NodesSettings
from quorumlog.chaos.node_simulation.simulate import settings_of
from tools import kill_rounds

OTHER_WORKLOADS: Final = (
    "idempotent_send", "group_consume", "compacted_register", "list_offsets",
    "metadata_linearizable", "recreated_topic", "wire_rules",
)  # fmt: skip
TRANSACTION_WORKLOADS: Final = (
    "txn_append", "txn_transfer", "consume_transform_produce", "consumer_group_consume",
)  # fmt: skip
DRIVERS: Final = {
    "append_read": ("client", "confluent", "aiokafka", "kafka-python"),
    "idempotent_send": ("client", "confluent"),
    "group_consume": ("client", "confluent"),
}
REAL_FAULTS: Final = (
    "kill,pause_kill,partition-one",
    "kill_all,pause,isolate-role",
    "kill,partition-halves,drop-request",
    "pause_kill,partition-one-way,reset",
    "crash_loop,partition-ring,delay",
    "rolling_restart,slow-link,pause",
    "kill,reply-lost,delay-request",
)
_MANY_PARTITIONS_EVERY: Final = 7  # seeds
_SEEDS_AT_ONCE: Final = 20


def workload_of(seed: int) -> str:
    """Return the workload of a seed: three of five are append_read."""
    turn, place = divmod(seed, 5)
    others = OTHER_WORKLOADS
    return "append_read" if place < 3 else others[(2 * turn + place - 3) % len(others)]


def transactions_workload_of(seed: int) -> str:
    """Return the workload of a seed of `transactions`: all workloads in turn."""
    return TRANSACTION_WORKLOADS[seed % len(TRANSACTION_WORKLOADS)]


def nodes_settings(seed: int, workload: str) -> NodesSettings:
    """Return the settings of a seed of whole nodes; every seventh has many partitions and segments.

    They reach more code: a fetch of many partitions omits unchanged partitions, and the first read
    of a full segment runs in a thread.
    """
    settings = settings_of(seed, workload=workload)
    if seed % _MANY_PARTITIONS_EVERY == 0:
        settings = replace(settings, partitions=24, config={"log.segment.bytes": "2000"})
    return settings


def nodes(seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Run seeds of whole nodes; yield their results."""
    return _whole_nodes([nodes_settings(seed, workload_of(seed)) for seed in seeds])


def transactions(seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Run seeds of whole nodes with transactions and KIP-848 groups; yield their results."""
    return _whole_nodes([nodes_settings(seed, transactions_workload_of(seed)) for seed in seeds])


def _whole_nodes(wanted: Sequence[NodesSettings]) -> Iterator[dict[str, Any]]:
    for settings, outcome in zip(wanted, run_forked(wanted), strict=True):
        seed, workload = settings.schedule.seed, settings.schedule.workload
        noted: dict[str, Any] = {"seed": seed, "workload": workload}
        if isinstance(outcome, RunFailed):
            yield {**noted, "valid": "no result", "why": str(outcome)}
            continue
        yield {
            **noted,
            "valid": outcome.valid,
            "why": [*outcome.violations, *outcome.anomalies],
            "unknown_because": outcome.verdict["unknown_because"],
            "operations": outcome.operations,
            "cpu_s": outcome.cpu_s,
        }


def real_command(seed: int) -> list[str]:
    """Return the command of a run on real processes: a function of the seed."""
    workloads = ("append_read", *OTHER_WORKLOADS, "authorized")
    workload = workloads[seed % len(workloads)]
    drivers = DRIVERS.get(workload, ("client",))
    driver = drivers[seed // len(workloads) % len(drivers)]
    faults = REAL_FAULTS[seed % len(REAL_FAULTS)]
    options = ["--workload", workload, "--driver", driver, "--fault", faults, "--overlap"]
    return ["quorumlog", "chaos", "run", *options, "--duration", "15s", "--seed", str(seed)]


def real(seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Run real processes; yield the results."""
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="quorumlog-clean-") as scratch:
            yield _carried_out(seed, real_command(seed), Path(scratch) / "run")


def kills(seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Run real processes that are killed repeatedly; keep the files of runs that are not valid."""
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="quorumlog-round-") as scratch:
            run = Path(scratch) / "run"
            noted = kill_rounds.carry_out(kill_rounds.settings_of(seed, run))
            if noted["valid"] is not True and run.exists():
                kept = tempfile.mkdtemp(prefix=f"quorumlog-kills-{seed}-")
                noted["files"] = str(shutil.move(run, kept))
            yield noted


def _carried_out(seed: int, wanted: list[str], run: Path) -> dict[str, Any]:
    """Run a command; return its result for the output line."""
    _, *arguments = wanted
    out = ["--out", str(run), "--engine", "local", "--json"]
    command = [sys.executable, "-m", "quorumlog", *arguments, *out]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    noted: dict[str, Any] = {"seed": seed, "command": shlex.join(wanted)}
    if done.returncode not in {0, 1, 2} or not done.stdout:
        return {**noted, "valid": "no result", "why": done.stderr[-2000:]}
    verdict = json.loads(done.stdout)
    return {
        **noted,
        "valid": verdict.get("valid", "no result"),
        "why": verdict.get("error") or verdict["anomalies"],
        "unknown_because": verdict.get("unknown_because"),
        "operations": verdict.get("operations"),
    }


RUNS: Final = {"nodes": nodes, "transactions": transactions, "real": real, "kills": kills}


def main(arguments: Sequence[str]) -> int:
    """Run the command line's seeds; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=[*RUNS])
    parser.add_argument("--seeds", default="0:100", help="FIRST:END")
    parser.add_argument("--out", type=Path, default=Path("clean_runs.jsonl"))
    given = parser.parse_args(arguments)
    first, end = map(int, given.seeds.split(":"))
    known = given.out.read_text().splitlines() if given.out.exists() else []
    noted = {one["seed"]: one for one in map(json.loads, known)}
    missing = [seed for seed in range(first, end) if seed not in noted]
    pieces = [
        missing[place : place + _SEEDS_AT_ONCE] for place in range(0, len(missing), _SEEDS_AT_ONCE)
    ]
    with given.out.open("a") as file:
        for piece in track(pieces, "running", console=Console(stderr=True)):
            for outcome in RUNS[given.kind](piece):
                noted[outcome["seed"]] = outcome
                file.write(json.dumps(outcome) + "\n")
                file.flush()
    told = [noted[seed] for seed in range(first, end) if noted[seed]["valid"] is not True]
    counts = Counter(str(noted[seed]["valid"]) for seed in range(first, end))
    sys.stdout.write(f"{dict(counts)}\n" + "".join(f"{json.dumps(one)}\n" for one in told))
    if given.kind == "kills":
        sys.stdout.write(f"{kill_rounds.totals([noted[seed] for seed in range(first, end)])}\n")
    return 1 if told else 0


if __name__ == "__main__":
    logging.getLogger("quorumlog").setLevel(logging.ERROR)  # clients warn of dead brokers
    sys.exit(main(sys.argv[1:]))
