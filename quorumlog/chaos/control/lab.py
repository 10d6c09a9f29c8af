"""A running cluster with its nemesis and the histories of its clients: the object of the verbs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quorumlog.chaos.control.histories import Histories
from quorumlog.chaos.control.manual_nemesis import ManualNemesis

if TYPE_CHECKING:
    from quorumlog.chaos.back_ends.local_processes import LocalProcesses
    from quorumlog.cluster import LocalCluster

_SEED: Final = 0  # a test must be repeatable: "any" chooses the same nodes in each run


class Lab:
    """The cluster, the nemesis and the histories of one control server."""

    def __init__(
        self, cluster: "LocalCluster", nemesis: ManualNemesis, histories: Histories
    ) -> None:
        self.cluster: Final = cluster
        self.nemesis: Final = nemesis
        self.histories: Final = histories

    def close(self) -> None:
        """End the open histories: they get no verdict any more."""
        self.histories.close()


def topics_of(cluster: "LocalCluster") -> list[str]:
    """Return the topics of a cluster, without Kafka's own."""
    return sorted(name for name in cluster.status()["topics"] if not name.startswith("__"))


@contextmanager
def opened(back_end: "LocalProcesses", directory: Path) -> Iterator[Lab]:
    """Yield the lab of a cluster that ends with it; at the end all faults on links are healed.

    `directory`: of the histories.
    """
    cluster = back_end.cluster
    histories = Histories(directory, cluster.own_client)
    nemesis = ManualNemesis(
        back_end,
        topics=lambda: topics_of(cluster),
        topic=None,
        seed=_SEED,
        record=histories.note,
        outlives=False,
    )
    histories.heal = nemesis.heal_now
    lab = Lab(cluster, nemesis, histories)
    with nemesis:
        try:
            yield lab
        finally:
            lab.close()
