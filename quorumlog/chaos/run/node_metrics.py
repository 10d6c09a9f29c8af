"""`metrics.jsonl`: numbers of each node during a run, from its GET /metrics, once a second.

    {"time_ns": 3400, "node": 2, "under_replicated": 1, "elections": 4, "lag": 120,
     "produces": [[0.000064, 0], [0.000128, 7]]}

`time_ns` is on the clock of the history. `elections` and `produces` are totals since the start of
the node's process: partitions that got a new leader, and produces by the seconds that they took at
most. A node that does not answer in time has no line. No checker reads the file.
"""

import asyncio
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from quorumlog.chaos.network.error_responses import read_json_lines

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from ssl import SSLContext

    from aiohttp import ClientResponse

METRICS_FILE: Final = "metrics.jsonl"
EVERY_S: Final = 1.0
_ANSWER_S: Final = 0.9
_UNDER_REPLICATED: Final = "kafka_server_replicamanager_underreplicatedpartitions"
_ELECTIONS: Final = "quorumlog_partition_leader_elections_total"
_LAG: Final = "kafka_consumergroup_lag_sum"
_BUCKET: Final = re.compile(
    r'^quorumlog_request_seconds_bucket\{request="Produce",le="([\d.e+-]+)"\} (\d+)$', re.MULTILINE
)
_VALUE: Final = re.compile(rf"^({_UNDER_REPLICATED}|{_ELECTIONS}|{_LAG})(?:\{{.*\}})? (\d+)$", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMetrics:
    """One line. `produces`: (upper bound in seconds, number of produces below it), ascending."""

    time_ns: int
    node: int
    under_replicated: int
    elections: int
    lag: int
    produces: tuple[tuple[float, int], ...]


def parse(text: str, *, time_ns: int, node: int) -> NodeMetrics:
    """Return the numbers in a scrape; those of a family that is missing are 0."""
    sums = {_UNDER_REPLICATED: 0, _ELECTIONS: 0, _LAG: 0}
    for name, value in _VALUE.findall(text):
        sums[name] += int(value)
    return NodeMetrics(
        time_ns=time_ns,
        node=node,
        under_replicated=sums[_UNDER_REPLICATED],
        elections=sums[_ELECTIONS],
        lag=sums[_LAG],
        produces=tuple((float(bound), int(count)) for bound, count in _BUCKET.findall(text)),
    )


async def watch(
    listeners: Mapping[int, tuple[str, "SSLContext | None"]],
    directory: Path,
    elapsed_ns: Callable[[], int],
) -> None:
    """Write `metrics.jsonl` in `directory` until cancelled. Raises OSError if that fails.

    `listeners`: the control listener (host:port) of each node, and its TLS; None: plain text.
    """
    from aiohttp import ClientSession, ClientTimeout

    timeout = ClientTimeout(total=_ANSWER_S)
    with (directory / METRICS_FILE).open("w", encoding="utf-8") as file:
        session = ClientSession(timeout=timeout)
        async with session, asyncio.TaskGroup() as tasks:
            for node, (address, tls) in listeners.items():
                url = f"{'http' if tls is None else 'https'}://{address}/metrics"
                get = partial(session.get, url, ssl=True if tls is None else tls)
                tasks.create_task(_watch_node(get, node, file, elapsed_ns))


async def _watch_node(
    get: "Callable[[], AbstractAsyncContextManager[ClientResponse]]",
    node: int,
    file: TextIO,
    elapsed_ns: Callable[[], int],
) -> None:
    from aiohttp import ClientError

    loop = asyncio.get_running_loop()
    while True:
        next_s = loop.time() + EVERY_S
        try:
            async with get() as response:
                text = await response.text() if response.status == 200 else ""
        except (ClientError, TimeoutError):
            text = ""  # it is killed, paused or cut off
        if text:
            numbers = parse(text, time_ns=elapsed_ns(), node=node)
            file.write(json.dumps(asdict(numbers)) + "\n")
            file.flush()
        await asyncio.sleep(next_s - loop.time())


def read_metrics(directory: Path) -> list[NodeMetrics]:
    """Return the lines of a run; [] without a file. A line cut off at the end is left out.

    Raises ValueError for a file with other contents.
    """
    return read_json_lines(directory / METRICS_FILE, _metrics_of, "line of metrics")


def _metrics_of(row: Any) -> NodeMetrics:
    produces = tuple((float(bound), int(count)) for bound, count in row["produces"])
    if any(not math.isfinite(bound) for bound, _ in produces):
        raise ValueError("a bound is no number")
    return NodeMetrics(
        time_ns=int(row["time_ns"]),
        node=int(row["node"]),
        under_replicated=int(row["under_replicated"]),
        elections=int(row["elections"]),
        lag=int(row["lag"]),
        produces=produces,
    )
