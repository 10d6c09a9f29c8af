"""One kill round: real nodes are killed repeatedly under load and administration.

Its checker judges the workload of the round, `tools.round_work` its own topics, and all replicas of
the stopped cluster are compared. A round is a proof only if meanwhile nodes were killed, replicas
moved, topics grew, and logs were cleaned and cut; otherwise its result names the missing events.
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
FEW_RECORDS: Final = {"compacted_register": {"log.segment.bytes": "4000"}}  # to fill segments
NEEDED: Final = ("kills", "reassign", "grow", "cleaned", "cut", "partitions")
"""The counts of a round that must not be 0; the last: partitions with compared replicas."""
_BROKERS: Final = 3


def settings_of(seed: int, out: Path, duration_s: float = 30.0) -> RunSettings:
    """Return the settings of a round: a function of the seed."""
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
    """Execute a round; return its result."""
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
            work.give_up()  # the cluster is gone; no effect after `finish`
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
    """Return the result: not valid with findings, and "no proof" without the NEEDED events."""
    if findings:
        return {**noted, "valid": False, "why": [*noted["why"], *findings]}
    lacks = [f"there was no {name}" for name in NEEDED if not noted["counts"].get(name)]
    if lacks and noted["valid"] is True:
        return {**noted, "valid": "no proof", "why": lacks}
    return dict(noted)


def killed(history: str) -> int:
    """Count the SIGKILLs of nodes in the nemesis's rows of a history."""
    events = map(json.loads, history.splitlines()[1:])
    steps = [one for one in events if one.get("process") == -1 and "kill" in one.get("f", "")]
    return sum(len(str(one.get("node", "")).split(",")) for one in steps)


def totals(rounds: list[Mapping[str, Any]]) -> dict[str, int]:
    """Add up the counts of the valid rounds."""
    valid = [one for one in rounds if one["valid"] is True]
    counts = sum((Counter(one.get("counts", {})) for one in valid), Counter[str]())
    return {"rounds": len(valid), **counts}
