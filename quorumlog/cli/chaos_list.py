"""`quorumlog chaos list`: the lab's parts, and their requirements here."""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, TypeVar

import typer

from quorumlog.chaos.back_ends.local_processes import LocalProcesses
from quorumlog.chaos.back_ends.registry import BACK_ENDS
from quorumlog.chaos.checkers.texts import TEXTS
from quorumlog.chaos.drivers.driver import CAPABILITIES, AnyDriver
from quorumlog.chaos.drivers.registry import ADDED_DRIVERS, DRIVERS, DriverUnavailable, load_driver
from quorumlog.chaos.faults.fault import CLIENT, NODE_ROLES, RACK, StepFault
from quorumlog.chaos.faults.registry import ADDED_FAULTS, STEP_FAULTS
from quorumlog.chaos.mutants import every_mutant
from quorumlog.chaos.network import namespaces
from quorumlog.chaos.registered import AddedParts
from quorumlog.chaos.workloads.registry import ADDED_WORKLOADS, WORKLOADS
from quorumlog.chaos.workloads.workload import Workload
from quorumlog.cli.options import Json, one_of
from quorumlog.cli.output import data, outcome
from quorumlog.extras import why_no_checks

T = TypeVar("T")
_COMMANDED: Final = frozenset({"kill", "stop", "start", "pause", "resume"})


def listing() -> dict[str, Any]:
    """Return all of them; `why_not` is the reason why this machine lacks a fault."""
    return {
        "workloads": {name: _workload(one) for name, one in WORKLOADS.items()}
        | dict(_added(ADDED_WORKLOADS, _workload)),
        "faults": [_fault(kind) for kind in STEP_FAULTS.values()]
        + [part for _, part in _added(ADDED_FAULTS, _fault)],
        "roles": [*NODE_ROLES, f"{RACK}:NAME", CLIENT, "all"],
        "models": dict(TEXTS) | _added_models(),
        "why_no_checks": why_no_checks(),  # "" if histories can be recorded and checked here
        "drivers": {name: _driver(name, text) for name, text in DRIVERS.items()}
        | dict(_added(ADDED_DRIVERS, _added_driver)),
        "capabilities": dict(CAPABILITIES),  # of drivers
        "back_ends": {
            LocalProcesses.name: LocalProcesses.text,
            "netns": _namespaces(),
            **{name: kind.text for name, kind in BACK_ENDS.items()},
        },
        "mutants": every_mutant(),
    }


def _added(
    parts: AddedParts[T], described: Callable[[T], dict[str, Any]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the parts that other packages add, each with its `origin`.

    A part that cannot be used has its name and the reason alone.
    """
    for name, (origin, part, why_not) in parts.listed().items():
        if part is None:
            yield name, {"name": name, "origin": origin, "available": False, "why_not": why_not}
        else:
            yield name, {**described(part), "origin": origin}


def _added_models() -> dict[str, str]:
    """Return the models of other packages; this needs the libraries of the checks."""
    if why_no_checks():
        return {}
    from quorumlog.chaos.checkers.registry import ADDED_MODELS

    found = ADDED_MODELS.listed().items()
    return {
        name: f"{why_not or (part.text if part is not None else '')}  (of {origin})"
        for name, (origin, part, why_not) in found
    }


def _added_driver(driver: AnyDriver) -> dict[str, Any]:
    text = (type(driver).__doc__ or "").strip().partition("\n")[0]
    return {"what": text, "here": True, "can": sorted(driver.capabilities)}


def _workload(workload: Workload[Any]) -> dict[str, Any]:
    return {
        "what": workload.text,
        "options": workload.described_options(),
        "requires": sorted(workload.requires),  # capabilities of a driver
    }


def _fault(kind: type[StepFault]) -> dict[str, Any]:
    """Describe a fault. `available`: on the nodes that a run starts itself, on this machine."""
    from quorumlog.chaos.node_simulation.target import SimulatedMachines  # loads a whole node

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
        if "what" not in workload:
            yield f"{name:25} {_unusable(workload)}"
            continue
        needs = f"  (needs {', '.join(workload['requires'])})" if workload["requires"] else ""
        yield f"{name:25} {workload['what']}{needs}{_of(workload)}"
        for option, text in workload["options"].items():
            yield f"  {option:16} {text}"


def _faults(described: _Described) -> Iterator[str]:
    for fault in described["faults"]:
        if "what" not in fault:
            yield f"{fault['name']:18} {_unusable(fault)}"
            continue
        yield f"{fault['name']:18} {fault['what']}{_of(fault)}"
        if not fault["available"]:
            yield f"{'':18} not here: {fault['why_not']}"


def _models(described: _Described) -> Iterator[str]:
    if described["why_no_checks"]:
        yield f"not here: {described['why_no_checks']}"
    yield from _texts(described["models"])


def _drivers(described: _Described) -> Iterator[str]:
    for name, driver in described["drivers"].items():
        if "what" not in driver:
            yield f"{name:18} {_unusable(driver)}"
            continue
        yield f"{name:18} {driver['what']}  ({_abilities(driver)}){_of(driver)}"


def _of(part: _Described) -> str:
    """Return the package that adds a part, or "" for a part of the lab."""
    return f"  (of {part['origin']})" if "origin" in part else ""


def _unusable(part: _Described) -> str:
    return f"cannot be used: {part['why_not']}"


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
