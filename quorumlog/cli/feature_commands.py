"""`quorumlog features`: describe, upgrade and downgrade."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.connect import Cluster, cluster_command
from quorumlog.cli.options import command_group
from quorumlog.cli.output import EXIT_USAGE, fail, parse_settings, table
from quorumlog.client import Admin

if TYPE_CHECKING:
    from quorumlog.client.descriptions import UpgradeKind

app = command_group("Show and change the feature levels of the cluster.")

Levels = Annotated[list[str], typer.Argument(metavar="FEATURE=LEVEL", help="The new levels.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Validate the change without making it.")]


@cluster_command(app)
def describe(cluster: Cluster) -> None:
    """Show the levels in force, and the range that a broker supports.

    \b
    Examples:
      quorumlog features describe
      quorumlog features describe --json
    """
    found = cluster.ask(Admin.describe_features)
    features = [{"name": name, **asdict(one)} for name, one in found.items()]
    rows = [(name, one.level, one.least, one.greatest) for name, one in found.items()]
    lines = table(("FEATURE", "LEVEL", "LEAST", "GREATEST"), rows)
    cluster.outcome({"features": features}, *lines)


@cluster_command(app)
def upgrade(cluster: Cluster, levels: Levels, dry_run: DryRun = False) -> None:
    """Raise feature levels, all of them or none.

    Every node must support the new level.

    \b
    Example:
      quorumlog features upgrade group.version=1 transaction.version=2
    """
    _update(cluster, levels, "upgrade", dry_run=dry_run)


@cluster_command(app)
def downgrade(
    cluster: Cluster,
    levels: Levels,
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Downgrade even if metadata may be lost.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Lower feature levels, all of them or none.

    \b
    Example:
      quorumlog features downgrade quorumlog.metadata.version=1 --dry-run
    """
    kind: UpgradeKind = "unsafe_downgrade" if unsafe else "safe_downgrade"
    _update(cluster, levels, kind, dry_run=dry_run)


def _update(cluster: Cluster, levels: list[str], kind: "UpgradeKind", *, dry_run: bool) -> None:
    wanted = {name: _level(name, text) for name, text in parse_settings(levels, "level").items()}
    cluster.ask(lambda admin: admin.update_features(wanted, kind, validate_only=dry_run))
    told = "would be" if dry_run else "is"
    lines = (f"{name} {told} at level {level}" for name, level in wanted.items())
    cluster.outcome({"levels": wanted, "changed": not dry_run}, *lines)


def _level(name: str, text: str) -> int:
    if not text.isdecimal():
        fail(f"{name}={text}: a level is a whole number", EXIT_USAGE)
    return int(text)
