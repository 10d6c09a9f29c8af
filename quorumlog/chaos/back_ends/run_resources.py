"""The equipment with which a run's cluster is started for its faults: links and shims."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from quorumlog.chaos.back_ends.back_end import BackEnd, check_schedule
from quorumlog.chaos.back_ends.local_processes import ORDERS, LocalProcesses
from quorumlog.chaos.faults.fault import StepFault
from quorumlog.chaos.network import namespaces
from quorumlog.chaos.network.link_proxy import LinkProxy
from quorumlog.chaos.network.links import Links, LinksFailed, NetworkKind
from quorumlog.chaos.network.namespaces import Namespaces
from quorumlog.chaos.network.routes import detours, plan_routes
from quorumlog.chaos.schedule import Schedule
from quorumlog.chaos.shim.shim import Shim, ShimFailed
from quorumlog.cluster import ClusterError, LocalCluster, layout
from quorumlog.cluster.processes import Launch

_SHIM_DIRECTORY: Final = "broken-calls"  # in the cluster's directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """The equipment that a cluster must be started with, so that its faults can be injected.

    links: a `network` of this kind can cut its connections. shim: its disks and clocks can be
    broken.
    """

    links: bool = False
    network: NetworkKind = "proxy"
    shim: bool = False


def equipment_for(schedule: Schedule, network: NetworkKind, *, forwards: bool = False) -> Equipment:
    """Return the equipment that the faults of a schedule need.

    `forwards`: all traffic passes through forwarders, also if no fault needs them.
    """
    faults = [one.fault for one in schedule.actions if isinstance(one.fault, StepFault)]
    return Equipment(
        links=forwards or network == "netns" or any(fault.imposes for fault in faults),
        network=network,
        shim=any(fault.needs & ORDERS.keys() for fault in faults),
    )


def check_equipment(
    cluster: LocalCluster, schedule: Schedule, network: NetworkKind, back_end: BackEnd | None = None
) -> None:
    """Raise InvalidArgument or ValueError if the cluster or its faults cannot run here.

    back_end: breaks the cluster beside others.
    """
    cluster.check()
    if network == "netns" and cluster.spec.security is not None:
        raise ValueError("--network netns: a secured cluster is on loopback; use --network proxy")
    if network == "netns" and (reason := namespaces.why_not()):
        raise ValueError(f"--network netns: {reason}")
    check_schedule(schedule, back_end or LocalProcesses(cluster, network=network))


@contextmanager
def started(
    cluster: LocalCluster, equipment: Equipment, *, seed: int = 0, topic: str = "chaos"
) -> Iterator[LocalProcesses]:
    """Start a cluster with its equipment, and stop it. Raises ClusterError."""
    with ExitStack() as stack:
        try:
            links: Links | None = None
            spaces = shim = None
            if equipment.links and equipment.network == "netns":
                links = spaces = stack.enter_context(Namespaces(cluster.nodes))
                cluster.take_detours(spaces.detours())
            elif equipment.links:
                routes = plan_routes(cluster.nodes)
                links = stack.enter_context(LinkProxy(routes, seed=seed))
                cluster.take_detours(detours(routes, cluster.nodes))
            if equipment.shim or cluster.is_breakable:
                shim = stack.enter_context(shim_of(cluster))
            launch_with(cluster, shim, spaces)
            stack.enter_context(cluster)
        except (LinksFailed, ShimFailed) as error:
            raise ClusterError(str(error)) from error
        yield LocalProcesses(cluster, links, shim, network=equipment.network, topic=topic)


def launch_with(
    cluster: LocalCluster, shim: Shim | None, spaces: Namespaces | None = None
) -> dict[int, Mapping[str, str]]:
    """Launch the nodes with a shim, in their namespaces; return their environments, by id."""
    environments: dict[int, Mapping[str, str]] = {}
    for node in cluster.nodes:
        environments[node.id] = {} if shim is None else shim.environment(node.id)
        prefix = () if spaces is None else spaces.prefix(node.id)
        cluster.launch_by(node.id, Launch(prefix=prefix, environment=environments[node.id]))
    return environments


def shim_of(cluster: LocalCluster) -> Shim:
    """Return the shim of the nodes of a cluster; a context manager."""
    roots = {node.id: layout.data_directory(cluster.directory, node.id) for node in cluster.nodes}
    return Shim(cluster.directory / _SHIM_DIRECTORY, roots)
