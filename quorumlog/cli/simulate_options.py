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

NODES: Final = "nodes"
SUBJECTS: Final = {kind.name: kind.text for kind in WORLDS.values()} | {
    NODES: "whole nodes and the real client, by what clients see"
}
_SUBJECT_HELP: Final = "What is simulated: " + "; ".join(
    f"{name}, {text}" for name, text in SUBJECTS.items()
)
SEEDS: Final = 200
DURATION: Final = "60s"
SEEDS_OF_NODES: Final = 20
DURATION_OF_NODES: Final = "12s"
OF_NODES: Final = (
    "--controllers", "--brokers", "--workload", "--workload-option", "--partitions",
    "--any-power-loss", "--config",
)  # fmt: skip
_ONLY_NODES: Final = "only for whole nodes"
_SHRINK: Final = "--shrink"

Subject = Annotated[
    str,
    typer.Argument(metavar="SUBJECT", help=_SUBJECT_HELP, autocompletion=lambda: list(SUBJECTS)),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help=f"How many seeds, from 0 on ({SEEDS}; {SEEDS_OF_NODES} of whole nodes).",
        min=1,
    ),
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Run this one seed only.")]
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
        metavar="NAME",
        help="The same as the argument.",
        autocompletion=lambda: list(SUBJECTS),
    ),
]
NodeCount = Annotated[int, typer.Option(metavar="N", help="Voters, or brokers.", min=1, max=9)]
Controllers = Annotated[
    int | None,
    typer.Option(
        metavar="C", min=1, help=f"With --brokers: nodes that are controllers only; {_ONLY_NODES}."
    ),
]
Brokers = Annotated[
    int | None,
    typer.Option(
        metavar="B", min=1, help=f"With --controllers: nodes that are brokers only; {_ONLY_NODES}."
    ),
]
Faults = Annotated[
    str | None,
    typer.Option(metavar="FAULT[,FAULT]", help="Only these; a wrong name shows them all."),
]
Mutant = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Break one rule of the world, to see it found; a wrong name shows them all.",
        autocompletion=lambda: [name for kind in WORLDS.values() for name in kind.mutants],
    ),
]
ScheduleFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Replay this file: its world, seed, options, faults."),
]
Shrink = Annotated[
    str | None,
    typer.Option(
        _SHRINK,
        metavar="[FILE]",
        help="Write the smallest schedule that fails here, or to shrunk-SEED.json.",
    ),
]
Workload = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"What clients do: {', '.join(WORKLOADS)} (append_read); {_ONLY_NODES}.",
        autocompletion=lambda: list(WORKLOADS),
    ),
]
WorkloadOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help=f"An option of the workload; {_ONLY_NODES}."),
]
Partitions = Annotated[
    int | None,
    typer.Option(metavar="N", help=f"Partitions of the topic (2); {_ONLY_NODES}.", min=1),
]
AnyPowerLoss = Annotated[
    bool,
    typer.Option(
        "--any-power-loss",
        help=f"Lose power also where that may lose records: a control that fails; {_ONLY_NODES}.",
    ),
]
Config = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help=f"A setting of the nodes; {_ONLY_NODES}."),
]


class ShrinkNeedsNoFile(PlainCommand):
    """A command whose option --shrink may stand without a file: its value is "" then."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See click."""
        return super().parse_args(ctx, _with_value(args))


def _with_value(arguments: Sequence[str]) -> list[str]:
    """Give --shrink an empty value where no file follows: a subject is none."""
    given: list[str] = []
    for place, argument in enumerate(arguments):
        following = arguments[place + 1 : place + 2]
        no_file = not following or following[0].startswith("-") or following[0] in SUBJECTS
        is_bare = argument == _SHRINK and no_file
        given.append(f"{_SHRINK}=" if is_bare else argument)
    return given


def shape(nodes: int, controllers: int | None, brokers: int | None) -> ClusterShape:
    """Return how many nodes of which roles there are; end with a usage error if none can be."""
    with one_line_errors(InvalidArgument, status=EXIT_USAGE):
        return ClusterShape(nodes, controllers, brokers)


def shrunk_file(given: str, seed: int) -> Path:
    """Return the file that --shrink writes."""
    return Path(given or f"shrunk-{seed}.json")
