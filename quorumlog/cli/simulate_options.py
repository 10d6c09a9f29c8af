"""The options of `quorumlog simulate`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from quorumlog.chaos.simulation import WORLDS
from quorumlog.chaos.workloads.registry import WORKLOADS
from quorumlog.cli.options import PlainCommand
from quorumlog.cli.output import EXIT_USAGE, one_line_errors
from quorumlog.cluster import ClusterShape, InvalidArgument
from quorumlog.cluster.shape import read_racks

NODES: Final = "nodes"
SUBJECTS: Final = {kind.name: kind.text for kind in WORLDS.values()} | {
    NODES: "whole nodes and the real client, checked by the clients' history"
}
_SUBJECT_HELP: Final = "Subject of the simulation: " + "; ".join(
    f"{name}, {text}" for name, text in SUBJECTS.items()
)
SEEDS: Final = 200
DURATION: Final = "60s"
SEEDS_OF_NODES: Final = 20
DURATION_OF_NODES: Final = "12s"
OF_NODES: Final = (
    "--controllers", "--brokers", "--racks", "--workload", "--workload-option", "--partitions",
    "--any-power-loss", "--config",
)  # fmt: skip
_ONLY_NODES: Final = "only with whole nodes"
_SHRINK: Final = "--shrink"

Subject = Annotated[
    str,
    typer.Argument(metavar="SUBJECT", help=_SUBJECT_HELP, autocompletion=lambda: list(SUBJECTS)),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help=f"Number of seeds, from 0 on ({SEEDS}; {SEEDS_OF_NODES} of whole nodes).",
        min=1,
    ),
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Run only this seed.")]
Duration = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help=f"Simulated time of each seed ({DURATION}; {DURATION_OF_NODES} of whole nodes).",
    ),
]
World = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Same as the argument.", autocompletion=lambda: list(SUBJECTS)
    ),
]
NodeCount = Annotated[
    int, typer.Option(metavar="N", help="Number of voters, or of brokers.", min=1, max=9)
]
Controllers = Annotated[
    int | None,
    typer.Option(
        metavar="C",
        min=1,
        help=f"Nodes with only the role controller, with --brokers; {_ONLY_NODES}.",
    ),
]
Brokers = Annotated[
    int | None,
    typer.Option(
        metavar="B",
        min=1,
        help=f"Nodes with only the role broker, with --controllers; {_ONLY_NODES}.",
    ),
]
Racks = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,C",
        help=f"Racks of the nodes; some faults then hit a whole rack; {_ONLY_NODES}.",
    ),
]
Faults = Annotated[
    str | None,
    typer.Option(metavar="FAULT[,FAULT]", help="Only these faults; a wrong name lists all faults."),
]
Mutant = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Plant a bug that a rule must find; a wrong name lists all mutants.",
        autocompletion=lambda: [name for kind in WORLDS.values() for name in kind.mutants],
    ),
]
ScheduleFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Replay the world, seed, options and faults of this file."),
]
Shrink = Annotated[
    str | None,
    typer.Option(
        _SHRINK,
        metavar="[FILE]",
        help="Write the smallest failing schedule to this file, or to shrunk-SEED.json.",
    ),
]
Workload = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"Workload of the clients: {', '.join(WORKLOADS)} (append_read); {_ONLY_NODES}.",
        autocompletion=lambda: list(WORKLOADS),
    ),
]
WorkloadOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help=f"Option of the workload; {_ONLY_NODES}."),
]
Partitions = Annotated[
    int | None,
    typer.Option(metavar="N", help=f"Partitions of the topic (2); {_ONLY_NODES}.", min=1),
]
AnyPowerLoss = Annotated[
    bool,
    typer.Option(
        "--any-power-loss",
        help=f"Lose power also where records may be lost (a control); {_ONLY_NODES}.",
    ),
]
Config = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help=f"Setting of the nodes; {_ONLY_NODES}."),
]


class ShrinkNeedsNoFile(PlainCommand):
    """A command whose option --shrink may have no file: its value is then ""."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See click."""
        return super().parse_args(ctx, _with_value(args))


def _with_value(arguments: Sequence[str]) -> list[str]:
    """Give --shrink an empty value where no file follows (a subject is not a file)."""
    given: list[str] = []
    for place, argument in enumerate(arguments):
        following = arguments[place + 1 : place + 2]
        no_file = not following or following[0].startswith("-") or following[0] in SUBJECTS
        is_bare = argument == _SHRINK and no_file
        given.append(f"{_SHRINK}=" if is_bare else argument)
    return given


def shape(
    nodes: int, controllers: int | None, brokers: int | None, racks: str | None
) -> ClusterShape:
    """Return the nodes of each role and the racks; end with a usage error if they are invalid."""
    with one_line_errors(InvalidArgument, status=EXIT_USAGE):
        return ClusterShape(nodes, controllers, brokers, read_racks(racks))


def shrunk_file(given: str, seed: int) -> Path:
    """Return the file that --shrink writes."""
    return Path(given or f"shrunk-{seed}.json")
