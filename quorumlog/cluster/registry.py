"""Records the running nodes of this user: one small file for each, outside any cluster's directory.

    $XDG_STATE_HOME/quorumlog/nodes/<cluster id>-<node id>-<process id>.json   (else ~/.local/state)

So `status --all` and `down --all` find every cluster, also after its directory was removed. A file
identifies the process by its id and start time: a later process with the same id is not taken for
the node. The next reader removes the files of nodes that have ended, and temporary directories
whose owners have ended.
"""

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Final

from quorumlog.cluster import process_identity

TEMPORARY_PREFIX: Final = "quorumlog-temporary-"
CONTROL_SERVER: Final = -1  # in place of a node id
_SUFFIX: Final = ".json"
_log = logging.getLogger("quorumlog.cluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One started node, or the control server, with the identity of its process and its owner."""

    directory: str  # absolute
    cluster_id: str
    node_id: int
    kafka: str  # host:port; empty for a node without the role broker
    pid: int
    started: str  # process_identity.started(pid)
    owner_pid: int  # the process that started it
    owner_started: str
    temporary: bool  # the directory is removed when the owner has ended

    @property
    def name(self) -> str:
        """The name of the process within its cluster."""
        return "the control server" if self.is_control_server else f"node {self.node_id}"

    @property
    def is_control_server(self) -> bool:
        """Whether it is no node."""
        return self.node_id == CONTROL_SERVER

    @property
    def is_running(self) -> bool:
        """Whether this very process still runs."""
        return process_identity.is_running(self.pid, self.started)

    @property
    def is_owned(self) -> bool:
        """Whether the process that started the node still runs."""
        return process_identity.is_running(self.owner_pid, self.owner_started)


def home() -> Path | None:
    """Return the directory of the files, or None if this user has no home directory."""
    state = os.environ.get("XDG_STATE_HOME", "")
    if Path(state).is_absolute():  # its specification: ignore a relative path
        return Path(state) / "quorumlog" / "nodes"
    try:
        return Path.home() / ".local" / "state" / "quorumlog" / "nodes"
    except RuntimeError:
        return None


def add(entry: Entry) -> None:
    """Record a node that was just started.

    If the home directory is not writable, only `status --all` lacks the node, and a warning is
    logged.
    """
    directory = home()
    if directory is None:
        _warn("there is no home directory")
        return
    path = directory / f"{entry.cluster_id}-{entry.node_id}-{entry.pid}{_SUFFIX}"
    new = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps(asdict(entry), indent=2) + "\n", encoding="utf-8")
        new.replace(path)
        for former in path.parent.glob(f"{entry.cluster_id}-{entry.node_id}-*{_SUFFIX}"):
            if former != path and _is_of(former, entry.directory):
                former.unlink(missing_ok=True)
    except OSError as error:
        _warn(str(error))


@cache
def _warn(reason: str) -> None:
    """Log a reason once, not for every node."""
    _log.warning("`quorumlog status --all` will not show the nodes started here: %s", reason)


def forget(cluster_id: str, directory: Path) -> None:
    """Remove the records of a cluster in its directory: all its nodes have ended.

    The record of a control server that runs stays. A cluster that was made of a saved one has the
    same id, in another directory.
    """
    for path in _files():
        is_named = path.name.startswith(f"{cluster_id}-")
        entry = _read(path) if is_named else None
        if entry is None or entry.directory != str(directory):
            continue
        if not (entry.is_control_server and entry.is_running):
            _unlink(path)


def _is_of(path: Path, directory: str) -> bool:
    """Return whether a file records a node of the cluster in `directory`."""
    entry = _read(path)
    return entry is not None and entry.directory == directory


def running() -> list[Entry]:
    """Return this user's running nodes, by directory and id; clean up after the others."""
    found = []
    orphaned = set[tuple[str, str]]()
    for path in _files():
        entry = _read(path)
        if entry is None:
            continue
        if entry.is_running:
            found.append(entry)
        elif not entry.temporary:
            _unlink(path)
        elif not entry.is_owned:
            _unlink(path)
            orphaned.add((entry.directory, entry.cluster_id))
    for directory, cluster_id in sorted(orphaned):
        if all(entry.cluster_id != cluster_id for entry in found):
            remove_temporary(Path(directory))
    return sorted(found, key=lambda entry: (entry.directory, entry.cluster_id, entry.node_id))


def temporary_path() -> Path:
    """Choose the directory of a temporary cluster, to be created when the cluster starts."""
    return Path(tempfile.gettempdir()).absolute() / f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}"


def remove_temporary(directory: Path) -> None:
    """Remove the directory of a temporary cluster; a directory of another name stays."""
    if directory.name.startswith(TEMPORARY_PREFIX):
        shutil.rmtree(directory, ignore_errors=True)


def _files() -> Iterator[Path]:
    directory = home()
    if directory is None:
        return
    try:
        yield from sorted(path for path in directory.iterdir() if path.suffix == _SUFFIX)
    except OSError:  # it does not exist yet, or is not readable
        return


def _read(path: Path) -> Entry | None:
    """Read one file; remove it if it is damaged."""
    try:
        return _parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.warning("%s: %s", path, error)
        return None
    except (ValueError, TypeError):
        _log.warning("%s is damaged: removed", path)
        _unlink(path)
        return None


def _parse(text: str) -> Entry:
    """Parse the content written by `add`. Raises ValueError or TypeError."""
    entry = Entry(**json.loads(text))
    for field in fields(entry):
        if type(getattr(entry, field.name)) is not field.type:
            raise TypeError(f"{field.name} is not a {field.type}")
    return entry


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:  # the file stays, without effect
        _log.debug("%s: %s", path, error)
