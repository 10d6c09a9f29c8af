"""`quorumlog chaos list`: the lab's parts, and their requirements here."""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final

import typer

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
from quorumlog.cli.options import Json, one_of
from quorumlog.cli.output import data, outcome
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


_Described = Mapping[str, Any]


def _workloads(described: _Described) -> Iterator[str]:
    for name, workload in described["workloads"].items():
        needs = f"  (needs {', '.join(workload['requires'])})" if workload["requires"] else ""
        yield f"{name:25} {workload['what']}{needs}"
        for option, text in workload["options"].items():
            yield f"  {option:16} {text}"


def _faults(described: _Described) -> Iterator[str]:
    for fault in described["faults"]:
        yield f"{fault['name']:18} {fault['what']}"
        if not fault["available"]:
            yield f"{'':18} not here: {fault['why_not']}"


def _models(described: _Described) -> Iterator[str]:
    if described["why_no_checks"]:
        yield f"not here: {described['why_no_checks']}"
    yield from _texts(described["models"])


def _drivers(described: _Described) -> Iterator[str]:
    for name, driver in described["drivers"].items():
        yield f"{name:18} {driver['what']}  ({_abilities(driver)})"


def _abilities(driver: Mapping[str, Any]) -> str:
    return ", ".join(driver["can"]) or "sends and reads only" if driver["here"] else "not installed"


def _texts(texts: Mapping[str, str]) -> Iterator[str]:
    for name, text in texts.items():
        yield f"{name:18} {text}"


_KINDS: Final[Mapping[str, Callable[[_Described], Iterator[str]]]] = {
    "workloads": _workloads,
    "faults": _faults,
    "back-ends": lambda described: _texts(described["back_ends"]),
    "models": _models,
    "mutants": lambda described: _texts(described["mutants"]),
    "drivers": _drivers,
    "capabilities": lambda described: _texts(described["capabilities"]),
    "roles": lambda described: iter([", ".join(described["roles"])]),
}
_TITLES: Final = {"capabilities": "capabilities of drivers, beside sending and reading"}


def list_command(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help=f"One of {', '.join(_KINDS)}; default: all.",
            callback=one_of(_KINDS, "kind"),
            autocompletion=lambda: list(_KINDS),
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List workloads, faults, drivers, mutants; missing requirements.

    \b
      quorumlog chaos list
      quorumlog chaos list faults
    """
    described = listing()
    if kind is not None:
        key = kind.replace("-", "_")
        outcome({key: described[key]}, *_KINDS[kind](described), json=json)
        return
    if json:
        outcome(described, json=True)
        return
    for name, lines_of in _KINDS.items():
        data(_TITLES.get(name, name.replace("-", " ")))
        for line in lines_of(described):
            data(f"  {line}")
