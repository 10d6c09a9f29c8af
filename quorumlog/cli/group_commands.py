"""`quorumlog groups`: list, describe, lag, reset-offsets, delete."""

from typing import Annotated, Any, Final

import typer

from quorumlog.cli.connect import Bootstrap, resolve, run
from quorumlog.cli.group_offsets import lag_rows
from quorumlog.cli.options import DEFAULT_DIR, Dir, Json
from quorumlog.cli.output import EXIT_FAILED, data, document, fail, say
from quorumlog.cli.reset_command import reset_offsets
from quorumlog.cli.table import table
from quorumlog.client import Admin

app = typer.Typer(
    help="Show groups and their lag, move or delete them.",
    no_args_is_help=True,
    subcommand_metavar="COMMAND",
)

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


app.command(name="reset-offsets")(reset_offsets)


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
