"""One kill round: real nodes are killed all the time under load, while all else goes on.

The workload of the round is judged by its checker, the topics of `tools.round_work` by themselves,
and all replicas of the stopped cluster are compared. A round proves something only if nodes were
killed, replicas moved, topics grew, logs were cleaned and cut meanwhile: else it says what lacks.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from quorumlog.chaos.back_ends.back_end import BackEndFailed
from quorumlog.chaos.history import HistoryError
from quorumlog.chaos.run.run import RunError, run
from quorumlog.chaos.run.run_directory import CLUSTER_DIRECTORY
from quorumlog.chaos.run.run_settings import RunSettings
from quorumlog.chaos.verify import verify_history
from quorumlog.client import KafkaError
from quorumlog.cluster import ClusterError
from tools import compare_replicas
from tools.round_work import SEGMENT_BYTES, RoundWork

WORKLOADS: Final = ("append_read", "compacted_register", "idempotent_send")
FAULTS: Final = ("kill", "kill_all", "crash_loop")
CONFIG: Final = {
    "log.segment.bytes": str(SEGMENT_BYTES),
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.min.cleanable.ratio": "0.1",
    "log.retention.check.interval.ms": "300",
}
FEW_RECORDS: Final = {"compacted_register": {"log.segment.bytes": "4000"}}  # to be cleaned at all
NEEDED: Final = ("kills", "reassign", "grow", "cleaned", "cut", "partitions")
"""What a round counts that must have happened; the last are those whose replicas are compared."""
_BROKERS: Final = 3


def settings_of(seed: int, out: Path, duration_s: float = 30.0) -> RunSettings:
    """Return what a round runs: all of it follows from the seed."""
    workload = WORKLOADS[seed % len(WORKLOADS)]
    return RunSettings(
        out=out,
        workload=workload,
        faults=FAULTS,
        duration_s=duration_s,
        seed=seed,
        config=CONFIG | FEW_RECORDS.get(workload, {}),
    )


def carry_out(settings: RunSettings) -> dict[str, Any]:
    """Carry out a round; return what to note of it."""
    noted: dict[str, Any] = {"seed": settings.seed, "workload": settings.workload}
    work = RoundWork(settings.topic, settings.out / CLUSTER_DIRECTORY, brokers=_BROKERS)

    def progress(phase: str, fraction: float, figures: str) -> None:
        if (phase, fraction) == ("start", 1.0):
            work.start(figures)
        elif (phase, fraction) == ("final reads", 1.0):
            work.finish()  # the cluster runs until then

    try:
        try:
            run(settings, progress)
        finally:
            work.give_up()  # the cluster is gone; there is nothing to give up after `finish`
        verdict = verify_history(settings.out, engine="local")
    except (BackEndFailed, ClusterError, RunError, HistoryError, KafkaError, OSError) as error:
        return {**noted, "valid": "no result", "why": [f"{type(error).__name__}: {error}"]}
    told = verdict.as_json()
    compared = compare_replicas.compare(settings.out)
    differing = [f"{name}: {how}" for name, how in compared.items() if how]
    kills = killed((settings.out / "history.jsonl").read_text())
    noted |= {
        "valid": verdict.valid,
        "why": [*told["anomalies"]],
        "unknown_because": told.get("unknown_because"),
        "operations": told.get("operations"),
        "counts": {"kills": kills, **work.counts, "partitions": len(compared)},
    }
    return judged(noted, work.findings + differing)


def judged(noted: Mapping[str, Any], findings: list[str]) -> dict[str, Any]:
    """Return what is noted: not valid with a finding, and no proof if something did not happen."""
    if findings:
        return {**noted, "valid": False, "why": [*noted["why"], *findings]}
    lacks = [f"there was no {name}" for name in NEEDED if not noted["counts"].get(name)]
    if lacks and noted["valid"] is True:
        return {**noted, "valid": "no proof", "why": lacks}
    return dict(noted)


def killed(history: str) -> int:
    """Count the SIGKILLs of nodes that the nemesis has told."""
    events = map(json.loads, history.splitlines()[1:])
    steps = [one for one in events if one.get("process") == -1 and "kill" in one.get("f", "")]
    return sum(len(str(one.get("node", "")).split(",")) for one in steps)


def totals(rounds: list[Mapping[str, Any]]) -> dict[str, int]:
    """Add up what happened in the rounds that were valid."""
    valid = [one for one in rounds if one["valid"] is True]
    counts = sum((Counter(one.get("counts", {})) for one in valid), Counter[str]())
    return {"rounds": len(valid), **counts}
