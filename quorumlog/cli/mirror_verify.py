"""`quorumlog mirror verify`: compares the topics of two clusters with their copies."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorumlog.cli.connect import run
from quorumlog.cli.mirror_options import (
    Alias,
    Exclude,
    From,
    FromConfig,
    Prefix,
    SameName,
    To,
    ToAlias,
    ToConfig,
    Topics,
    prefix_of,
    settings_of,
)
from quorumlog.cli.options import Json, parse_duration_ms
from quorumlog.cli.output import EXIT_FAILED, EXIT_USAGE, fail, one_line_errors, outcome, table
from quorumlog.cli.progress import progress_bar

if TYPE_CHECKING:
    from quorumlog.mirror.verified import Verified


def verify(
    source: From = None,
    target: To = None,
    topic: Topics = None,
    exclude: Exclude = None,
    alias: Alias = "source",
    prefix: Prefix = None,
    same_name: SameName = False,
    to_alias: ToAlias = None,
    exactly_once: Annotated[
        bool,
        typer.Option(
            "--exactly-once",
            help="A record that was copied twice is a difference. Without it, second copies are"
            " counted.",
        ),
    ] = False,
    wait: Annotated[
        str,
        typer.Option(metavar="TIME", help="How long to wait for records that are not copied yet."),
    ] = "10s",
    json: Json = False,
    from_config: FromConfig = None,
    to_config: ToConfig = None,
) -> None:
    """Compare topics with their copies, record by record. Exit status 0: equal, 1: not.

    Both sides are read; the positions of the mirror are not. A mirror may copy meanwhile. Records
    that retention or compaction has removed on one side are no difference; if nothing was left to
    compare, the result is not valid. Give the options of the mirror.

    \b
    Examples:
      quorumlog mirror verify --from east:9092 --to west:9092 --topic 'orders.*'
      quorumlog mirror verify --from old:9092 --to new:9092 --topic '.*' --same-name --json
    """
    if not topic:
        fail("--topic is missing: name the topics, '.*' for all", EXIT_USAGE)
    optional: dict[str, Any] = {} if exclude is None else {"exclude": tuple(exclude)}
    settings = settings_of(
        source=source,
        target=target,
        source_config=from_config,
        target_config=to_config,
        topics=tuple(topic),
        alias=alias,
        target_alias=to_alias,
        prefix=prefix_of(prefix, same_name=same_name),
        exactly_once=exactly_once,
        **optional,
    )
    from quorumlog.mirror import MirrorError
    from quorumlog.mirror.verify import verify as compare

    with one_line_errors(MirrorError), progress_bar("comparing", 1.0) as note:
        found = run(compare(settings, wait_ms=parse_duration_ms(wait), note=note))
    outcome(found.as_json(), *_lines(found), json=json)
    if not found.valid:
        raise typer.Exit(EXIT_FAILED)


def _lines(found: "Verified") -> list[str]:
    names = ("TOPIC", "COPY", "COMPARED", "REPEATED", "REMOVED AT SOURCE", "REMOVED AT TARGET")
    rows = [
        (
            name,
            topic.copy,
            topic.compared,
            sum(one.repeated for one in topic.partitions.values()),
            sum(one.removed_at_source for one in topic.partitions.values()),
            sum(one.removed_at_target for one in topic.partitions.values()),
        )
        for name, topic in found.topics.items()
    ]
    if found.valid:
        return [*table(names, rows), f"VALID: {found.compared} records have equal copies"]
    return [*table(names, rows), f"INVALID: {found.reason}"]
