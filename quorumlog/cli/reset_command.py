"""`quorumlog groups reset-offsets`: show or make a change of committed offsets."""

from typing import Annotated, Any

import typer

from quorumlog.cli.connect import Bootstrap, ask_admin
from quorumlog.cli.group_offsets import decide_reset
from quorumlog.cli.offset_resets import Reset, parse_datetime_ms, parse_topics
from quorumlog.cli.options import DEFAULT_DIR, Dir, Json
from quorumlog.cli.output import EXIT_USAGE, fail, outcome, say
from quorumlog.cli.table import table
from quorumlog.client import Admin

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


def reset_offsets(
    group: Group,
    topics: Topics = None,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_offset: ToOffset = None,
    shift_by: ShiftBy = None,
    to_datetime: ToDatetime = None,
    execute: Execute = False,
    bootstrap: Bootstrap = None,
    directory: Dir = DEFAULT_DIR,
    json: Json = False,
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

    rows = ask_admin(bootstrap, directory, work)
    headers = ("TOPIC", "PARTITION", "BEFORE", "AFTER")
    lines = table(headers, [list(row.values()) for row in rows])
    outcome({"group": group, "executed": execute, "partitions": rows}, *lines, json=json)
    if not json:
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
