"""`quorumlog groups`: list, describe, lag, reset-offsets, delete."""

from typing import Annotated, Any, Final

import typer

from quorumlog.cli.cluster_commands import DEFAULT_DIR, Dir, Json
from quorumlog.cli.connect import Bootstrap, resolve, run
from quorumlog.cli.group_offsets import decide_reset, lag_rows
from quorumlog.cli.offset_resets import Reset, parse_datetime_ms, parse_topic
from quorumlog.cli.output import EXIT_FAILED, EXIT_USAGE, data, document, fail, say
from quorumlog.cli.table import table
from quorumlog.client import Admin

app = typer.Typer(help="Show groups and their lag, move them, delete them.", no_args_is_help=True)

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group.")]
NO_GROUP: Final = "Dead"  # how a coordinator describes a group that it does not have


@app.command(name="list")
def list_groups(
    bootstrap: Bootstrap = None, directory: Dir = DEFAULT_DIR, json: Json = False
) -> None:
    """List all groups with their states."""
    addresses = resolve(bootstrap, directory)

    async def work() -> list[dict[str, str]]:
        async with Admin(addresses) as admin:
            return [
                {"group": one.group_id, "state": one.state, "protocol_type": one.protocol_type}
                for one in await admin.list_consumer_groups()
            ]

    found = run(work())
    if json:
        document({"groups": found})
        return
    rows = [(one["group"], one["state"], one["protocol_type"]) for one in found]
    for line in table(("GROUP", "STATE", "PROTOCOL TYPE"), rows) if rows else ():
        data(line)


@app.command()
def describe(
    group: Group, bootstrap: Bootstrap = None, directory: Dir = DEFAULT_DIR, json: Json = False
) -> None:
    """Show a group's state, coordinator and members.

    \b
    Example:
      quorumlog groups describe billing
    """
    addresses = resolve(bootstrap, directory)

    async def work() -> dict[str, Any]:
        async with Admin(addresses) as admin:
            found = (await admin.describe_consumer_groups([group]))[group]
        return {
            "group": group,
            "state": found.state,
            "protocol": found.protocol,
            "coordinator": found.coordinator_id,
            "members": [
                {
                    "member_id": member.member_id,
                    "instance_id": member.instance_id,
                    "client_id": member.client_id,
                    "host": member.host,
                    "partitions": [str(name) for name in member.assignment],
                }
                for member in found.members
            ],
        }

    described = run(work())
    if described["state"] == NO_GROUP:
        fail(f"there is no group {group}", EXIT_FAILED)
    if json:
        document(described)
        return
    assignor = described["protocol"] or "none"
    data(f"{group}: {described['state']}, coordinator {described['coordinator']}, {assignor}")
    rows = [
        (one["member_id"], one["client_id"], one["host"], " ".join(one["partitions"]))
        for one in described["members"]
    ]
    for line in table(("MEMBER", "CLIENT", "HOST", "PARTITIONS"), rows) if rows else ():
        data(line)


@app.command()
def lag(
    group: Group, bootstrap: Bootstrap = None, directory: Dir = DEFAULT_DIR, json: Json = False
) -> None:
    """Show how far a group is behind, by partition.

    \b
    Examples:
      quorumlog groups lag billing
      quorumlog groups lag billing --json
    """
    addresses = resolve(bootstrap, directory)

    async def work() -> tuple[str, list[dict[str, Any]]]:
        async with Admin(addresses) as admin:
            return await lag_rows(admin, group)

    state, rows = run(work())
    if state == NO_GROUP and not rows:
        fail(f"there is no group {group}", EXIT_FAILED)
    total = sum(row["lag"] or 0 for row in rows)
    if json:
        document({"group": group, "state": state, "lag": total, "partitions": rows})
        return
    names = ("topic", "partition", "committed", "end", "lag", "client")
    shown = [[row[name] for name in names] for row in rows]
    for line in table([name.upper() for name in names], shown) if rows else ():
        data(line)
    say(f"{group}: {state}, {total} records behind")


@app.command(name="reset-offsets")
def reset_offsets(
    group: Group,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC[:0,1]",
            help="These partitions only. Repeatable. Without it: all that the group has committed.",
        ),
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the start.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_offset: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="To this offset.")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option(metavar="N", help="By so many records; below 0: back.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="To the first record since 2026-01-31T12:00:00 (UTC)."),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute/--dry-run", help="Do it; without, only show it.")
    ] = False,
    bootstrap: Bootstrap = None,
    directory: Dir = DEFAULT_DIR,
    json: Json = False,
) -> None:
    """Show where a group would be moved; with --execute, move it.

    The group must have no members. A target outside of a log is moved to its nearest end.

    \b
    Examples:
      quorumlog groups reset-offsets billing --to-earliest
      quorumlog groups reset-offsets billing --topic orders:0,2 --shift-by -100 --execute
      quorumlog groups reset-offsets billing --to-datetime 2026-01-31T12:00:00 --execute
    """
    given = {
        "--to-earliest": Reset(target="earliest") if to_earliest else None,
        "--to-latest": Reset(target="latest") if to_latest else None,
        "--to-offset": None if to_offset is None else Reset(target="offset", value=to_offset),
        "--shift-by": None if shift_by is None else Reset(target="shift", value=shift_by),
        "--to-datetime": None if to_datetime is None else _to_time(to_datetime),
    }
    resets = [reset for reset in given.values() if reset is not None]
    if len(resets) != 1:
        fail(f"give one of {', '.join(given)}", EXIT_USAGE)
    try:
        topics = dict(parse_topic(text) for text in topic or [])
    except ValueError as error:
        fail(f"--topic {error}", EXIT_USAGE)
    addresses = resolve(bootstrap, directory)

    async def work() -> list[dict[str, Any]]:
        async with Admin(addresses) as admin:
            moves = await decide_reset(admin, group, resets[0], topics)
            if execute:
                places = {move.partition: move.after for move in moves}
                await admin.alter_consumer_group_offsets(group, places)
        return [
            {
                "topic": move.partition.topic,
                "partition": move.partition.partition,
                "before": move.before,
                "after": move.after,
            }
            for move in moves
        ]

    rows = run(work())
    if json:
        document({"group": group, "executed": execute, "partitions": rows})
        return
    names = ("topic", "partition", "before", "after")
    for line in table([name.upper() for name in names], [list(row.values()) for row in rows]):
        data(line)
    say(f"{group} is moved" if execute else "nothing is moved yet: add --execute")


def _to_time(text: str) -> Reset:
    try:
        return Reset(target="time", value=parse_datetime_ms(text))
    except ValueError as error:
        fail(f"--to-datetime {error}", EXIT_USAGE)


@app.command()
def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP...", help="The groups.")],
    bootstrap: Bootstrap = None,
    directory: Dir = DEFAULT_DIR,
    json: Json = False,
) -> None:
    """Delete groups that have no members, with their offsets."""
    addresses = resolve(bootstrap, directory)

    async def work() -> None:
        async with Admin(addresses) as admin:
            await admin.delete_consumer_groups(groups)

    run(work())
    if json:
        document({"deleted": groups})
        return
    for group in groups:
        data(f"deleted {group}")
