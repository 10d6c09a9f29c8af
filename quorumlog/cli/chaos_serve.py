"""`quorumlog chaos serve`: show the runs of a directory in a browser."""

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer

from quorumlog.cli.output import EXIT_FAILED, EXIT_USAGE, data, one_line_errors


def serve_command(
    store: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory of one run, or of many runs below it.")
    ] = Path("runs"),
    port: Annotated[
        int,
        typer.Option(
            metavar="PORT", help="Port to listen on; 0: any free port.", min=0, max=65_535
        ),
    ] = 8080,
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            help="Address to listen on; not loopback: other machines can read the runs.",
        ),
    ] = "127.0.0.1",
) -> None:
    """Show runs in a browser: verdicts, reports, node logs.

    The server only reads. A page lists the runs that exist when it loads. Ctrl-C ends it.

    \b
      quorumlog chaos serve runs
      quorumlog chaos serve demo-run --port 0
    """
    with (
        one_line_errors(NotADirectoryError, status=EXIT_USAGE),
        one_line_errors(OSError, status=EXIT_FAILED),
    ):
        asyncio.run(_serve(store, host, port))


async def _serve(store: Path, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM."""
    from quorumlog.chaos.store.server import StoreServer

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = StoreServer(store, host=host, port=port)
    try:
        data(f"{await server.start()}  shows the runs in {store}; Ctrl-C ends it")
        await stopped.wait()
    finally:
        await server.stop()
