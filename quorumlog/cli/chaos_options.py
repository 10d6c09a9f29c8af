"""The options of `quorumlog chaos run`: their help and their legal values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from quorumlog.chaos.back_ends.local_processes import RUN_FAULTS
from quorumlog.chaos.drivers.registry import ADDED_DRIVERS, DRIVERS
from quorumlog.chaos.mutants import FOR_PROCESSES, every_mutant, mutant_module
from quorumlog.chaos.network.links import NetworkKind
from quorumlog.chaos.registered import AddedParts
from quorumlog.chaos.workloads.registry import ADDED_WORKLOADS, WORKLOADS
from quorumlog.cli.options import one_of

NO_FAULTS: Final = "none"


def _one_of(
    known: Mapping[str, Any], what: str, text: str, added: AddedParts[Any] | None = None
) -> Any:
    """Return an option that takes one of `known` or of `added`; others are usage errors."""
    return typer.Option(
        metavar="NAME",
        help=text,
        callback=one_of(known, what, added),
        autocompletion=lambda: [*known, *(added.names if added is not None else ())],
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
        f"Workload: {', '.join(WORKLOADS)}. Default: append_read, or the schedule's.",
        ADDED_WORKLOADS,
    ),
]
WorkloadOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Option of the workload (see chaos list); repeatable."),
]
Fault = Annotated[
    str | None,
    typer.Option(
        metavar="FAULT[:ROLE],...",
        help=f"Faults to inject: {', '.join(RUN_FAULTS)}; or {NO_FAULTS}. "
        "Default: kill; for idempotent_send also pause_kill and ack_kill.",
        autocompletion=lambda: [*RUN_FAULTS, NO_FAULTS],
    ),
]
Overlap = Annotated[
    bool, typer.Option("--overlap/--in-turn", help="Let faults overlap, or run them in turn.")
]
Duration = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="Duration of the faults: 30s, 2m. Default: 60s, or the schedule's."
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of the schedule and the workload.")]
Nodes = Annotated[int, typer.Option(metavar="N", help="Number of nodes of the new cluster.", min=1)]
Network = Annotated[
    NetworkKind, typer.Option(help="Cut links by forwarders, or by the kernel (needs root).")
]
RecordResponses = Annotated[
    bool,
    typer.Option(
        "--record-responses",
        help="Forward all traffic, and record the brokers' responses with errors.",
    ),
]
DriverName = Annotated[
    str, _one_of(DRIVERS, "driver", f"Client library: {', '.join(DRIVERS)}.", ADDED_DRIVERS)
]
Producer = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Setting of the producers of the driver client: acks=1 or enable.idempotence=false. "
        "Records are then lost or repeated, which the verdict finds. Repeatable.",
    ),
]
Bootstrap = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Run against this cluster instead of starting one."),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="TLS and SASL of all clients at --bootstrap, as properties of Java."
    ),
]
Control = Annotated[
    str | None,
    typer.Option(
        metavar="NAME:ARGUMENT",
        help="Faults' back end with --bootstrap, as commands:nodes.toml (see chaos list).",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Directory of history, verdict and report. Default: runs/<time>."
    ),
]
Rate = Annotated[
    float | None, typer.Option(metavar="N", help="Short for --workload-option rate=N.")
]
Partitions = Annotated[int, typer.Option(metavar="N", help="Partitions of the topic.", min=1)]
Replication = Annotated[int, typer.Option(metavar="N", help="Replicas of a partition.", min=1)]
ScheduleFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Read the faults from this file instead of deriving them from the seed.",
    ),
]
Config = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="NAME=VALUE", help="Setting of the nodes; repeatable."),
]
MinAcknowledged = Annotated[
    float,
    typer.Option(
        metavar="PERCENT",
        help="Verdict unknown, not valid, below this share of acknowledged load: for CI.",
        min=0,
        max=100,
    ),
]
AcksInFaults = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Extend drawn faults, to 3 times the duration at most, until so many "
        "acknowledgements lie among them. Default: a tenth of the offered operations.",
        min=0,
    ),
]
MutantName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"Run nodes with a planted bug: {', '.join(FOR_PROCESSES)}, or one of docs/recall.md.",
        callback=_check_mutant,
        autocompletion=lambda: [*every_mutant()],
    ),
]
NodeModule = Annotated[
    str | None, typer.Option(metavar="MODULE", help="Python module to run as each node.")
]
