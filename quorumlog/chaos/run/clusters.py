"""The clusters of a run: the one that it starts, and a second one for a workload with mirrors."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from quorumlog.chaos.back_ends.back_end import BackEnd
from quorumlog.chaos.back_ends.local_processes import LocalProcesses
from quorumlog.chaos.back_ends.run_resources import check_equipment, equipment_for, started
from quorumlog.chaos.back_ends.two_clusters import FIRST_TARGET_ID, TwoClusters
from quorumlog.chaos.run.protection import protection_of
from quorumlog.chaos.run.run_directory import CLUSTER_DIRECTORY, TARGET_DIRECTORY
from quorumlog.chaos.run.run_settings import Progress, RunSettings
from quorumlog.chaos.schedule import Schedule
from quorumlog.chaos.workloads.mirror import copy_of
from quorumlog.chaos.workloads.registry import find_workload
from quorumlog.client.security import SecuritySettings
from quorumlog.cluster import LocalCluster
from quorumlog.cluster.layout import FIRST_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class RunClusters:
    """The clusters of a run.

    bootstrap: of the cluster that the workload's clients use; `target`: of a second one.
    back_end: breaks all of them; None: they cannot be broken. `own`: the clusters that the run
    has started, in this order.
    """

    bootstrap: str
    back_end: BackEnd | None
    own: tuple[LocalProcesses, ...] = ()
    target: str | None = None

    @property
    def super_user(self) -> SecuritySettings | None:
        """The protection of clients that may do everything; None: the cluster is not secured."""
        return _super_user(self.own[0].cluster) if self.own else None

    @property
    def target_super_user(self) -> SecuritySettings | None:
        """The same at the second cluster, which has another CA and other random passwords."""
        return _super_user(self.own[1].cluster) if len(self.own) > 1 else None


def _super_user(cluster: LocalCluster) -> SecuritySettings | None:
    if cluster.spec.security is None:
        return None
    client = cluster.client_config(style="quorumlog")
    client.pop("bootstrap_servers")
    return SecuritySettings(**client)


def check_clusters(settings: RunSettings, schedule: Schedule) -> None:
    """Raise InvalidArgument or ValueError if the run's own clusters cannot run, or be broken."""
    cluster = _planned(settings, None)
    back_end = None
    if find_workload(settings.workload).is_mirrored:
        target = _planned(settings, None, FIRST_TARGET_ID)
        back_end = _joined(settings, LocalProcesses(cluster), LocalProcesses(target))
    check_equipment(cluster, schedule, settings.network, back_end)


@contextmanager
def clusters_of(
    settings: RunSettings, schedule: Schedule, outside: BackEnd | None, progress: Progress
) -> Iterator[RunClusters]:
    """Start the clusters of a run, and stop them. `outside`: breaks a cluster of `--bootstrap`."""
    if settings.bootstrap is not None:
        yield RunClusters(bootstrap=settings.bootstrap, back_end=outside)
        return
    first_ids = {CLUSTER_DIRECTORY: FIRST_ID}
    if find_workload(settings.workload).is_mirrored:
        first_ids[TARGET_DIRECTORY] = FIRST_TARGET_ID
    progress("start", 0.0, f"{len(settings.shape.roles) * len(first_ids)} nodes")
    equipment = equipment_for(schedule, settings.network, forwards=settings.record_responses)
    with ExitStack() as stack:
        own = tuple(
            stack.enter_context(
                started(
                    _planned(settings, settings.out / directory, first_id),
                    equipment,
                    seed=schedule.seed,
                    topic=settings.topic if first_id == FIRST_ID else copy_of(settings.topic),
                )
            )
            for directory, first_id in first_ids.items()
        )
        bootstrap = own[0].cluster.bootstrap
        progress("start", 1.0, bootstrap)
        if len(own) == 1:
            yield RunClusters(bootstrap=bootstrap, back_end=own[0], own=own)
            return
        yield RunClusters(
            bootstrap=bootstrap,
            back_end=_joined(settings, *own),
            own=own,
            target=own[1].cluster.bootstrap,
        )


def _joined(settings: RunSettings, source: LocalProcesses, target: LocalProcesses) -> TwoClusters:
    return TwoClusters(source, target, copy=copy_of(settings.topic))


def _planned(
    settings: RunSettings, directory: Path | None, first_id: int = FIRST_ID
) -> LocalCluster:
    required = find_workload(settings.workload).security
    config = settings.config if required is None else {**required.config, **settings.config}
    return LocalCluster(
        directory,
        nodes=settings.shape.nodes,
        controllers=settings.shape.controllers,
        brokers=settings.shape.brokers,
        racks=settings.shape.racks,
        first_id=first_id,
        config=config,
        node_module=settings.node_module,
        **protection_of(settings.workload, settings.protection),
    )
