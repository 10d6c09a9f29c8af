"""Files of a log directory, and the results of `dump-log` for them."""

import json
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

from quorumlog.cli.dump.contents import Asked, Item, Problem
from quorumlog.cli.dump.files import contents_of
from quorumlog.metadata_quorum.log.election_store import Election, ElectionStore
from quorumlog.storage.core.aborted_transactions import NONE_ABORTED
from quorumlog.storage.core.producer_snapshot import SnapshotEntry, encode_snapshot
from quorumlog.storage.io.checkpoints import (
    MetaProperties,
    write_meta_properties,
    write_offset_checkpoint,
)
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.identifiers import BrokerId, Offset, PartitionIndex, TopicPartition
from quorumlog.wire.codec.message import Buffer


def told(path: Path, **asked: Any) -> tuple[list[Item], list[Problem]]:
    """Return the items of a file, and its faults."""
    return told_of(path, path.read_bytes(), **asked)


def told_of(path: Path, content: Buffer, **asked: Any) -> tuple[list[Item], list[Problem]]:
    """Do as `told` does for a file that has this content."""
    with ExitStack() as opened:
        contents = contents_of(path, BytesIO(content), len(content), Asked(**asked), opened)
        found = list(contents.items)
    json.dumps([item for item in found if isinstance(item, dict)])
    problems = [item for item in found if isinstance(item, Problem)]
    return [item for item in found if not isinstance(item, Problem)], problems


def segment_of(directory: Path, *batches: Buffer) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{0:020d}.log"
    path.write_bytes(b"".join(batches))
    return path


def add_small_files(directory: Path) -> None:
    """Write one of each small file, as a node does."""
    disk = RealDisk()
    at = {TopicPartition("orders", PartitionIndex(0)): Offset(5)}
    write_offset_checkpoint(disk, str(directory), "replication-offset-checkpoint", at)
    meta = MetaProperties(cluster_id="c", node_id=BrokerId(1), directory_id="d")
    write_meta_properties(disk, str(directory), meta)
    ElectionStore(disk, str(directory), [BrokerId(1)]).save(Election(voted_id=BrokerId(1)))
    (directory / ".kafka_cleanshutdown").write_text('{"version": 0, "brokerEpoch": 4}')
    (directory / f"{9:020d}.snapshot").write_bytes(
        encode_snapshot([SnapshotEntry(*range(8))], NONE_ABORTED)
    )
