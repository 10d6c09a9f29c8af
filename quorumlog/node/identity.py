"""The identity of a log directory (its node and its id), and of the boot of the machine.

A directory without `meta.properties` is new, and gets an id of its own; the controller compares
the ids when a broker registers, and so learns that a disk was replaced (KIP-858). One that holds
logs is not new: with another id it would count as emptied.
"""

import logging
import re
from pathlib import Path
from typing import Final, Protocol

from quorumlog.chance import random_bytes
from quorumlog.metadata_quorum.io.founding import NEW_CLUSTER_FILE
from quorumlog.node.config import NodeConfig
from quorumlog.node.errors import StartFailed
from quorumlog.storage.errors import CorruptCheckpoint
from quorumlog.storage.io.checkpoints import (
    META_PROPERTIES_FILE,
    REMEDIES,
    MetaProperties,
    read_meta_properties,
    uuid_to_text,
    write_meta_properties,
)
from quorumlog.storage.io.disk import Disk
from quorumlog.wire.codec.identifiers import BrokerId

BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
_LOG: Final = re.compile(r".+-\d+")  # a partition's directory; the metadata's too
_logger: Final = logging.getLogger(__name__)


class TextFile(Protocol):
    """What is read as a whole: a `Path`, or what stands for one."""

    def read_text(self) -> str:
        """Return the content. Raises OSError."""


def check_identity(disk: Disk, config: NodeConfig) -> str:
    """Make sure that the log directory is this node's; return its id. Raises StartFailed.

    The id of a new one is durable on return.
    """
    log_dir = str(config.log_dir)
    try:
        meta = read_meta_properties(disk, log_dir) or _make_ours(disk, config)
    except CorruptCheckpoint as error:
        raise StartFailed(str(error)) from error
    except OSError as error:
        raise StartFailed(f"cannot use {log_dir}: {error.strerror}") from error
    for name, theirs, ours in (
        ("cluster", meta.cluster_id, config.cluster_id),
        ("node", meta.node_id, config.node_id),
    ):
        if theirs != ours:
            raise StartFailed(
                f"{log_dir} belongs to {name} {theirs}, not {ours}; use another log.dirs"
            )
    return meta.directory_id


def is_new_cluster(disk: Disk, config: NodeConfig) -> bool:
    """Tell whether the log directory was made for a voter of a new cluster. Raises OSError."""
    return disk.exists(f"{config.log_dir}/{NEW_CLUSTER_FILE}")


def forget_new_cluster(disk: Disk, config: NodeConfig) -> None:
    """Remove the mark of a new cluster: the election state is on the disk now.

    Durable on return. Raises OSError.
    """
    if is_new_cluster(disk, config):
        disk.unlink(f"{config.log_dir}/{NEW_CLUSTER_FILE}")
        disk.fsync_dir(str(config.log_dir))


def read_boot_id(file: TextFile) -> str | None:
    """Return the id of this boot of the machine; None where the system has none to read."""
    try:
        return file.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _make_ours(disk: Disk, config: NodeConfig) -> MetaProperties:
    log_dir = str(config.log_dir)
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
