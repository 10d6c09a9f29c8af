"""A cluster as one file: a tar of its cluster.json and a snapshot of its log directories.

The unpacked cluster has the same cluster id, node ids and data, and ports and a secret of its own.
Its metadata still has the addresses of the original, which may run: so the nodes get the addresses
of their peers by configuration, and the new secret keeps the two apart. Its only passwords are
hashed, by SCRAM: a secured copy has certificates and internal passwords of its own.
"""

import shutil
import tarfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from quorumlog.cluster import layout, security, snapshots
from quorumlog.cluster.errors import ClusterError, InvalidArgument
from quorumlog.cluster.files import make_secret
from quorumlog.cluster.layout import ClusterSpec, NodeSpec

if TYPE_CHECKING:
    from quorumlog.cluster.local_cluster import LocalCluster

_SAVING: Final = ".saving"
_UNFINISHED: Final = ".unfinished"
_OF_ONE_NODE: Final = frozenset({"listeners", "advertised.listeners"})


def save(cluster: "LocalCluster", file: Path, note: Callable[[float], object]) -> None:
    """Write a cluster into `file`, which appears as a whole; ".gz" or ".tgz" compresses it.

    Running nodes are stopped cleanly for the copy of their directories, and started again. `note`
    receives the written fraction. Raises InvalidArgument if `file` exists, ClusterError.
    """
    if file.exists():
        raise InvalidArgument(f"{file} exists; choose another file")
    if not file.parent.is_dir():
        raise InvalidArgument(f"{file.parent} is no directory")
    copy = cluster.directory / snapshots.SNAPSHOTS / _SAVING
    shutil.rmtree(copy, ignore_errors=True)
    unfinished = file.with_name(f"{file.name}{_UNFINISHED}")
    mode: Literal["w:gz", "w"] = "w:gz" if file.name.endswith((".gz", ".tgz")) else "w"
    try:
        with snapshots.stopped(cluster):
            snapshots.write(cluster.directory, cluster.spec, copy)
        shutil.copy(cluster.directory / layout.CLUSTER_FILE, copy)
        paths = sorted(path for path in copy.rglob("*"))
        unfinished.touch(mode=0o600)  # records, and the credentials of SCRAM
        with tarfile.open(unfinished, mode) as archive:
            for number, path in enumerate(paths, start=1):
                archive.add(path, arcname=str(path.relative_to(copy)), recursive=False)
                note(number / len(paths))
        unfinished.rename(file)
    except OSError as error:
        raise ClusterError(f"{file} is not written: {error.strerror or error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
        shutil.rmtree(copy, ignore_errors=True)


def unpack(
    file: Path,
    directory: Path,
    *,
    host: str,
    port: int,
    advertised: str | None = None,
    listeners: Sequence[str] = (),
) -> None:
    """Make the cluster of an archive in a directory that holds no cluster, with other addresses.

    `host`, `port`, `advertised`, `listeners`: as for a new cluster (`layout.plan`). Raises
    ClusterError; then the directory is as before.
    """
    if directory.exists() and any(directory.iterdir()):
        raise InvalidArgument(
            f"{directory} is not empty: choose another --dir for the cluster in {file}"
        )
    unfinished = directory.absolute().with_name(f".{directory.absolute().name}{_UNFINISHED}")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True, mode=0o700)
        with tarfile.open(file) as archive:
            archive.extractall(unfinished, filter="data")
        recorded = _recorded(unfinished, file)
        planned = layout.plan(
            [node.roles for node in recorded.nodes],
            host=host,
            port=port,
            config={},
            first_id=recorded.nodes[0].id,
            advertised=advertised,
            listeners=listeners,
            protection=recorded.security,
            racks=[node.rack for node in recorded.nodes],
        )
        _arrange(unfinished, recorded, planned.nodes)
        if directory.exists():
            directory.rmdir()
        unfinished.rename(directory)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        reason = str(error).partition("\n")[0].rstrip(":")
        raise ClusterError(f"{file} is no archive of `quorumlog save`: {reason}") from error
    except OSError as error:
        named = error.filename or file
        raise ClusterError(f"{named}: {error.strerror or error}; nothing was made") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _recorded(directory: Path, file: Path) -> ClusterSpec:
    """Return the cluster of an unpacked archive. Raises ClusterError, which names the archive."""
    for name in (snapshots.MANIFEST, layout.CLUSTER_FILE):
        if not (directory / name).is_file():
            raise ClusterError(f"{file} is no archive of `quorumlog save`: it lacks {name}")
    try:
        recorded = layout.load(directory)
        snapshots.check(directory, recorded)
    except ClusterError as error:
        reason = str(error).replace(f"{directory}/", "").replace(str(directory), "the snapshot")
        raise ClusterError(f"{file}: {reason}") from error
    if not recorded.nodes:
        raise ClusterError(f"{file} is no archive of `quorumlog save`: its cluster has no node")
    return recorded


def _arrange(directory: Path, recorded: ClusterSpec, nodes: tuple[NodeSpec, ...]) -> None:
    """Make a cluster's directory of an unpacked archive, with the addresses of `nodes`."""
    for node in recorded.nodes:
        data = layout.data_directory(directory, node.id)
        copied = layout.node_directory(directory, node.id)
        moved = copied.with_name(f"{copied.name}.data")
        copied.rename(moved)
        copied.mkdir()
        moved.rename(data)
    (directory / snapshots.MANIFEST).unlink()
    config = {name: value for name, value in recorded.config.items() if name not in _OF_ONE_NODE}
    make_secret(directory)
    copy = replace(recorded, nodes=nodes, config=config, was_ready=True, is_copy=True)
    security.make_files(directory, copy, {})
    layout.save(directory, copy)
