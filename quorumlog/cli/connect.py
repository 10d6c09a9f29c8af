"""Finds the cluster of a command, and reports a missing one."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from functools import update_wrapper
from inspect import Signature, signature
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from quorumlog.addresses import address_text
from quorumlog.cli.options import DEFAULT_DIR, Dir, Json
from quorumlog.cli.output import EXIT_FAILED, cluster_errors, fail, outcome, say
from quorumlog.client import KafkaError
from quorumlog.client.settings import addresses

if TYPE_CHECKING:
    from quorumlog.client import Admin

_Result = TypeVar("_Result")

_ELSEWHERE: Final = "127.0.0.1:9092"
_REFUSED_MAX_S: Final = 1.0
_REFUSED_PAUSE_S: Final = 0.1

Bootstrap = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT,...",
        help=f"Brokers to connect to. Default: the cluster in DIR, else {_ELSEWHERE}.",
    ),
]


def resolve(bootstrap: str | None, directory: Path = DEFAULT_DIR) -> str:
    """Return the addresses to connect to. Ends the command if `directory`'s cluster is down."""
    if bootstrap is not None:
        return _listening(bootstrap)
    from quorumlog.cluster import LocalCluster
    from quorumlog.cluster.layout import CLUSTER_FILE

    if directory == DEFAULT_DIR and not (directory / CLUSTER_FILE).exists():
        say(f"no cluster in {directory} (`quorumlog up` makes one): connecting to {_ELSEWHERE}")
        return _listening(_ELSEWHERE)
    with cluster_errors():
        cluster = LocalCluster.open(directory)
    if not cluster.running():
        fail(f"the cluster in {directory} does not run; `quorumlog up` starts it")
    return cluster.bootstrap


def _listening(bootstrap: str) -> str:
    """Return the addresses. Ends the command if every one refuses connections for a second.

    A client waits longer, for brokers that start later; a command must answer quickly.
    """
    try:
        places = addresses(bootstrap)
    except ValueError as error:
        fail(str(error), EXIT_FAILED)
    deadline_s = monotonic() + _REFUSED_MAX_S
    while all(_refuses(*place) for place in places):
        if monotonic() > deadline_s:
            names = ", ".join(address_text(*place) for place in places)
            fail(f"connection refused by {names}: no process listens there", EXIT_FAILED)
        sleep(_REFUSED_PAUSE_S)
    return bootstrap


def _refuses(host: str, port: int) -> bool:
    """Return whether the address refuses connections. The client reports other errors."""
    try:
        socket.create_connection((host, port), timeout=_REFUSED_MAX_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a command's client; an error of the cluster is one line and exit status 1."""
    try:
        return asyncio.run(work)
    except (KafkaError, ValueError) as error:
        fail(str(error), EXIT_FAILED)


class Cluster:
    """The cluster that a command's options name, and the output of that command."""

    def __init__(self, bootstrap: str | None, directory: Path, *, json: bool) -> None:
        self._bootstrap: Final = bootstrap
        self._directory: Final = directory
        self.json: Final = json

    def ask(self, work: Callable[["Admin"], Coroutine[Any, Any, _Result]]) -> _Result:
        """Run `work` with an admin client. Errors end the command, as in `resolve` and `run`."""
        from quorumlog.client import Admin  # `produce` and `consume` need none

        addresses = resolve(self._bootstrap, self._directory)

        async def connected() -> _Result:
            async with Admin(addresses) as admin:
                return await work(admin)

        return run(connected())

    def outcome(self, value: Any, *lines: str, empty: str = "") -> None:
        """Print the result, as `output.outcome` does."""
        outcome(value, *lines, json=self.json, empty=empty)


def on_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with --bootstrap, --dir and --json in place of its parameter `cluster`."""

    def run_on(
        *, bootstrap: Bootstrap = None, directory: Dir = DEFAULT_DIR, json: Json = False, **own: Any
    ) -> None:
        command(Cluster(bootstrap, directory, json=json), **own)

    _, *own = signature(command).parameters.values()
    *shared, _ = signature(run_on).parameters.values()
    parameters = [*own, *shared]
    update_wrapper(run_on, command)
    run_on.__annotations__ = {one.name: one.annotation for one in parameters}
    run_on.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # inspect reads it
    return run_on


def cluster_command(
    app: typer.Typer, name: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds a command of `on_cluster` to a group."""
    return lambda command: app.command(name)(on_cluster(command))
