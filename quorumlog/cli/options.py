"""Options that several commands have, with the values that a shell completes."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from quorumlog.cli.output import EXIT_USAGE, fail

if TYPE_CHECKING:
    from quorumlog.chaos.registered import AddedParts


def parse_duration_ms(text: str) -> int:
    """Read `500ms`, `30s`, `2m` or a plain number of seconds; else end with a usage error."""
    units = {"ms": 1, "s": 1000, "m": 60_000, "": 1000}
    number = text.rstrip("ms")
    unit = text.removeprefix(number)
    try:
        duration_ms = float(number) * units[unit]
    except (ValueError, KeyError):
        fail(f"{text!r} is not a duration; write 30s, 500ms or 2m", EXIT_USAGE)
    if duration_ms <= 0:
        fail(f"{text!r} is not a duration: it must be positive", EXIT_USAGE)
    return int(duration_ms)


DEFAULT_DIR: Final = Path("quorumlog-data")


class PlainCommand(TyperCommand):
    """A command whose usage shows a required argument without braces: NAME, not {NAME}."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """See click."""
        pieces = super().collect_usage_pieces(ctx)
        return [re.sub(r"^\{(.+)\}(\.\.\.)?$", r"\1\2", piece) for piece in pieces]


def command_group(text: str) -> typer.Typer:
    """Return an empty group of commands; without a command, it prints its help."""
    return typer.Typer(help=text, no_args_is_help=True, subcommand_metavar="COMMAND")


def one_of(
    known: Mapping[str, Any], noun: str, added: "AddedParts[Any] | None" = None
) -> Callable[[str | None], str | None]:
    """Return a callback that takes one of `known` or of `added`; others are usage errors."""

    def check(value: str | None) -> str | None:
        from quorumlog.chaos.registered import registered

        if value is not None:
            try:
                registered(known, value, noun, added)
            except ValueError as error:
                raise typer.BadParameter(str(error)) from error
        return value

    return check


def _node_ids(ctx: typer.Context) -> list[str]:
    from quorumlog.cluster import ClusterError, layout

    directory = Path(str(ctx.params.get("directory") or DEFAULT_DIR))
    try:
        return [str(node.id) for node in layout.load(directory).nodes]
    except (ClusterError, OSError):
        return []


def _setting_names(incomplete: str) -> list[str]:
    from quorumlog.node.config import known_names

    return [f"{name}=" for name in known_names() if name.startswith(incomplete)]


Dir = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Directory of the cluster.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, errors too.")]
Internal = Annotated[bool, typer.Option("--internal", help="Show internal topics too.")]
Controllers = Annotated[
    int | None,
    typer.Option(
        metavar="C", min=1, help="Number of nodes with only the role controller; needs --brokers."
    ),
]
Brokers = Annotated[
    int | None,
    typer.Option(
        metavar="B", min=1, help="Number of nodes with only the role broker; needs --controllers."
    ),
]
Racks = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,C",
        help="Racks of a new cluster: the brokers are spread over them in order, and replicas over "
        "racks. Faults hit a whole rack (kill:rack).",
    ),
]
NodeSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="NAME=VALUE",
        help="Setting of all nodes, by Kafka's name; NAME= resets it. Repeatable.",
        autocompletion=_setting_names,
    ),
]
TopicSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--config", metavar="NAME=VALUE", help="Setting of the topic, by Kafka's name. Repeatable."
    ),
]
NodeId = Annotated[
    int, typer.Argument(metavar="ID", help="Id of the node.", autocompletion=_node_ids)
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
