"""Tests that share a cluster: each leaves its nodes as it found them, and on request its contents.

It is registered unless each test has a cluster of its own.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from quorumlog.chaos.back_ends.local_processes import LocalProcesses
    from quorumlog.chaos.control.manual_nemesis import ManualNemesis
    from quorumlog.cluster import LocalCluster
    from quorumlog.testing.trial import Trial

SHARED: Final = pytest.StashKey["SharedCluster"]()


class SharedCluster:
    """The plugin of shared clusters, with the remains of earlier tests on the present cluster.

    resets: a test leaves the contents as it found them, too.
    """

    def __init__(self, *, resets: bool) -> None:
        self._resets: Final = resets
        self._back_end: LocalProcesses | None = None  # of the present cluster
        self._unhealed: list[ManualNemesis] = []
        self._due: tuple[int, ...] = ()  # nodes that ran before the test
        self._used_groups: tuple[str, ...] = ()  # consumers of earlier tests are open

    @pytest.fixture(autouse=True)
    def quorumlog_reset(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """Mark the cluster before the test's own fixtures, and reset it after them.

        Fixtures of wider scopes come first: their topics are part of the mark, and nodes that they
        have killed stay dead.
        """
        if "quorumlog_back_end" not in request.fixturenames:
            yield
            return
        back_end: LocalProcesses = request.getfixturevalue("quorumlog_back_end")
        self.adopt(back_end)
        trial: Trial = request.getfixturevalue("quorumlog_trial")
        trial.judges.append(_watched(back_end.cluster))
        with self._contents_kept(back_end.cluster), self.nodes_kept(back_end.cluster):
            yield

    def note_unhealed(self, nemesis: "ManualNemesis") -> None:
        """Heal again before the next test: the healing has failed, or was interrupted."""
        self._unhealed.append(nemesis)

    def adopt(self, back_end: "LocalProcesses") -> None:
        """Heal the faults, and start the nodes, that an earlier test has left. ClusterError."""
        from quorumlog.cluster import ClusterError

        if self._back_end is not back_end:  # the earlier cluster has ended, with its faults
            self._back_end, self._used_groups, self._due = back_end, (), ()
            self._unhealed.clear()
        while self._unhealed:
            try:
                with self._unhealed[0]:
                    pass
            except Exception as error:
                raise ClusterError(
                    f"the faults of an earlier test are still in force: {error}"
                ) from error
            del self._unhealed[0]
        self._run_again(back_end.cluster)

    @contextmanager
    def nodes_kept(self, cluster: "LocalCluster") -> Iterator[None]:
        """Resume and start, at the end of the block, the nodes that ran at its begin. ClusterError.

        A node that does not start is due again before the next block. A mark that was made in the
        block is forgotten.
        """
        from quorumlog.cluster.cluster_status import NodeState

        marked = cluster.marked
        states = {node.id: cluster.state(node.id) for node in cluster.nodes}
        self._due = tuple(one for one in states if states[one] is NodeState.NO_ANSWER)
        try:
            yield
        finally:
            cluster.marked = marked
            self._run_again(cluster)

    def _run_again(self, cluster: "LocalCluster") -> None:
        from quorumlog.cluster.cluster_status import NodeState

        now = {node_id: cluster.state(node_id) for node_id in self._due}
        for node_id, state in now.items():
            if state is NodeState.PAUSED:
                cluster.resume(node_id)
        dead = [node_id for node_id, state in now.items() if state.is_dead]
        with ThreadPoolExecutor(max_workers=max(1, len(dead))) as pool:
            for started in [pool.submit(cluster.start_node, node_id) for node_id in dead]:
                started.result()
        self._due = ()

    @contextmanager
    def _contents_kept(self, cluster: "LocalCluster") -> Iterator[None]:
        if not self._resets:
            yield
            return
        from quorumlog.cluster.resets import StillUsed, delete_groups, read_mark, reset

        self._used_groups = delete_groups(cluster, self._used_groups)
        mark = read_mark(cluster)
        yield
        try:
            reset(cluster, mark, spares_used_groups=True)
        except StillUsed as error:
            self._used_groups += error.group_ids
            raise


def _watched(cluster: "LocalCluster") -> "Callable[[], str | None]":
    """Return a judge of the nodes that have not ended before the test."""
    from quorumlog.testing.clusters import end_of_its_own

    ended = [node.id for node in cluster.nodes if cluster.exit_status(node.id) is not None]
    return lambda: end_of_its_own(cluster, but=ended)
