"""The cluster of one test or several tests."""

import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from quorumlog.chaos.back_ends.local_processes import LocalProcesses
from quorumlog.chaos.back_ends.run_resources import Equipment, started
from quorumlog.chaos.run.run_directory import CLUSTER_DIRECTORY
from quorumlog.cluster import LocalCluster
from quorumlog.cluster.layout import log_file
from quorumlog.testing.options import OPTIONS
from quorumlog.testing.trial import CLUSTERS, Trial, store_directory

_WORKER: Final = "PYTEST_XDIST_WORKER"
_TAIL_BYTES: Final = 8_192
_LINES_MAX: Final = 5
_LINE_CHARS_MAX: Final = 300


def _planned(directory: Path, options: Mapping[str, Any]) -> LocalCluster:
    """Return a cluster with arguments of LocalCluster; those of `security` may be together.

    `security={"tls": True, "sasl": "SCRAM-SHA-256", "users": {"alice": "secret"}, "acls": True}`.
    """
    others = {name: value for name, value in options.items() if name != "security"}
    return LocalCluster(directory, **others, **options.get("security", {}))


def cluster_for_one(
    trial: Trial, options: Mapping[str, Any], *, with_links: bool
) -> Iterator[LocalProcesses]:
    """Yield a cluster that ends with the test; its directory is inside the test's.

    `with_links`: behind forwarders, so that its network can be cut.
    """
    trial.store.mkdir(parents=True, exist_ok=True)
    cluster = _planned(trial.store / CLUSTER_DIRECTORY, options)
    seed = trial.seed() if with_links else 0
    with started(cluster, Equipment(links=with_links), seed=seed) as back_end:
        watch(cluster, trial)
        yield back_end


class MakeCluster:
    """Starts clusters for one test, besides `quorumlog_cluster`; they end with the test."""

    def __init__(self, trial: Trial, item: pytest.Item, stack: ExitStack) -> None:
        self._trial: Final = trial
        self._made: Final = item.stash.setdefault(CLUSTERS, [])
        self._stack: Final = stack

    def __call__(self, **options: Any) -> LocalCluster:
        """Start a cluster with these arguments of LocalCluster, or `security`. ClusterError."""
        self._trial.store.mkdir(parents=True, exist_ok=True)
        number = len(self._made) + 2  # number 1 is quorumlog_cluster
        cluster = _planned(self._trial.store / f"{CLUSTER_DIRECTORY}-{number}", options)
        self._stack.enter_context(started(cluster, Equipment()))
        self._made.append(cluster)
        watch(cluster, self._trial)
        return cluster


def cluster_for_many(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    options: Mapping[str, Any],
    *,
    with_links: bool,
) -> Iterator[LocalProcesses]:
    """Yield a cluster for all tests of a scope; its directory stays if one of them fails.

    Each worker of xdist has clusters of its own. `with_links`: see `cluster_for_one`.
    """
    base, asked = tmp_path_factory.getbasetemp(), request.config.stash[OPTIONS]
    directory = _new_directory(store_directory(asked, base), os.environ.get(_WORKER, ""))
    failed_before = request.session.testsfailed
    try:
        cluster = _planned(directory, options)
        with started(cluster, Equipment(links=with_links), seed=asked.seed or 0) as back_end:
            yield back_end
    finally:
        if not asked.keep and request.session.testsfailed == failed_before:
            shutil.rmtree(directory, ignore_errors=True)


def last_lines(cluster: LocalCluster) -> Iterator[str]:
    """Yield a cluster's directory, and the last lines of each node's log."""
    yield f"in {cluster.directory}"
    for node in cluster.nodes:
        with suppress(OSError), log_file(cluster.directory, node.id).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
            for line in lines[-_LINES_MAX:]:
                yield f"node {node.id}: {line[:_LINE_CHARS_MAX]}"


def watch(cluster: LocalCluster, trial: Trial) -> None:
    """Make the test fail if a node ends by itself, as with a broken invariant."""
    trial.judges.append(lambda: end_of_its_own(cluster))


def end_of_its_own(cluster: LocalCluster, *, but: Collection[int] = ()) -> str | None:
    """Return the last output of the first node that ended with an error, and not by a signal.

    `but`: nodes that do not count.
    """
    for node in cluster.nodes:
        if node.id not in but and (cluster.exit_status(node.id) or 0) > 0:
            return cluster.last_words(node.id)
    return None


def _new_directory(base: Path, worker: str) -> Path:
    """Create and return a directory that no other cluster has."""
    base.mkdir(parents=True, exist_ok=True)
    name = "-".join(filter(None, ("shared", CLUSTER_DIRECTORY, worker)))
    number = 0
    while True:
        directory = base / (f"{name}-{number}" if number else name)
        try:
            directory.mkdir()
        except FileExistsError:
            number += 1
        else:
            return directory
