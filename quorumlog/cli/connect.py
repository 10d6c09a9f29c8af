"""Where a command finds the cluster, and how it says that there is none."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from quorumlog.cli.cluster_commands import DEFAULT_DIR
from quorumlog.cli.output import EXIT_FAILED, fail
from quorumlog.client import KafkaError
from quorumlog.cluster import ClusterError, LocalCluster

_Result = TypeVar("_Result")

Bootstrap = Annotated[
    str | None,
    typer.Option(help="host:port,... (the cluster in --dir, else 127.0.0.1:9092)."),
]


def resolve(bootstrap: str | None, directory: Path = DEFAULT_DIR) -> str:
    """Return the addresses to connect to."""
    if bootstrap is not None:
        return bootstrap
    try:
        return LocalCluster.open(directory).bootstrap
    except ClusterError:
        return "127.0.0.1:9092"


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a command's client; an error of the cluster is one line and exit status 1."""
    try:
        return asyncio.run(work)
    except (KafkaError, ValueError) as error:
        fail(str(error), EXIT_FAILED)
