"""The same measurements on our cluster and on Apache Kafka, in turn, repetition by repetition.

Apache Kafka has two columns. Cold: a cluster that has just started, as a test suite meets it. Warm:
after load until three runs in a row are within a tenth, which takes minutes. While one of our
figures is measured, the warm cluster is stopped by SIGSTOP, with sessions that survive it; while
one of its figures is measured, ours is idle. Without Apache Kafka there are no such columns.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from benchmarks.apache_kafka import KafkaCluster, why_not
from benchmarks.measure import Figure, Table, cpu_seconds
from quorumlog import LocalCluster

_NO_SESSION_ENDS: Final = tuple(
    f"{name}=600000"
    for name in (
        "broker.session.timeout.ms",
        "controller.quorum.fetch.timeout.ms",
        "replica.lag.time.max.ms",
    )
)
_RESUMED_S: Final = 2.0  # what waited while the nodes were stopped is done then
_NEAR: Final = 1.1  # the greatest of three runs, as a multiple of the least


class Cluster(Protocol):
    """Nodes of ours, or of Apache Kafka."""

    @property
    def bootstrap(self) -> str:
        """`host:port,...` of all brokers."""

    def pid(self, node_id: int, /) -> int | None:
        """Return the process id of a node."""

    def kill(self, *node_ids: int) -> None:
        """SIGKILL."""

    def start_node(self, node_id: int, /) -> None:
        """Start a node again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long to measure, and to warm up: runs of `warm_up_s`, from `warm_up_min_s` to `_max_s`.

    A JVM that compiles in stages stands still on the way: at 40 s three runs were alike, and at
    160 s three times as fast.
    """

    seconds: float = 5.0
    repetitions: int = 5
    warm_up_s: float = 8.0
    warm_up_min_s: float = 150.0
    warm_up_max_s: float = 320.0


SHORT: Final = Pace(seconds=1.0, repetitions=1, warm_up_s=1.0, warm_up_min_s=0, warm_up_max_s=4)

ClusterT = TypeVar("ClusterT", LocalCluster, KafkaCluster)
Measure = Callable[[Cluster, Pace], list[Figure]]
Opened = Callable[[Path, int], LocalCluster | KafkaCluster]


def ours(directory: Path, nodes: int) -> LocalCluster:
    """Run the command that a user runs, for a new cluster or an old one."""
    command = [Path(sys.executable).with_name("quorumlog"), "up", "--dir", directory]
    options = ["--nodes", str(nodes), "--port", "0", "--detach", "--json"]
    subprocess.run([*map(str, command), *options], check=True, capture_output=True)
    return LocalCluster.open(directory)


def theirs(directory: Path, nodes: int, settings: Sequence[str] = ()) -> KafkaCluster:
    """Start Apache Kafka, a new cluster or an old one."""
    cluster = KafkaCluster(directory, nodes, settings)
    cluster.start()
    return cluster


@contextmanager
def running(opened: Callable[[Path, int], ClusterT], nodes: int) -> Iterator[ClusterT]:
    """Run a new cluster for a while."""
    with tempfile.TemporaryDirectory(prefix="quorumlog-bench-") as scratch:
        cluster = opened(Path(scratch) / "cluster", nodes)
        try:
            yield cluster
        finally:
            cluster.stop()


def node_ids(cluster: Cluster) -> range:
    """Return the ids of the nodes."""
    return range(1, cluster.bootstrap.count(",") + 2)


def nodes_cpu_s(cluster: Cluster) -> float:
    """Return the CPU time that all nodes have used."""
    pids = map(cluster.pid, node_ids(cluster))
    return sum(cpu_seconds(pid) for pid in pids if pid is not None)


def flat_after(run: Callable[[], float], min_s: float, max_s: float) -> tuple[list[float], bool]:
    """Repeat a run until the last three are within a tenth; return all, and whether they are."""
    rates: list[float] = []
    began_s = time.monotonic()
    while time.monotonic() < began_s + max_s:
        rates.append(run())
        if time.monotonic() < began_s + min_s:
            continue
        if len(rates) >= 3 and max(rates[-3:]) <= _NEAR * min(rates[-3:]):
            return rates, True
    return rates, False


@contextmanager
def _paused(cluster: KafkaCluster) -> Iterator[None]:
    for node_id in cluster.ids:
        cluster.pause(node_id)
    try:
        yield
    finally:
        for node_id in cluster.ids:
            cluster.resume(node_id)
        time.sleep(_RESUMED_S)


def _middle(figures: Sequence[Figure]) -> Figure:
    """Return the figure with the median value, and its own CPU."""
    return sorted(figures, key=lambda figure: figure.value)[(len(figures) - 1) // 2]


def rows(columns: Mapping[str, Sequence[Sequence[Figure]]]) -> Iterator[Figure]:
    """Yield the median of each of our figures, with those of other columns beside.

    columns: the repetitions, each with the same figures in the same order, by name; ours is "".
    """
    middle = {
        name: [_middle(of_one) for of_one in zip(*repetitions, strict=True)]
        for name, repetitions in columns.items()
        if repetitions
    }
    own = middle.pop("")
    for at, figure in enumerate(own):
        yield replace(figure, beside={name: figures[at] for name, figures in middle.items()})


def compare(
    table: Table,
    measures: Sequence[Measure],
    pace: Pace,
    *,
    nodes: int = 3,
    starts: Callable[[Opened, int, Pace], list[Figure]] | None = None,
) -> None:
    """Add a row for each figure. `measures`: the first of them warms Apache Kafka up, too.

    starts: measures clusters that it starts itself, and which are cold by nature.
    """
    reason = why_not()
    if reason:
        table.note(f"Apache Kafka is not here: {reason}")
    if starts is not None:
        beside = [] if reason else [starts(theirs, nodes, pace)]
        for figure in rows({"": [starts(ours, nodes, pace)], "cold": beside}):
            table.add(figure)
    cold = [[] if reason else [_measured_cold(measure, nodes, pace)] for measure in measures]
    with running(ours, nodes) as own, ExitStack() as stack:
        warm = None
        if not reason:
            warm = stack.enter_context(running(partial(theirs, settings=_NO_SESSION_ENDS), nodes))
            table.note(_warm_up(warm, measures[0], pace))
        for measure, seen in zip(measures, cold, strict=True):
            for figure in rows({"cold": seen, **_in_turn(measure, own, warm, pace)}):
                table.add(figure)


def _measured_cold(measure: Measure, nodes: int, pace: Pace) -> list[Figure]:
    with running(theirs, nodes) as cluster:
        return measure(cluster, pace)


def _warm_up(cluster: KafkaCluster, measure: Measure, pace: Pace) -> str:
    run = replace(pace, seconds=pace.warm_up_s)
    rates, is_flat = flat_after(
        lambda: measure(cluster, run)[0].value, pace.warm_up_min_s, pace.warm_up_max_s
    )
    last = ", ".join(f"{rate:,.0f}" for rate in rates[-3:])
    outcome = "flat" if is_flat else "NOT FLAT YET: it is not warm"
    return f"Apache Kafka, load to warm up, {len(rates)} x {run.seconds:g} s: {last}, {outcome}"


def _in_turn(
    measure: Measure, own: Cluster, warm: KafkaCluster | None, pace: Pace
) -> dict[str, list[list[Figure]]]:
    columns: dict[str, list[list[Figure]]] = {"": [], "warm": []}
    for _ in range(pace.repetitions):
        with nullcontext() if warm is None else _paused(warm):
            columns[""].append(measure(own, pace))
        if warm is not None:
            columns["warm"].append(measure(warm, pace))
    return columns
