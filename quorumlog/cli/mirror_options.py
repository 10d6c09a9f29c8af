"""Options of a mirror and of its commands: the two clusters, the topics and the copies' names."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from quorumlog.cli.connect import Access, resolve
from quorumlog.cli.output import EXIT_USAGE, fail, one_line_errors

if TYPE_CHECKING:
    from quorumlog.mirror import MirrorSettings

From = Annotated[
    str | None, typer.Option("--from", metavar="HOST:PORT,...", help="Brokers of the source.")
]
To = Annotated[
    str | None, typer.Option("--to", metavar="HOST:PORT,...", help="Brokers of the target.")
]
FromConfig = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Properties of a Java client or of librdkafka for the source: TLS, SASL, addresses.",
    ),
]
ToConfig = Annotated[Path | None, typer.Option(metavar="FILE", help="The same for the target.")]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", metavar="REGEX", help="Regular expression of whole topic names. Repeatable."
    ),
]
Alias = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Name of the source at the target: in the prefix of the copies and in the topic"
        " mirror.NAME.positions. Each source of one target needs its own.",
    ),
]
Prefix = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Prefix of the copies' names. Default: NAME and a dot."),
]
SameName = Annotated[bool, typer.Option("--same-name", help="Give the copies the same names.")]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        metavar="REGEX",
        help=r"Topics that are left out. Repeatable. Default: mm2.*\.internal, .*\.replica, __.*",
    ),
]
ToAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Name of the target: topics that have come from it are not copied back.",
    ),
]
Groups = Annotated[
    list[str] | None,
    typer.Option(
        metavar="REGEX",
        help="Groups whose offsets are translated. Repeatable. Default: all but those of"
        " console consumers and of Connect.",
    ),
]
ExactlyOnce = Annotated[
    bool,
    typer.Option(
        "--exactly-once",
        help="Copy each record once, also if the mirror is killed: by transactions.",
    ),
]
Once = Annotated[
    bool, typer.Option("--once", help="End when all that the source has now is copied.")
]
Recreated = Annotated[
    Literal["stop", "follow"],
    typer.Option(
        help="A topic that was deleted and created again, or whose copy was: it stops, or it is"
        " copied from its start."
    ),
]
GroupInterval = Annotated[
    str, typer.Option(metavar="TIME", help="Between two commits for groups: 10s, 500ms, 2m.")
]
RefreshInterval = Annotated[
    str, typer.Option(metavar="TIME", help="Between two searches for new topics and partitions.")
]
Acls = Annotated[
    bool,
    typer.Option(
        "--acls",
        help="Copy the ACLs of the topics, too: without ALLOW WRITE, and ALLOW ALL as ALLOW READ."
        " None is deleted.",
    ),
]
ReplicationFactor = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Replicas of created topics. Default: as at the source, at most one a broker.",
    ),
]
Compression = Annotated[
    Literal["none", "gzip", "snappy", "lz4", "zstd"],
    typer.Option(help="Compression of the batches that are sent to the target."),
]
Mm2Compatible = Annotated[
    bool,
    typer.Option(
        "--mm2-compatible",
        help="Write the internal topics of MirrorMaker 2, too; needs --to-alias.",
    ),
]


def settings_of(
    *,
    source: str | None,
    target: str | None,
    source_config: Path | None,
    target_config: Path | None,
    **values: Any,
) -> "MirrorSettings":
    """Return the settings of a mirror for options. Ends the command for options that are wrong."""
    from quorumlog.mirror import MirrorSettings

    sides: dict[str, Any] = {
        "source": _side("--from", source, "--from-config", source_config),
        "target": _side("--to", target, "--to-config", target_config),
    }
    with one_line_errors(ValueError, status=EXIT_USAGE):
        return MirrorSettings(**sides, **values)


def prefix_of(prefix: str | None, *, same_name: bool) -> str | None:
    """Return the prefix of two options. Ends the command if both are given."""
    if same_name and prefix:
        fail("--prefix and --same-name exclude each other", EXIT_USAGE)
    return "" if same_name else prefix


def _side(option: str, bootstrap: str | None, of_file: str, file: Path | None) -> dict[str, Any]:
    access = Access(command_config=file)
    if bootstrap is None and "bootstrap_servers" not in access.options():
        fail(
            f"{option} is missing: name the brokers there, or in the file of {of_file}", EXIT_USAGE
        )
    return resolve(bootstrap, access=access, option=option)
