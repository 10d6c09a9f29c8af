"""`quorumlog chaos list`: the lab's parts, and their requirements here."""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final

import typer

from quorumlog.chaos.listing import listing
from quorumlog.cli.options import Json, one_of
from quorumlog.cli.output import data, outcome

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
