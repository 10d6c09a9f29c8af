"""`quorumlog configs`: describe and alter settings of topics, brokers, groups, subscriptions."""

from typing import Annotated, Any, Final, Literal

import typer

from quorumlog.cli.connect import Cluster, cluster_command
from quorumlog.cli.options import command_group
from quorumlog.cli.output import EXIT_USAGE, fail, parse_settings, table

app = command_group("Show and change settings of topics, brokers and consumer groups.")

Kind = Annotated[
    Literal["topic", "broker", "group", "client_metrics"],
    typer.Argument(
        metavar="topic|broker|group|client_metrics",
        help="Kind of the resource. client_metrics: a subscription to metrics that clients report.",
    ),
]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Name of the topic, group or subscription; id of the broker, '' for all brokers.",
    ),
]
Changes = list[str] | None

OF_THE_TOPIC: Final = 1  # set for this topic, not inherited from the brokers
SOURCES: Final = {  # KIP-226
    OF_THE_TOPIC: "topic",
    2: "broker, dynamic",
    3: "all brokers, dynamic",
    4: "broker, at start",
    5: "default",
    7: "client metrics",
    8: "group",
}


@cluster_command(app)
def describe(cluster: Cluster, kind: Kind, name: Name) -> None:
    """Show all settings, with the source of each value.

    \b
    Examples:
      quorumlog configs describe topic orders
      quorumlog configs describe broker 1 --json
      quorumlog configs describe group readers
    """
    found = cluster.ask(lambda admin: admin.describe_configs(kind, name))
    settings = [
        {
            "name": setting,
            "value": None if one.is_sensitive else one.value,
            "source": SOURCES.get(one.source, str(one.source)),
            "read_only": one.is_read_only,
            "sensitive": one.is_sensitive,
        }
        for setting, one in sorted(found.items())
    ]
    rows = [(one["name"], one["value"], one["source"]) for one in settings]
    nothing = f"{_named(kind, name)}: every setting has its default"
    lines = table(("NAME", "VALUE", "FROM"), rows)
    described = {"kind": kind, "name": name, "configs": settings}
    cluster.outcome(described, *lines, empty=nothing)


@cluster_command(app)
def alter(
    cluster: Cluster,
    kind: Kind,
    name: Name,
    values: Annotated[
        Changes, typer.Option("--set", metavar="NAME=VALUE", help="Set a value. Repeatable.")
    ] = None,
    delete: Annotated[
        Changes, typer.Option(metavar="NAME", help="Reset a setting to its default. Repeatable.")
    ] = None,
    append: Annotated[
        Changes, typer.Option(metavar="NAME=VALUE", help="Add to a list setting. Repeatable.")
    ] = None,
    subtract: Annotated[
        Changes, typer.Option(metavar="NAME=VALUE", help="Remove from a list setting. Repeatable.")
    ] = None,
) -> None:
    """Change the named settings; the others stay.

    The command makes all of the changes, or none.

    \b
    Examples:
      quorumlog configs alter topic orders --set retention.ms=3600000 --delete segment.ms
      quorumlog configs alter topic orders --append cleanup.policy=compact
      quorumlog configs alter broker '' --set log.retention.ms=3600000
      quorumlog configs alter group readers --set consumer.session.timeout.ms=60000
      quorumlog configs alter client_metrics all --set 'metrics=*' --set interval.ms=5000
    """
    if not (values or delete or append or subtract):
        fail("nothing to change: give --set, --delete, --append or --subtract", EXIT_USAGE)
    changes: dict[str, Any] = {
        "values": parse_settings(values or [], "--set"),
        "delete": delete or [],
        "append": parse_settings(append or [], "--append"),
        "subtract": parse_settings(subtract or [], "--subtract"),
    }
    cluster.ask(lambda admin: admin.alter_configs(kind, name, **changes))
    altered = {"kind": kind, "name": name, "altered": True}
    cluster.outcome(altered, f"altered {_named(kind, name)}")


def _named(kind: str, name: str) -> str:
    return f"{kind} {name}" if name else "all brokers"
