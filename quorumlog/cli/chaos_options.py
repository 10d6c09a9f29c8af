"""The options of `quorumlog chaos run`: their help and their legal values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from quorumlog.chaos.back_ends.local_processes import RUN_FAULTS
from quorumlog.chaos.drivers.registry import DRIVERS
from quorumlog.chaos.mutants import MUTANTS, every_mutant, mutant_module
from quorumlog.chaos.network.links import NetworkKind
from quorumlog.chaos.workloads.registry import WORKLOADS
from quorumlog.cli.options import one_of

NO_FAULTS: Final = "none"


def _one_of(known: Mapping[str, object], what: str, text: str) -> Any:
    """Return an option that takes one of `known`, and refuses any other value as a usage error."""
    return typer.Option(
        metavar="NAME", help=text, callback=one_of(known, what), autocompletion=lambda: list(known)
    )


def _check_mutant(name: str | None) -> str | None:
    if name is not None:
        try:
            mutant_module(name)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    return name


Workload = Annotated[
    str | None,
    _one_of(
        WORKLOADS,
        "workload",
        f"What clients do: {', '.join(WORKLOADS)}. Default: append_read, or the schedule's.",
    ),
]
WorkloadOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="An option of the workload (see chaos list); repeat."),
]
Fault = Annotated[
    str,
    typer.Option(
        metavar="FAULT[:ROLE],...",
        help=f"What breaks: {', '.join(RUN_FAULTS)}; or {NO_FAULTS}.",
        autocompletion=lambda: [*RUN_FAULTS, NO_FAULTS],
    ),
]
Overlap = Annotated[
    bool, typer.Option("--overlap/--in-turn", help="Whether a fault may begin while others last.")
]
Duration = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="How long faults go on: 30s, 2m. Default: 60s, or the schedule's."
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Decides schedule and workload.")]
Nodes = Annotated[
    int, typer.Option(metavar="N", help="Nodes of the cluster that is started.", min=1)
]
Network = Annotated[
    NetworkKind,
    typer.Option(help="How links are cut: by forwarders, or by the kernel, which needs root."),
]
DriverName = Annotated[str, _one_of(DRIVERS, "driver", f"Client library: {', '.join(DRIVERS)}.")]
Bootstrap = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Run against this cluster instead of starting one."),
]
Control = Annotated[
    str | None,
    typer.Option(
        metavar="NAME:ARGUMENT",
        help="How to break the cluster of --bootstrap, as commands:nodes.toml (see chaos list).",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="For history, verdict and report; else runs/<time>."),
]
Rate = Annotated[
    float | None, typer.Option(metavar="N", help="Short for --workload-option rate=N.")
]
Partitions = Annotated[int, typer.Option(metavar="N", help="Partitions of the topic.", min=1)]
Replication = Annotated[int, typer.Option(metavar="N", help="Replicas of a partition.", min=1)]
ScheduleFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Take the faults from this file, not from the seed."),
]
Config = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="NAME=VALUE", help="A setting of the nodes; repeat."),
]
MinAcknowledged = Annotated[
    float,
    typer.Option(
        metavar="PERCENT",
        help="Unknown, not valid, if the cluster acknowledges less of what is offered: for CI.",
        min=0,
        max=100,
    ),
]
MutantName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"Plant a bug, to see it found: {', '.join(MUTANTS)}, or one of docs/recall.md.",
        callback=_check_mutant,
        autocompletion=lambda: [*every_mutant()],
    ),
]
NodeModule = Annotated[
    str | None, typer.Option(metavar="MODULE", help="A Python module of yours, run as each node.")
]
