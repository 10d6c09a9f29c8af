"""`states.jsonl`: the leaders and ISRs during a run, as the cluster reported them to a client.

One line whenever a response differs from the one before:

    {"time_ns": 1200, "controller": 1,
     "partitions": {"chaos-0": {"leader": 2, "epoch": 3, "isr": [2, 3]}}}
    {"time_ns": 3400, "error": "no broker answered"}

`time_ns` is on the clock of the history. It is an observer's view, up to a quarter of a second
late: it explains a run and proves nothing, so no checker reads it.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from quorumlog.chaos.network.error_responses import read_json_lines
from quorumlog.client import Admin, KafkaError

STATES_FILE: Final = "states.jsonl"
_EVERY_S: Final = 0.25
_ANSWER_MS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """A partition as a broker describes it; `leader` is -1 while there is none."""

    leader: int
    epoch: int
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """One line. `controller`: the leader of the metadata quorum, -1 if unknown.

    `error`: why there is no state from here on, or "".
    """

    time_ns: int
    controller: int = -1
    partitions: Mapping[str, PartitionState]
    error: str = ""


class _States:
    """The file: a state is written if it differs from the last one."""

    def __init__(self, file: TextIO, elapsed_ns: Callable[[], int]) -> None:
        self._file: Final = file
        self._elapsed_ns: Final = elapsed_ns
        self._last: Mapping[str, Any] = {}

    def put(self, answer: Mapping[str, Any]) -> None:
        if answer != self._last:
            self._last = answer
            self._file.write(json.dumps({"time_ns": self._elapsed_ns(), **answer}) + "\n")
            self._file.flush()


async def watch(
    client: Mapping[str, Any], topics: Sequence[str], directory: Path, elapsed_ns: Callable[[], int]
) -> None:
    """Write `states.jsonl` in `directory` until cancelled. Raises OSError if that fails."""
    with (directory / STATES_FILE).open("w", encoding="utf-8") as file:
        states = _States(file, elapsed_ns)
        while True:
            try:
                async with Admin(
                    **client, request_timeout_ms=_ANSWER_MS, default_api_timeout_ms=_ANSWER_MS
                ) as admin:
                    while True:
                        states.put(await _ask(admin, topics))
                        await asyncio.sleep(_EVERY_S)
            except (KafkaError, ConnectionError) as error:
                states.put({"error": str(error)})
            await asyncio.sleep(_EVERY_S)


async def _ask(admin: Admin, topics: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a line, except its time."""
    described = await admin.describe_topics(topics)
    partitions = {
        f"{name}-{index}": {
            "leader": view.leader_id,
            "epoch": view.leader_epoch,
            "isr": sorted(view.isr),
        }
        for name, topic in described.items()
        for index, view in sorted(topic.partitions.items())
    }
    return {"controller": await _controller(admin), "partitions": partitions}


async def _controller(admin: Admin) -> int:
    try:
        return (await admin.describe_quorum()).leader_id
    except (KafkaError, ConnectionError):
        return -1  # a cluster without KIP-595, or without a leader now


def read_states(directory: Path) -> list[ClusterState]:
    """Return the states of a run; [] without a file. A line cut off at the end is left out.

    Raises ValueError for a file with other contents.
    """
    return read_json_lines(directory / STATES_FILE, _state_of, "state of the cluster")


def _state_of(row: Any) -> ClusterState:
    return ClusterState(
        time_ns=int(row["time_ns"]),
        controller=int(row.get("controller", -1)),
        partitions={
            str(key): PartitionState(
                leader=int(one["leader"]), epoch=int(one["epoch"]), isr=tuple(one["isr"])
            )
            for key, one in row.get("partitions", {}).items()
        },
        error=str(row.get("error", "")),
    )
