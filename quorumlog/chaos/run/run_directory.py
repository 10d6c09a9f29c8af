"""The directory of a run: its file names, its verdict, and the removal of an earlier run."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quorumlog.chaos.history.files import JSON_LINES, PARQUET
from quorumlog.chaos.history.meta import META, read_meta, write_meta
from quorumlog.chaos.network.error_responses import RESPONSES_FILE
from quorumlog.chaos.run.cluster_states import STATES_FILE
from quorumlog.chaos.run.mirror_process import LOG_FILE
from quorumlog.chaos.run.node_metrics import METRICS_FILE
from quorumlog.cluster import ClusterError, LocalCluster
from quorumlog.cluster.control_server import HISTORIES_DIRECTORY

if TYPE_CHECKING:
    from quorumlog.chaos.checkers import Verdict

SCHEDULE_FILE: Final = "schedule.json"
REPORT_FILE: Final = "report.html"
VERDICT_FILE: Final = "verdict.json"
CLUSTER_DIRECTORY: Final = "cluster"
TARGET_DIRECTORY: Final = "target"
"""Of the second cluster, for workloads with mirrors."""
_RUN_FILES: Final = {
    *(JSON_LINES, PARQUET, f"{PARQUET}.part", META),
    *(SCHEDULE_FILE, STATES_FILE, METRICS_FILE, RESPONSES_FILE),
    *(REPORT_FILE, VERDICT_FILE, CLUSTER_DIRECTORY, HISTORIES_DIRECTORY),
    *(TARGET_DIRECTORY, LOG_FILE),
}


def make_room(out: Path) -> None:
    """Remove the files of an earlier run from `out`.

    Raises ValueError, and removes nothing, if `out` has other files, or if the earlier nodes still
    run.
    """
    if not out.exists():
        return
    strangers = sorted({path.name for path in out.iterdir()} - _RUN_FILES)
    if strangers:
        raise ValueError(f"{out} holds {strangers[0]}, which is not a run's; choose another --out")
    for directory in (out / CLUSTER_DIRECTORY, out / TARGET_DIRECTORY):
        with suppress(ClusterError):  # no cluster, or one so damaged that it cannot run
            cluster = LocalCluster.open(directory)
            if any(cluster.pid(node.id) is not None for node in cluster.nodes):
                raise ValueError(
                    "nodes of an earlier run still run: "
                    f"quorumlog down --dir {directory}, then try again"
                )
    shutil.rmtree(out)


def keep_verdict(directory: Path, verdict: "Verdict") -> None:
    """Write the verdict beside its history, and the silence of the faults into `meta.json`.

    Raises HistoryError for a file `meta.json` that cannot be read, and OSError.
    """
    document = verdict.as_json()
    (directory / VERDICT_FILE).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    meta = read_meta(directory)
    if meta and verdict.fault_phase is not None:
        write_meta(directory, {**meta, "fault_phase": document["fault_phase"]})
