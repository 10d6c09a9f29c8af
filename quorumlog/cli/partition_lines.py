"""The line of one partition, for people."""

from collections.abc import Mapping
from typing import Any


def partition_line(index: int, partition: Mapping[str, Any], leader_lack: str | None = None) -> str:
    """Return a partition's leader; without a leader, the brokers that may become leader.

    `leader_lack`: why the leader cannot serve: "dead", "paused"; None: it can.
    `elr` and `last_known_elr`: None if an older release does not send them.
    """
    lack = "" if leader_lack is None else f" ({leader_lack})"
    line = (
        f"{index:>4}  leader {partition['leader']}{lack}  epoch {partition['leader_epoch']}"
        f"  isr {partition['isr']}  replicas {partition['replicas']}"
    )
    elr, last_known = partition.get("elr"), partition.get("last_known_elr")
    if last_known:
        line += f"  may lack records: {last_known}"
    if partition["leader"] >= 0:
        return line
    if elr:
        return f"{line}  waits for one of brokers {elr}"
    return f"{line}  waits for all of brokers {last_known}" if last_known else line
