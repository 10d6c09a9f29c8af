"""`quorumlog quotas`: describe and alter."""

from typing import Annotated

import typer

from quorumlog.cli.connect import Cluster, cluster_command
from quorumlog.cli.options import command_group
from quorumlog.cli.output import EXIT_USAGE, fail, parse_settings, table

app = command_group("Show and change quotas of clients. Each broker enforces them.")

Entity = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TYPE=NAME",
        help="user=NAME, client-id=NAME or ip=ADDRESS; TYPE=: the default entity. Repeatable.",
    ),
]


@cluster_command(app)
def describe(
    cluster: Cluster,
    entity: Entity = None,
    any_of: Annotated[
        list[str] | None,
        typer.Option("--any", metavar="TYPE", help="Match any name of this type. Repeatable."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Match only entities without other types.")
    ] = False,
) -> None:
    """Show the quotas that match all of the options.

    \b
    Examples:
      quorumlog quotas describe
      quorumlog quotas describe --entity user=alice --any client-id
    """
    named, types = _entity(entity), any_of or []
    found = cluster.ask(
        lambda admin: admin.describe_client_quotas(named, any_of=types, strict=strict)
    )
    quotas = [{"entity": dict(one.entity), "values": dict(one.values)} for one in found]
    rows = [
        (_entity_text(dict(one.entity)), key, f"{value:g}" if value % 1 else int(value))
        for one in found
        for key, value in one.values.items()
    ]
    lines = table(("ENTITY", "QUOTA", "VALUE"), rows)
    cluster.outcome({"quotas": quotas}, *lines, empty="no quotas")


@cluster_command(app)
def alter(
    cluster: Cluster,
    entity: Entity = None,
    values: Annotated[
        list[str] | None, typer.Option("--set", metavar="QUOTA=NUMBER", help="Repeatable.")
    ] = None,
    delete: Annotated[
        list[str] | None, typer.Option(metavar="QUOTA", help="Delete a quota. Repeatable.")
    ] = None,
) -> None:
    """Set and delete quotas of one entity, all of them or none.

    The other quotas stay. They hold on each broker as soon as it has the change.

    \b
    Examples:
      quorumlog quotas alter --entity user=alice --set producer_byte_rate=1048576
      quorumlog quotas alter --entity user= --entity client-id=app --delete request_percentage
    """
    named = _entity(entity)
    if not named:
        fail("no entity is given: add --entity TYPE=NAME", EXIT_USAGE)
    if not (values or delete):
        fail("nothing to change: give --set or --delete", EXIT_USAGE)
    numbers = {
        key: _number(key, text) for key, text in parse_settings(values or [], "--set").items()
    }
    cluster.ask(lambda admin: admin.alter_client_quotas(named, numbers, delete=delete or []))
    cluster.outcome({"entity": named, "altered": True}, f"altered {_entity_text(named)}")


def _entity(texts: list[str] | None) -> dict[str, str | None]:
    return {kind: name or None for kind, name in parse_settings(texts or [], "--entity").items()}


def _entity_text(entity: dict[str, str | None]) -> str:
    return " ".join(f"{kind}={name or '(default)'}" for kind, name in entity.items())


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        fail(f"--set {key}={text}: the value must be a number", EXIT_USAGE)
