"""Named snapshots of a cluster's log directories: taken after a clean stop, restored all at once.

    DIR/snapshots/NAME/snapshot.json     format, release, cluster id, the ids of the nodes
    DIR/snapshots/NAME/node-<id>/        a copy of the node's log directory
    DIR/restoring.json                   a restore has begun to exchange directories
    DIR/node-<id>/data.restoring         the copy of a restore that has not replaced `data` yet
    DIR/node-<id>/data.replaced          the directory that a restore has replaced

A copy of a log directory is trusted only if the process that wrote it closed every log, and the
metadata still has its registration (docs/decisions/0012-registrations.md). So a snapshot consists
of the closed directories of all nodes, and a restore puts back all of them: a part would be the
past of a cluster that has gone on.

Files are copied, never linked: nodes append to them, and cut them, in place. A copy has the times
of its file, by which a record ages (docs/time-on-request.md). Where the file system
can share blocks, a copy shares them. Every file is on the disk before its snapshot has its name.

A restore that was killed is resolved before the next start, snapshot or restore: completed if
restoring.json exists, else given up. One that still runs holds a lock.
"""

import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from quorumlog.cluster import forked, layout, registry
from quorumlog.cluster.conditions import did_you_mean
from quorumlog.cluster.errors import ClusterError, InvalidArgument
from quorumlog.cluster.files import flush_directory
from quorumlog.cluster.layout import ClusterSpec
from quorumlog.storage.io.checkpoints import CLEAN_SHUTDOWN_FILE
from quorumlog.storage.io.disk import RESERVE_FILE

if TYPE_CHECKING:
    from quorumlog.cluster.local_cluster import LocalCluster

SNAPSHOTS: Final = "snapshots"
MANIFEST: Final = "snapshot.json"
FORMAT: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_UNFINISHED: Final = ".unfinished"
_LEFT_OUT: Final = frozenset({".lock", RESERVE_FILE})  # a node makes its own
_CANNOT_SHARE: Final = frozenset(
    {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM}
)


def take(cluster: "LocalCluster", name: str) -> None:
    """Take a snapshot. See LocalCluster.snapshot."""
    if _NAME.fullmatch(name) is None:
        raise InvalidArgument(
            f"a snapshot cannot be called {name!r}: use up to 100 letters, digits, '.', '_', '-'"
        )
    target = cluster.directory / SNAPSHOTS / name
    if target.exists():
        raise InvalidArgument(
            f"there is a snapshot {name} already; choose another name, or remove {target}"
        )
    with stopped(cluster):
        write(cluster.directory, cluster.spec, target)


@contextmanager
def stopped(cluster: "LocalCluster") -> Iterator[None]:
    """Stop the running nodes cleanly for the time of a block; then start them again.

    Raises ClusterError if the log directories are not those of nodes that stopped cleanly, or if
    they cannot be started again.
    """
    with _alone(cluster.directory):
        _resolve(cluster.directory)
        running = cluster.running()
        for node in cluster.nodes:
            if node.id not in running and not is_closed(cluster.directory, cluster.spec, node.id):
                raise ClusterError(
                    f"node {node.id} did not stop cleanly, and its files may lack records: start"
                    " it first"
                )
        try:
            _stop(cluster, running)
            yield
        finally:
            try:
                _start_again(cluster, running)
            except KeyboardInterrupt:  # an interrupted start ends the nodes that it has begun
                _start_again(cluster, running)
                raise


def _stop(cluster: "LocalCluster", running: Iterable[int]) -> None:
    killed = cluster.stop_nodes()
    if killed:
        names = ", ".join(map(str, killed))
        raise ClusterError(f"node {names} did not stop in time and was killed: try again")
    open_ones = [one for one in running if not is_closed(cluster.directory, cluster.spec, one)]
    if open_ones:
        raise ClusterError(f"node {open_ones[0]} ended without closing its logs: try again")


def _start_again(cluster: "LocalCluster", node_ids: Iterable[int]) -> None:
    cluster.stop_nodes()  # an interrupt may leave some that still stop: no start is due yet
    try:
        start(cluster, node_ids)
    except ClusterError as error:
        where = f"`quorumlog up --detach --dir {cluster.directory}` starts the nodes"
        raise ClusterError(f"the nodes are stopped: {error}; then {where}") from error


