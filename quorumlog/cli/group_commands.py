"""`quorumlog groups`: list, describe, lag, reset-offsets, delete."""

from typing import Annotated, Final

import typer

from quorumlog.cli.connect import Bootstrap, ask_admin
from quorumlog.cli.group_offsets import lag_rows
from quorumlog.cli.options import DEFAULT_DIR, Dir, Json, command_group
from quorumlog.cli.output import EXIT_FAILED, fail, outcome, say
from quorumlog.cli.reset_command import reset_offsets
from quorumlog.cli.table import table
from quorumlog.client import Admin

app = command_group("Show groups and their lag, reset offsets, delete groups.")

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group.")]
NO_GROUP: Final = "Dead"  # the state in a coordinator's description of a missing group


@app.command(name="list")
def list_groups(
    bootstrap: Bootstrap = None, directory: Dir = DEFAULT_DIR, json: Json = False
) -> None:
    """List all groups with their types and states."""
    found = [
        {
            "group": one.group_id,
            "type": one.group_type,
            "state": one.state,
            "protocol_type": one.protocol_type,
        }
        for one in ask_admin(bootstrap, directory, Admin.list_consumer_groups)
    ]
    rows = [list(one.values()) for one in found]
    lines = table(("GROUP", "TYPE", "STATE", "PROTOCOL TYPE"), rows) if rows else ()
    outcome({"groups": found}, *lines, json=json, empty="no groups")


@app.command()
def describe(
    group: Group, bootstrap: Bootstrap = None, directory: Dir = DEFAULT_DIR, json: Json = False
) -> None:
    """Show a group's state, coordinator and members.

    \b
    Example:
      quorumlog groups describe billing
    """
    groups = ask_admin(bootstrap, directory, lambda admin: admin.describe_consumer_groups([group]))
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
    lines = table(("MEMBER", "CLIENT", "HOST", "PARTITIONS"), rows) if rows else ()
    outcome(described, title, *lines, json=json)


@app.command()
def lag(
    group: Group, bootstrap: Bootstrap = None, directory: Dir = DEFAULT_DIR, json: Json = False
) -> None:
    """Show the lag of a group in each partition.

    \b
    Examples:
      quorumlog groups lag billing
      quorumlog groups lag billing --json
    """
    state, rows = ask_admin(bootstrap, directory, lambda admin: lag_rows(admin, group))
    if state == NO_GROUP and not rows:
        fail(f"group {group} does not exist", EXIT_FAILED)
    total = sum(row["lag"] or 0 for row in rows)
    names = ("topic", "partition", "committed", "end", "lag", "client")
    shown = [[row[name] for name in names] for row in rows]
    lines = table([name.upper() for name in names], shown) if rows else ()
    found = {"group": group, "state": state, "lag": total, "partitions": rows}
    outcome(found, *lines, json=json)
    if not json:
        say(f"{group}: {state}, lag {total} records")


app.command(name="reset-offsets")(reset_offsets)


@app.command()
def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP", help="The groups.")],
    bootstrap: Bootstrap = None,
    directory: Dir = DEFAULT_DIR,
    json: Json = False,
) -> None:
    """Delete groups that have no members, with their offsets."""
    ask_admin(bootstrap, directory, lambda admin: admin.delete_consumer_groups(groups))
    outcome({"deleted": groups}, *(f"deleted {group}" for group in groups), json=json)
