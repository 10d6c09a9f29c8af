"""The lab's workloads, faults, drivers and so on, on this machine, as plain values."""

from typing import Any, Final

from quorumlog.chaos.back_ends.local_processes import LocalProcesses
from quorumlog.chaos.back_ends.registry import BACK_ENDS
from quorumlog.chaos.checkers.texts import TEXTS
from quorumlog.chaos.drivers.driver import CAPABILITIES
from quorumlog.chaos.drivers.registry import DRIVERS, DriverUnavailable, load_driver
from quorumlog.chaos.faults.fault import CLIENT, NODE_ROLES, StepFault
from quorumlog.chaos.faults.registry import STEP_FAULTS
from quorumlog.chaos.mutants import every_mutant
from quorumlog.chaos.network import namespaces
from quorumlog.chaos.node_simulation.target import SimulatedMachines
from quorumlog.chaos.workloads.registry import WORKLOADS
from quorumlog.extras import why_no_checks

_COMMANDED: Final = frozenset({"kill", "stop", "start", "pause", "resume"})


def listing() -> dict[str, Any]:
    """Return all of them; `why_not` is the reason why this machine lacks a fault."""
    return {
        "workloads": {
            name: {
                "what": workload.text,
                "options": workload.described_options(),
                "requires": sorted(workload.requires),  # capabilities of a driver
            }
            for name, workload in WORKLOADS.items()
        },
        "faults": [_fault(kind) for kind in STEP_FAULTS.values()],
        "roles": [*NODE_ROLES, CLIENT, "all"],
        "models": dict(TEXTS),
        "why_no_checks": why_no_checks(),  # "" if histories can be recorded and checked here
        "drivers": {name: _driver(name, text) for name, text in DRIVERS.items()},
        "capabilities": dict(CAPABILITIES),  # of drivers
        "back_ends": {
            LocalProcesses.name: LocalProcesses.text,
            "netns": _namespaces(),
            **{name: kind.text for name, kind in BACK_ENDS.items()},
        },
        "mutants": every_mutant(),
    }


def _fault(kind: type[StepFault]) -> dict[str, Any]:
    """Describe a fault. `available`: on the nodes that a run starts itself, on this machine."""
    reason = LocalProcesses.missing(kind)
    back_ends = []
    if not reason:
        back_ends.append("proxy" if kind.imposes else "processes")
    if kind.imposes and not LocalProcesses.missing(kind, "netns"):
        back_ends.append("netns")
    if not kind.imposes and kind.needs <= _COMMANDED:
        back_ends.append("commands")
    if kind.needs <= SimulatedMachines.operations and kind.imposes <= SimulatedMachines.effects:
        back_ends.append("simulation")
    return {
        "name": kind.name.replace("_", "-"),
        "what": kind.text,
        "roles": list(kind.targets),
        "backends": back_ends,
        "control": kind.is_control,
        "available": not reason,
        "why_not": reason,
    }


def _namespaces() -> str:
    text = "nodes of this machine in network namespaces, whose links the kernel cuts: needs root"
    reason = namespaces.why_not()
    return f"{text} (not here: {reason})" if reason else text


def _driver(name: str, text: str) -> dict[str, Any]:
    """Describe a driver. `can`: its capabilities; None if its library is not installed."""
    try:
        can = sorted(load_driver(name).capabilities)
    except DriverUnavailable:
        return {"what": text, "here": False, "can": None}
    return {"what": text, "here": True, "can": can}