def start(cluster: "LocalCluster", node_ids: Iterable[int]) -> None:
    """Start these nodes: all together if they are all nodes."""
    if not cluster.is_detached:
        forked.keep()  # a program that restores once does so for each of its tests
    wanted = [*node_ids]
    if len(wanted) == len(cluster.nodes):
        cluster.start()
        return
    for node_id in wanted:
        cluster.start_node(node_id, wait=False)


def is_closed(directory: Path, spec: ClusterSpec, node_id: int) -> bool:
    """Return whether a stopped broker has closed every log; True for a controller alone."""
    marker = layout.data_directory(directory, node_id) / CLEAN_SHUTDOWN_FILE
    return not spec.node(node_id).is_broker or marker.exists()


def write(directory: Path, spec: ClusterSpec, target: Path) -> None:
    """Copy the closed log directories of all nodes into a new directory, which appears as a whole.

    Raises ClusterError, for example if the disk is full; then nothing is left behind.
    """
    from quorumlog import __version__

    unfinished = target.with_name(f"{_UNFINISHED}-{target.name}")
    manifest = {
        "format": FORMAT,
        "version": __version__,
        "cluster_id": spec.cluster_id,
        "nodes": [node.id for node in spec.nodes],
    }
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700, parents=True)  # as private as the secured logs in it
        _copy_trees(
            (layout.data_directory(directory, node.id), unfinished / f"node-{node.id}")
            for node in spec.nodes
        )
        _write(unfinished / MANIFEST, manifest)
        unfinished.rename(target)
        flush_directory(target.parent)
    except OSError as error:
        raise ClusterError(f"no snapshot was taken: {_text(error)}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def restore(cluster: "LocalCluster", name: str) -> None:
    """Put back the log directories of a snapshot. See LocalCluster.restore."""
    source = find(cluster.directory, name)
    check(source, cluster.spec)
    prepared = {
        node.id: layout.node_directory(cluster.directory, node.id) / layout.RESTORING
        for node in cluster.nodes
    }
    with _alone(cluster.directory):
        _resolve(cluster.directory)
        try:
            _copy_trees((source / f"node-{node_id}", path) for node_id, path in prepared.items())
        except OSError as error:
            _remove(prepared.values())
            raise ClusterError(f"snapshot {name} is not restored: {_text(error)}") from error
        running = cluster.running()
        cluster.kill(*running)  # their records are given up: nothing of them is to be closed
        registry.forget(cluster.spec.cluster_id, cluster.directory)
        _write(cluster.directory / layout.RESTORING_FILE, {"nodes": [*prepared]})
        _resolve(cluster.directory)
    start(cluster, running)


def _remove(directories: Iterable[Path]) -> None:
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold the lock of snapshots and restores; it ends with this process. Raises ClusterError."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ClusterError(f"there is no snapshot to take or restore: {_text(error)}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterError(
                f"a snapshot is being taken or restored in {directory}; try again after that"
            ) from None
        yield
    finally:
        os.close(descriptor)


def resolve(directory: Path) -> None:
    """Complete a restore that was killed, or give it up if it had not begun to exchange.

    No node of an exchange runs. Raises ClusterError, also while a restore runs.
    """
    with _alone(directory):
        _resolve(directory)


def _resolve(directory: Path) -> None:
    if (directory / layout.RESTORING_FILE).exists():
        _exchange(directory)
    _unfinished(directory / layout.RESTORING_FILE).unlink(missing_ok=True)
    _remove(directory.glob(f"node-*/{layout.RESTORING}"))
    _remove(directory.glob(f"node-*/{layout.REPLACED}"))


def _exchange(directory: Path) -> None:
    """Exchange the log directories of a restore; a part may have been exchanged before a crash."""
    begun = directory / layout.RESTORING_FILE
    try:
        for node_id in json.loads(begun.read_text())["nodes"]:
            data = layout.data_directory(directory, node_id)
            prepared, replaced = data.with_name(layout.RESTORING), data.with_name(layout.REPLACED)
            if prepared.exists():
                if data.exists():
                    shutil.rmtree(replaced, ignore_errors=True)
                    data.rename(replaced)
                prepared.rename(data)
            flush_directory(data.parent)
        begun.unlink()
    except (OSError, ValueError, KeyError) as error:
        raise ClusterError(f"{begun}: the restore cannot be completed: {error}") from error


def find(directory: Path, name: str) -> Path:
    """Return the directory of a snapshot. Raises InvalidArgument with the existing names."""
    known = names(directory)
    if name not in known:
        there_are = f"there are {', '.join(known)}" if known else "there is none"
        raise InvalidArgument(
            f"no snapshot is called {name!r}{did_you_mean(name, known)}; {there_are}"
        )
    return directory / SNAPSHOTS / name


def names(directory: Path) -> list[str]:
    """Return the names of a cluster's snapshots, sorted."""
    found = (directory / SNAPSHOTS).glob(f"*/{MANIFEST}")
    return sorted(path.parent.name for path in found if not path.parent.name.startswith("."))


def check(source: Path, spec: ClusterSpec | None) -> None:
    """Raise ClusterError unless this release can restore a snapshot into this cluster.

    `spec` None: into a new cluster.
    """
    manifest = _read(source / MANIFEST)
    from quorumlog import __version__

    version = str(manifest.get("version"))
    if manifest.get("format") != FORMAT or _release(version) > _release(__version__):
        raise ClusterError(
            f"{source} was taken by quorumlog {version}, format {manifest.get('format')}; this is"
            f" {__version__}, format {FORMAT}: use that release"
        )
    if spec is not None and manifest.get("cluster_id") != spec.cluster_id:
        raise ClusterError(f"{source} is of cluster {manifest.get('cluster_id')}, another one")
    ids = [node.id for node in spec.nodes] if spec is not None else manifest.get("nodes")
    if manifest.get("nodes") != ids:
        raise ClusterError(f"{source} is of the nodes {manifest.get('nodes')}; there are {ids}")
    lacking = [one for one in ids or [] if not (source / f"node-{one}").is_dir()]
    if lacking:
        raise ClusterError(f"{source} is damaged: it lacks the directory of node {lacking[0]}")


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _read(path: Path) -> Mapping[str, Any]:
    try:
        manifest = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ClusterError(f"{path} cannot be read ({error}); remove {path.parent}") from error
    if not isinstance(manifest, dict):
        raise ClusterError(f"{path} is damaged; remove {path.parent}")
    return manifest


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a small file, durably and as a whole."""
    new = _unfinished(path)
    with new.open("w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    flush_directory(path.parent)


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _copy_trees(pairs: Iterable[tuple[Path, Path]]) -> None:
    """Copy several directories at once, durably: most of the time is the disk's. Raises OSError."""
    with ThreadPoolExecutor() as pool:
        for copied in [pool.submit(_copy_tree, *pair) for pair in pairs]:
            copied.result()


def _copy_tree(source: Path, target: Path) -> None:
    """Copy a directory, durably. Raises OSError."""
    target.mkdir()
    for entry in sorted(os.scandir(source), key=lambda one: one.name):
        if entry.name in _LEFT_OUT:
            continue
        if entry.is_dir(follow_symlinks=False):
            _copy_tree(Path(entry.path), target / entry.name)
        else:
            _copy_file(Path(entry.path), target / entry.name)
    flush_directory(target)


def _copy_file(source: Path, target: Path) -> None:
    with source.open("rb") as read, target.open("xb") as written:
        size = os.fstat(read.fileno()).st_size
        if not _share(read.fileno(), written.fileno(), size):
            read.seek(0)
            written.truncate(0)
            shutil.copyfileobj(read, written, 1 << 20)
            written.flush()
        times = os.fstat(read.fileno())
        os.utime(written.fileno(), ns=(times.st_atime_ns, times.st_mtime_ns))  # ages of segments
        os.fsync(written.fileno())


def _share(read: int, written: int, size: int) -> bool:
    """Copy in the kernel, which shares blocks where it can; return whether all was copied."""
    copy = getattr(os, "copy_file_range", None)  # Linux
    left = size if copy is not None else -1
    try:
        while copy is not None and left > 0:
            count = copy(read, written, left)
            if not count:
                break
            left -= count
    except OSError as error:
        if error.errno not in _CANNOT_SHARE:
            raise
    return left == 0


def _text(error: OSError) -> str:
    return f"{error.filename or 'the disk'}: {error.strerror or error}"
