"""The times at which each fault was active, from the nemesis's rows of a history.

A fault lasts from its first row to the row that ends it: `start` ends a kill, `kill-all` or stop,
`resume` a pause, `stop-x` (or `x-stop`) the fault of `start-x` (or `x`), and `heal` every fault. A
row that names an action of the schedule ends only the faults of that action, on the nodes that it
names; a band ends with the last of its nodes. In histories whose rows name no action, a row ends
the faults of its name on the node that it names; a row without a node ends them on all nodes. A
fault without such a row lasts until the end of the history. `node-ended` is not a fault: a process
ended without a kill; `replicas-differ` is about logs that were compared when all nodes had stopped.
`gave-up` is a fault: a process ended because a fault had broken its disk.
After a start that ended in `not-ready`, the fault goes on. An `asked` row has the request that a
fault sent to the cluster.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.checkers.verdict import WITNESSES_MAX, Anomaly, CheckResult, Severity
from quorumlog.chaos.faults.fault import UNDOING, UNDONE_BY
from quorumlog.chaos.faults.rows import PHASE, PHASE_OVER, REPLICAS_DIFFER, read_details
from quorumlog.chaos.history.model import NEMESIS, NEVER_NS

_MENDED_BY: Final = {
    undo: tuple(fault for fault, mended in UNDONE_BY.items() if mended == undo) for undo in UNDOING
}
_STARTED: Final = (*_MENDED_BY["start"], "raise_kraft_version", "wipe", "lose_records", "gave-up")
_ENDS: Final = {**_MENDED_BY, "start": _STARTED, "restart": _STARTED}
_HEAL: Final = "heal"
NODE_ENDED: Final = "node-ended"
_ASKED: Final = "asked"
_NO_FAULTS: Final = frozenset({"not-ready", "skipped", _ASKED, PHASE, PHASE_OVER})

NODE_ENDED_ANOMALY: Final = Anomaly(NODE_ENDED, "A process ended that the lab had not killed.")
REPLICAS_DIFFER_ANOMALY: Final = Anomaly(
    REPLICAS_DIFFER, "The stopped replicas of a partition differ in committed records."
)
FINDINGS: Final = frozenset({NODE_ENDED, REPLICAS_DIFFER})
"""Rows of the nemesis that are no faults, but findings about nodes."""


@dataclass(slots=True, kw_only=True)
class Band:
    """One fault on one target, from `start_ns` until `end_ns` (or the end of the history).

    action: the number of the action that began it; 0: its row names none. asked: the fault's
    request to the cluster, such as the replicas of each reassigned partition.
    """

    fault: str
    node: str
    start_ns: int
    end_ns: int
    details: str = ""
    action: int = 0
    asked: str = ""
    left: set[str] = field(default_factory=set)  # the nodes on which the fault is still active

    def __str__(self) -> str:
        return f"{self.fault} {self.node}".strip()

    @property
    def named(self) -> str:
        """The step, followed by the name of its fault if that name differs."""
        told = read_details(self.details)
        return str(self) if told is None or told[1] == self.fault else f"{self} ({told[1]})"


def nemesis_of(table: pa.Table) -> pa.Table:
    """Return the nemesis's rows. An expression instead of a mask would start a plan and threads."""
    return table.filter(pc.equal(table.column("process"), NEMESIS))


def fault_bands(table: pa.Table) -> list[Band]:
    """Return the bands in the order in which they began, from the nemesis's rows."""
    nemesis = nemesis_of(table).select(["index", "invoked_ns", "f", "node", "details"])
    bands: list[Band] = []
    if not nemesis.num_rows:  # sorting nothing takes longer than all other checks of a small part
        return bands
    for row in nemesis.sort_by("index").to_pylist():
        f, node, time_ns, details = row["f"], row["node"], row["invoked_ns"], row["details"]
        told = read_details(details)
        action, remark = (0, "") if told is None else (told[0], told[2])
        lasting = [band for band in bands if band.end_ns == NEVER_NS]
        for band in lasting:
            if f == _ASKED and action and action == band.action:
                band.asked = remark
            if _ends(f, node, action, band):
                band.left -= set(node.split(",")) if action and node else band.left
                if not band.left:
                    band.end_ns = time_ns
        open_already = any(
            (band.fault, band.node, band.action) == (f, node, action) and band.end_ns == NEVER_NS
            for band in lasting
        )
        if f not in _NO_FAULTS and not (_is_end(f) or open_already):
            band = Band(
                fault=f,
                node=node,
                start_ns=time_ns,
                end_ns=NEVER_NS,
                details=details,
                action=action,
                left=set(node.split(",")),
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


def differing_replicas(bands: Sequence[Band]) -> list[CheckResult]:
    """Return the anomaly of replicas that differ, if some do: a witness for each partition."""
    found = [band for band in bands if band.fault == REPLICAS_DIFFER]
    if not found:
        return []
    witnesses: list[dict[str, Any]] = []
    for band in found:
        partition, _, how = band.details.partition(": ")
        witnesses.append({"key": partition, "note": f"{how} (node {band.node})", "ops": []})
    return [
        CheckResult(
            name=REPLICAS_DIFFER,
            severity=Severity.INVALID,
            count=len(found),
            witnesses=witnesses[:WITNESSES_MAX],
        )
    ]


def _ended_how(last_words: str) -> str:
    """Put a cause outside the node first, if the node's last output shows one."""
    if "No space left on device" in last_words:
        return f"its disk was full: {last_words}"
    if re.search(r"\bstatus (-9|137)\b", last_words):
        return f"killed from outside, as by a kernel without free memory: {last_words}"
    return last_words


def add_faults(witnesses: Sequence[dict[str, Any]], bands: Sequence[Band]) -> None:
    """Write into each operation of each witness the faults that were active while it ran."""
    for witness in witnesses:
        for op in witness["ops"]:
            end_ns = NEVER_NS if op["completed_ns"] is None else op["completed_ns"]
            op["faults"] = [
                band.named
                for band in bands
                if band.fault != REPLICAS_DIFFER
                and band.start_ns <= end_ns
                and op["invoked_ns"] <= band.end_ns
            ]


def _is_end(f: str) -> bool:
    return f == _HEAL or f in _ENDS or f.startswith("stop-") or f.endswith("-stop")


def _ends(f: str, node: str, action: int, band: Band) -> bool:
    """Return whether the row ends the band on some nodes."""
    if f == _HEAL:
        return True
    if not _is_end(f) or action != band.action:
        return False
    if action:
        is_hit = not node or bool(band.left & set(node.split(",")))
    else:
        is_hit = not (node and band.node) or node == band.node
    return is_hit and _is_undone_by(f, band.fault)


def _is_undone_by(f: str, fault: str) -> bool:
    if f in _ENDS:
        return fault.startswith(_ENDS[f])
    started = f.removeprefix("stop-") if f.startswith("stop-") else f.removesuffix("-stop")
    return fault in (started, f"start-{started}")
