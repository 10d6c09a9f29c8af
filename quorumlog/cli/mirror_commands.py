"""`quorumlog mirror`: copies topics from one cluster to another, and shows how far it is."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import typer

from quorumlog.cli.connect import run
from quorumlog.cli.mirror_options import (
    Acls,
    Alias,
    Compression,
    ExactlyOnce,
    Exclude,
    From,
    FromConfig,
    GroupInterval,
    Groups,
    Mm2Compatible,
    Once,
    Prefix,
    Recreated,
    RefreshInterval,
    ReplicationFactor,
    SameName,
    To,
    ToAlias,
    ToConfig,
    Topics,
    prefix_of,
    settings_of,
)
from quorumlog.cli.mirror_verify import verify
from quorumlog.cli.options import Json, parse_duration_ms
from quorumlog.cli.output import EXIT_USAGE, document, fail, one_line_errors, outcome, say, table
from quorumlog.cli.progress import progress_line
from quorumlog.clock import wall_clock_ms

if TYPE_CHECKING:
    from quorumlog.mirror import MirrorSettings
    from quorumlog.mirror.io.pump import Progress
    from quorumlog.mirror.reports import Report

app = typer.Typer(
    help="Copy topics and groups' offsets from one cluster to another.",
    invoke_without_command=True,
    subcommand_metavar="[COMMAND]",
)
app.command()(verify)

_PROGRESS_S: Final = 1.0


@app.callback()
def mirror(
    context: typer.Context,
    source: From = None,
    target: To = None,
    topic: Topics = None,
    exclude: Exclude = None,
    alias: Alias = "source",
    prefix: Prefix = None,
    same_name: SameName = False,
    to_alias: ToAlias = None,
    groups: Groups = None,
    exactly_once: ExactlyOnce = False,
    once: Once = False,
    recreated: Recreated = "stop",
    acls: Acls = False,
    group_interval: GroupInterval = "10s",
    refresh_interval: RefreshInterval = "30s",
    replication_factor: ReplicationFactor = None,
    compression: Compression = "none",
    mm2_compatible: Mm2Compatible = False,
    json: Json = False,
    from_config: FromConfig = None,
    to_config: ToConfig = None,
) -> None:
    """Copy topics and groups' offsets from one cluster to another, until Ctrl-C."""
    if context.invoked_subcommand is not None:
        return
    if not topic:
        fail("--topic is missing: name the topics, '.*' for all", EXIT_USAGE)
    optional: dict[str, Any] = {"exclude": exclude, "groups": groups}
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
        once=once,
        on_recreated=recreated,
        acls=acls,
        group_interval_ms=parse_duration_ms(group_interval),
        refresh_interval_ms=parse_duration_ms(refresh_interval),
        replication_factor=replication_factor,
        compression_type=compression,
        mm2_compatible=mm2_compatible,
        **{name: tuple(value) for name, value in optional.items() if value is not None},
    )
    from quorumlog.mirror import MirrorError

    with one_line_errors(MirrorError):
        run(_mirror(settings, json=json))


async def _mirror(settings: "MirrorSettings", *, json: bool) -> None:
    """Copy to the end, or to Ctrl-C, which is the usual end: both print the document."""
    from quorumlog.mirror import Mirror

    def print_document(copied: "Progress") -> None:
        if json:
            document({"records": copied.records, "bytes": copied.size_in_bytes})

    async with Mirror(settings, _say) as mirror:
        try:
            with progress_line() as show:
                shown = asyncio.create_task(_show(mirror.progress, show))
                try:
                    await mirror.run()
                finally:
                    shown.cancel()
        except asyncio.CancelledError:
            print_document(mirror.progress)
            raise
        finally:  # also after an error or Ctrl-C
            say(f"{mirror.progress.records} records copied")
    print_document(mirror.progress)


async def _show(progress: "Progress", show: Callable[[str], object]) -> None:
    """Show the counts and the speed, once a second."""
    before, loop = progress.size_in_bytes, asyncio.get_running_loop()
    began_s = loop.time()
    while True:
        await asyncio.sleep(_PROGRESS_S)
        now_s = loop.time()
        speed = (progress.size_in_bytes - before) / (now_s - began_s) / 1e6
        before, began_s = progress.size_in_bytes, now_s
        show(f"{progress.records} records copied, {speed:.1f} MB/s, lag {progress.lag} records")


def _say(report: "Report") -> None:
    say(f"{report.subject}: {report.message}")


@app.command()
def status(
    source: From = None,
    target: To = None,
    alias: Alias = "source",
    json: Json = False,
    from_config: FromConfig = None,
    to_config: ToConfig = None,
) -> None:
    """Show positions, lag and the last checkpoint."""
    from quorumlog.mirror import MirrorError
    from quorumlog.mirror.io.status import read_status

    settings = settings_of(
        source=source,
        target=target,
        source_config=from_config,
        target_config=to_config,
        topics=(".*",),
        alias=alias,
    )
    with one_line_errors(MirrorError):
        found = run(read_status(settings))
    now_ms = wall_clock_ms()
    checkpoint = found.checkpoint
    age_ms = None if checkpoint is None else max(now_ms - checkpoint.time_ms, 0)
    stopped = {} if checkpoint is None else {**(checkpoint.stopped or {})}
    value = {
        "alias": alias,
        "prefix": found.generation.prefix,
        "started_ms": found.generation.started_ms,
        "checkpoint_ms": None if checkpoint is None else checkpoint.time_ms,
        "groups": None if checkpoint is None else checkpoint.groups,
        "stopped": stopped,
        "lag": sum(max(one.lag, 0) for one in found.partitions),
        "partitions": [asdict(one) for one in found.partitions],
    }
    lines = table(
        ("TOPIC", "PARTITION", "POSITION", "END", "LAG", "LAG-SECONDS"),
        [
            (
                *(one.topic, one.partition),
                *map(_or_dash, (one.position, one.end, one.lag)),
                _seconds(one.lag_ms),
            )
            for one in found.partitions
        ],
    )
    last = "none yet" if age_ms is None else f"{_seconds(age_ms)} s ago"
    shown = [f"{name} stopped: {reason}" for name, reason in sorted(stopped.items())]
    outcome(value, *lines, *shown, f"last checkpoint: {last}", json=json)


def _or_dash(offset: int) -> str:
    return "-" if offset < 0 else str(offset)


def _seconds(time_ms: int | None) -> str:
    return "-" if time_ms is None else f"{time_ms / 1000:.1f}"
