"""The `quorumlog` command: every command group in its own file, mounted here."""

import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer
from typer.exceptions import Abort, TyperException

from quorumlog import __version__
from quorumlog.cli import cluster_commands
from quorumlog.cli.output import EXIT_INTERRUPTED, EXIT_USAGE, data, say

# They need neither the client nor the chaos lab, whose imports take longer than their work.
_QUICK: Final = frozenset({"up", "down", "status", "node"})


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """Return the application; only with its quick commands if `arguments` ask for one of them."""
    app = typer.Typer(
        name="quorumlog",
        help="A Kafka-compatible cluster to break on purpose, with proof of what survived.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback(invoke_without_command=True)(root)
    app.command()(cluster_commands.up)
    app.command()(cluster_commands.down)
    app.command()(cluster_commands.status)
    app.add_typer(cluster_commands.node_app, name="node")
    if not arguments or arguments[0] not in _QUICK:
        _add_the_rest(app)
    return app


def _add_the_rest(app: typer.Typer) -> None:
    from quorumlog.cli import (
        chaos_commands,
        config_commands,
        group_commands,
        record_commands,
        topic_commands,
    )
    from quorumlog.cli.simulate_command import simulate
    from quorumlog.cli.verify import verify

    app.add_typer(topic_commands.app, name="topics")
    app.add_typer(config_commands.app, name="configs")
    app.add_typer(group_commands.app, name="groups")
    app.command()(record_commands.produce)
    app.command()(record_commands.consume)
    app.add_typer(chaos_commands.app, name="chaos")
    app.command()(verify)
    app.command()(simulate)


def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Start, use and break a Kafka-compatible cluster, and prove what survived."""
    if version:
        data(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line. A usage error ends with status 64, as `sysexits.h` has it."""
    arguments = sys.argv[1:]
    try:
        status = build_app(arguments)(args=arguments, standalone_mode=False)
    except TyperException as error:
        show = getattr(error, "show", None)  # usage errors know how to show the usage
        if show is not None:
            show()
        else:
            say(f"quorumlog: {error}")
        sys.exit(EXIT_USAGE)
    except (Abort, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(status)
