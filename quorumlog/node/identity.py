"""The identity of each log directory (its node and its id), and of the boot of the machine.

A directory without `meta.properties` is new, and gets an id of its own; the controller compares
the ids when a broker registers, and so detects a replaced disk (KIP-858). A directory with logs is
not new: with another id it would count as emptied.
"""

import logging
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from quorumlog.chance import random_bytes
from quorumlog.metadata_quorum.settings import NEW_CLUSTER_FILE
from quorumlog.node.config import NodeConfig
from quorumlog.node.listeners import StartFailed
from quorumlog.storage.errors import CorruptCheckpoint, DiskExhausted, lacks_room, storage_error
from quorumlog.storage.io.checkpoints import (
    META_PROPERTIES_FILE,
    REMEDIES,
    MetaProperties,
    read_meta_properties,
    uuid_to_text,
    write_meta_properties,
)
from quorumlog.storage.io.disk import Disk, keep_reserve
from quorumlog.wire.codec.identifiers import BrokerId

BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
_LOG: Final = re.compile(r".+-\d+")  # a partition's directory, also the metadata's
_logger: Final = logging.getLogger(__name__)


class TextFile(Protocol):
    """A file that is read as a whole: a `Path` or a substitute."""

    def read_text(self) -> str:
        """Return the content. Raises OSError."""


class OwnDirectory(NamedTuple):
    """A log directory of this node. `directory_id`: None if the directory failed."""

    path: str
    directory_id: str | None


def check_identities(
    disk: Disk, config: NodeConfig, refused: Collection[Path] = ()
) -> list[OwnDirectory]:
    """Check that every log directory belongs to this node. Raises StartFailed.

    A directory that fails, now or before (`refused`), stays offline; but without the metadata log's
    directory the node cannot start. The ids of new directories are durable on return. Raises
    DiskExhausted without space: a full disk is not a failed one.
    """
    own: list[OwnDirectory] = []
    for path in config.log_dirs:
        try:
            if path in refused:  # the reason is already logged
                own.append(OwnDirectory(str(path), None))
                continue
            directory_id = _check_identity(disk, config, str(path))
            keep_reserve(disk, str(path))
        except OSError as error:
            reason = f"cannot use {path}: {error.strerror or error}"
            if lacks_room(error):
                raise DiskExhausted(reason) from error
            if path == config.log_dir:
                raise StartFailed(reason) from error
            _logger.error("%s; its partitions are offline", reason)  # noqa: TRY400 - a disk's error, no bug
            own.append(OwnDirectory(str(path), None))
            continue
        twin = next((one.path for one in own if one.directory_id == directory_id), None)
        if twin is not None:
            raise StartFailed(
                f"{twin}/{META_PROPERTIES_FILE} and {path}/{META_PROPERTIES_FILE} have the same "
                f"directory.id {directory_id}: give the copy a new id"
            )
        own.append(OwnDirectory(str(path), directory_id))
    return own


def _check_identity(disk: Disk, config: NodeConfig, log_dir: str) -> str:
    """Return the id of a directory. Raises OSError, StartFailed."""
    try:
        disk.mkdir(log_dir)
        meta = read_meta_properties(disk, log_dir) or _make_ours(disk, config, log_dir)
    except CorruptCheckpoint as error:
        raise StartFailed(str(error)) from error
    for name, theirs, ours in (
        ("cluster", meta.cluster_id, config.cluster_id),
        ("node", meta.node_id, config.node_id),
    ):
        if theirs != ours:
            raise StartFailed(
                f"{log_dir} belongs to {name} {theirs}, not {ours}, by its "
                f"{META_PROPERTIES_FILE}; use another log.dirs"
            )
    return meta.directory_id


def is_new_cluster(disk: Disk, config: NodeConfig) -> bool:
    """Return whether the log directory was made for a voter of a new cluster. Raises OSError."""
    return disk.exists(f"{config.log_dir}/{NEW_CLUSTER_FILE}")


def forget_new_cluster(disk: Disk, config: NodeConfig) -> None:
    """Remove the marker of a new cluster: the election state is on the disk now.

    Durable on return. Raises StorageError.
    """
    path = f"{config.log_dir}/{NEW_CLUSTER_FILE}"
    try:
        if is_new_cluster(disk, config):
            disk.unlink(path)
            disk.fsync_dir(str(config.log_dir))
    except OSError as error:
        raise storage_error(f"cannot remove {path}: {error}", error) from error


def read_boot_id(file: TextFile) -> str | None:
    """Return the id of this boot of the machine; None if the system does not provide it."""
    try:
        return file.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _make_ours(disk: Disk, config: NodeConfig, log_dir: str) -> MetaProperties:
    logs = [name for name in disk.listdir(log_dir) if _LOG.fullmatch(name)]
    if logs:
        raise StartFailed(
            f"{log_dir} holds {logs[0]}, but no {META_PROPERTIES_FILE}: "
            f"{REMEDIES[META_PROPERTIES_FILE]}"
        )
    meta = MetaProperties(
        cluster_id=config.cluster_id,
        node_id=BrokerId(config.node_id),
        directory_id=uuid_to_text(random_bytes(16)),
    )
    write_meta_properties(disk, log_dir, meta)
    _logger.info("%s is new, with directory id %s", log_dir, meta.directory_id)
    return meta
