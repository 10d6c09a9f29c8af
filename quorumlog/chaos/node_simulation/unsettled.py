"""The reasons why a node is not settled, so that another node must not lose its memory."""

from quorumlog.broker.partitions.core.roles import Leader
from quorumlog.chaos.node_simulation.machine import Machine
from quorumlog.node.node import Node


def why_unsettled(machine: Machine) -> str:
    """Return the pending work of a node, or ""."""
    if machine.process is not None and not machine.process.runs:
        return "is paused"
    if machine.node is None:
        return ""
    if _has_uncommitted(machine.node):
        return "holds metadata that is not committed"
    if _proposes_an_isr(machine.node):
        return "proposes another ISR"
    return ""


def why_unsafe(machine: Machine) -> str:
    """Return why a node may soon lose data, or ""."""
    if machine.disk_faults.is_broken:
        return "may give up for its disk"
    if machine.disk_faults.has_lost_pages:
        return "will find less on its disk than it wrote"
    return ""


def view(node: Node) -> tuple[int, int, int]:
    """Return a node's quorum leader id, leader epoch and metadata log end offset."""
    quorum = node.quorum._quorum  # noqa: SLF001 - a simulator reads private state
    log = node.quorum._log  # noqa: SLF001 - as above
    return quorum.leader_id, quorum.leader_epoch, log.end_offset


def _has_uncommitted(node: Node) -> bool:
    log = node.quorum._log  # noqa: SLF001 - as above
    return log.end_offset > node.quorum.image.end_offset


def _proposes_an_isr(node: Node) -> bool:
    drivers = () if node.broker is None else node.broker.replicas.drivers.values()
    roles = [driver.partition.state.role for driver in drivers]
    return any(isinstance(role, Leader) and role.pending is not None for role in roles)
