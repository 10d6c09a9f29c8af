"""`quorumlog groups`: list, describe, lag, reset-offsets, delete."""

from typing import Annotated, Any, Final

import typer

from quorumlog.cli.connect import Cluster, cluster_command
from quorumlog.cli.group_offsets import decide_reset, lag_rows
from quorumlog.cli.offset_resets import Reset, parse_datetime_ms, parse_topics
from quorumlog.cli.options import command_group
from quorumlog.cli.output import EXIT_FAILED, EXIT_USAGE, fail, say, table
from quorumlog.client import Admin

app = command_group("Show groups and their lag, reset offsets, delete groups.")

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group.")]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="TOPIC[:0,1]",
        help="Only these partitions. Repeatable. Default: all committed partitions of the group.",
    ),
]
ToEarliest = Annotated[bool, typer.Option("--to-earliest", help="To the start.")]
ToLatest = Annotated[bool, typer.Option("--to-latest", help="To the end.")]
ToOffset = Annotated[int | None, typer.Option(metavar="N", min=0, help="To this offset.")]
ShiftBy = Annotated[
    int | None, typer.Option(metavar="N", help="Forward by this number of records; below 0: back.")
]
ToDatetime = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="To the first record since 2026-01-31T12:00:00 (UTC)."),
]
Execute = Annotated[
    bool, typer.Option("--execute/--dry-run", help="Make the change. Default: only show it.")
]


@cluster_command(app, "list")
def list_groups(cluster: Cluster) -> None:
    """List all groups with their types and states."""
    found = [
        {
            "group": one.group_id,
            "type": one.group_type,
            "state": one.state,
            "protocol_type": one.protocol_type,
        }
        for one in cluster.ask(Admin.list_consumer_groups)
    ]
    rows = [list(one.values()) for one in found]
    lines = table(("GROUP", "TYPE", "STATE", "PROTOCOL TYPE"), rows)
    cluster.outcome({"groups": found}, *lines, empty="no groups")


@cluster_command(app)
def describe(cluster: Cluster, group: Group) -> None:
    """Show a group's state, coordinator and members.

    \b
    Example:
      quorumlog groups describe billing
    """
    groups = cluster.ask(lambda admin: admin.describe_consumer_groups([group]))
    found = groups[group]
    if found.state == NO_GROUP:
        fail(f"group {group} does not exist", EXIT_FAILED)
    described = {
        "group": group,
        "type": found.group_type,
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
    assignor = f", {found.protocol}" if found.protocol else ""
    title = (
        f"{group}: {found.group_type}, {found.state}, coordinator {found.coordinator_id}{assignor}"
    )
    rows = [
        (member.member_id, member.client_id, member.host, " ".join(map(str, member.assignment)))
        for member in found.members
    ]
    lines = table(("MEMBER", "CLIENT", "HOST", "PARTITIONS"), rows)
    cluster.outcome(described, title, *lines)


@cluster_command(app)
def lag(cluster: Cluster, group: Group) -> None:
    """Show the lag of a group in each partition.

    \b
    Examples:
      quorumlog groups lag billing
      quorumlog groups lag billing --json
    """
    state, rows = cluster.ask(lambda admin: lag_rows(admin, group))
    if state == NO_GROUP and not rows:
        fail(f"group {group} does not exist", EXIT_FAILED)
    total = sum(row["lag"] or 0 for row in rows)
    names = ("topic", "partition", "committed", "end", "lag", "client")
    shown = [[row[name] for name in names] for row in rows]
    lines = table([name.upper() for name in names], shown)
    found = {"group": group, "state": state, "lag": total, "partitions": rows}
    cluster.outcome(found, *lines)
    if not cluster.json:
        say(f"{group}: {state}, lag {total} records")


@cluster_command(app, "reset-offsets")
def reset_offsets(
    cluster: Cluster,
    group: Group,
    topics: Topics = None,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_offset: ToOffset = None,
    shift_by: ShiftBy = None,
    to_datetime: ToDatetime = None,
    execute: Execute = False,
) -> None:
    """Show new committed offsets; with --execute, commit them.

    The group must have no members. A target outside a log becomes the log's nearest end.

    \b
    Examples:
      quorumlog groups reset-offsets billing --to-earliest
      quorumlog groups reset-offsets billing --topic orders:0,2 --shift-by -100 --execute
      quorumlog groups reset-offsets billing --to-datetime 2026-01-31T12:00:00 --execute
    """
    reset = _the_one(
        {
            "--to-earliest": Reset(target="earliest") if to_earliest else None,
            "--to-latest": Reset(target="latest") if to_latest else None,
            "--to-offset": None if to_offset is None else Reset(target="offset", value=to_offset),
            "--shift-by": None if shift_by is None else Reset(target="shift", value=shift_by),
            "--to-datetime": None if to_datetime is None else _to_time(to_datetime),
        }
    )
    wanted = _wanted(topics or [])

    async def work(admin: Admin) -> list[dict[str, Any]]:
        moves = await decide_reset(admin, group, reset, wanted)
        if execute:
            places = {move.partition: move.after for move in moves}
            await admin.alter_consumer_group_offsets(group, places)
        return [{**name._asdict(), "before": old, "after": new} for name, old, new in moves]

    rows = cluster.ask(work)
    headers = ("TOPIC", "PARTITION", "BEFORE", "AFTER")
    lines = table(headers, [list(row.values()) for row in rows])
    cluster.outcome({"group": group, "executed": execute, "partitions": rows}, *lines)
    if not cluster.json:
        say(
            f"offsets of {group} are reset"
            if execute
            else "no offset is changed yet: add --execute"
        )


def _the_one(given: dict[str, Reset | None]) -> Reset:
    resets = [reset for reset in given.values() if reset is not None]
    if len(resets) != 1:
        fail(f"give only one of {', '.join(given)}", EXIT_USAGE)
    return resets[0]


def _wanted(topics: list[str]) -> dict[str, list[int] | None]:
    try:
        return parse_topics(topics)
    except ValueError as error:
        fail(f"--topic {error}", EXIT_USAGE)


def _to_time(text: str) -> Reset:
    try:
        return Reset(target="time", value=parse_datetime_ms(text))
    except ValueError as error:
        fail(f"--to-datetime {error}", EXIT_USAGE)


NO_GROUP: Final = "Dead"  # the state in a coordinator's description of a missing group


@cluster_command(app)
def delete(
    cluster: Cluster,
    groups: Annotated[list[str], typer.Argument(metavar="GROUP", help="The groups.")],
) -> None:
    """Delete groups that have no members, with their offsets."""
    cluster.ask(lambda admin: admin.delete_consumer_groups(groups))
    cluster.outcome({"deleted": groups}, *(f"deleted {group}" for group in groups))
