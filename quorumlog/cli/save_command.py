"""`quorumlog save`, and the option `--from` of `quorumlog up`: a cluster as one file."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from quorumlog.cli.options import DEFAULT_DIR, Dir, Json
from quorumlog.cli.output import EXIT_INTERRUPTED, cluster_errors, fail, outcome
from quorumlog.cli.progress import progress_bar

From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help="Make the cluster in DIR from a file of `quorumlog save`: the same data and ids, "
        "other ports.",
    ),
]


def save(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A new file; .tar.gz or .tgz compresses it.")
    ],
    directory: Dir = DEFAULT_DIR,
    json: Json = False,
) -> None:
    """Save a cluster in one file: its shape, settings and data.

    A running cluster is stopped cleanly for the copy of its files, and started again. `quorumlog
    up --from FILE --dir DIR` makes a cluster of it, here or on another machine.
    """
    from quorumlog.chaos.run.interruption import Interruption
    from quorumlog.cluster import LocalCluster, archives

    with Interruption(), cluster_errors():
        cluster = LocalCluster.open(directory, detached=True)
        were_running = cluster.running()
        try:
            with progress_bar(f"saving {file}", 1) as note:
                archives.save(cluster, file, note)
        except KeyboardInterrupt:
            written = "is written" if file.exists() else "is not written"
            nodes = "; the nodes run again" if were_running else ""
            if cluster.running() != were_running:
                nodes = f"; `quorumlog up --detach --dir {directory}` starts the nodes"
            fail(f"interrupted: {file} {written}{nodes}", EXIT_INTERRUPTED)
    done = {"file": str(file.resolve()), "bytes": file.stat().st_size}
    outcome(done, f"saved {directory} in {file}, {done['bytes']} bytes", json=json)


@contextmanager
def unpacked(
    file: Path | None,
    directory: Path,
    *,
    host: str,
    port: int,
    advertised: str | None,
    listeners: Sequence[str],
) -> Iterator[None]:
    """Make the cluster of a saved file in `directory`, unless `file` is None.

    It is removed if the block fails before a node was started: the next `up --from` may make it.
    """
    from quorumlog.cluster import archives

    if file is None:
        yield
        return
    archives.unpack(
        file, directory, host=host, port=port, advertised=advertised, listeners=listeners
    )
    try:
        yield
    except BaseException:
        if not any(directory.glob("node-*/node.log")):
            shutil.rmtree(directory, ignore_errors=True)
        raise
