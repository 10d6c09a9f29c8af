"""The times at which each fault was active, from the nemesis's rows of a history.

A fault lasts from its first row to the row that ends it: `start` ends a kill (or `kill-all`),
`resume` a pause, `stop-x` (or `x-stop`) what `start-x` (or `x`) began, and `heal` ends everything.
A row that ends a fault and names no node ends it on every node. A fault that no row ends lasts
until the end of the history. `node-ended` is not a fault: a process ended without a kill. After a
start that ended in `not-ready`, the fault goes on.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.checkers.verdict import WITNESSES_MAX, Anomaly, CheckResult, Severity
from quorumlog.chaos.history.model import NEMESIS, NEVER_NS

_ENDS: Final = {"start": "kill", "restart": "kill", "resume": "pause"}
_HEAL: Final = "heal"
NODE_ENDED: Final = "node-ended"
_NO_FAULTS: Final = frozenset({"not-ready", "skipped"})

NODE_ENDED_ANOMALY: Final = Anomaly(
    name=NODE_ENDED, meaning="A process ended, and the lab had not killed it."
)


@dataclass(slots=True, kw_only=True)
class Band:
    """One fault on one target, from `start_ns` until `end_ns` (or the end of the history)."""

    fault: str
    node: str
    start_ns: int
    end_ns: int
    details: str = ""

    def __str__(self) -> str:
        return f"{self.fault} {self.node}".strip()


def fault_bands(table: pa.Table) -> list[Band]:
    """Return the bands in the order in which they began. It reads only the nemesis's rows."""
    nemesis = table.filter(pc.field("process") == NEMESIS)
    nemesis = nemesis.select(["index", "invoked_ns", "f", "node", "details"])
    bands: list[Band] = []
    for row in nemesis.sort_by("index").to_pylist():
        f, node, time_ns = row["f"], row["node"], row["invoked_ns"]
        ended = [band for band in bands if band.end_ns == NEVER_NS and _ends(f, node, band)]
        for band in ended:
            band.end_ns = time_ns
        open_already = any(
            band.fault == f and band.node == node and band.end_ns == NEVER_NS for band in bands
        )
        if f not in _NO_FAULTS and not (_is_end(f) or open_already):
            band = Band(
                fault=f, node=node, start_ns=time_ns, end_ns=NEVER_NS, details=row["details"]
            )
            bands.append(band)
    return bands


def ended_nodes(bands: Sequence[Band]) -> list[CheckResult]:
    """Return the anomaly of nodes that ended by themselves, if any did."""
    ended = [band for band in bands if band.fault == NODE_ENDED]
    if not ended:
        return []
    witnesses: list[dict[str, Any]] = [
        {"key": f"node {band.node}".strip(), "note": _ended_how(band.details), "ops": []}
        for band in ended
    ]
    return [
        CheckResult(
            name=NODE_ENDED,
            severity=Severity.INVALID,
            count=len(ended),
            witnesses=witnesses[:WITNESSES_MAX],
        )
    ]


def _ended_how(last_words: str) -> str:
    """Say first what is no fault of the node, if its last words tell that."""
    if "No space left on device" in last_words:
        return f"its disk was full: {last_words}"
    if re.search(r"\bstatus (-9|137)\b", last_words):
        return f"killed from outside, as a kernel does that is short of memory: {last_words}"
    return last_words


def add_faults(witnesses: Sequence[dict[str, Any]], bands: Sequence[Band]) -> None:
    """Write into each operation of each witness which faults were active while it ran."""
    for witness in witnesses:
        for op in witness["ops"]:
            end_ns = NEVER_NS if op["completed_ns"] is None else op["completed_ns"]
            op["faults"] = [
                str(band)
                for band in bands
                if band.start_ns <= end_ns and op["invoked_ns"] <= band.end_ns
            ]


def _is_end(f: str) -> bool:
    return f == _HEAL or f in _ENDS or f.startswith("stop-") or f.endswith("-stop")


def _ends(f: str, node: str, band: Band) -> bool:
    if not _is_end(f) or (node and band.node and node != band.node):
        return False
    if f in _ENDS:
        return band.fault.startswith(_ENDS[f])
    started = f.removeprefix("stop-") if f.startswith("stop-") else f.removesuffix("-stop")
    return f == _HEAL or band.fault in (started, f"start-{started}")
