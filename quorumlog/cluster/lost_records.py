"""Undetectable loss of records on a node that is down."""

import os
from mmap import ACCESS_READ, mmap
from pathlib import Path

from quorumlog.cluster.errors import ClusterError
from quorumlog.cluster.layout import METADATA_LOG, data_directory
from quorumlog.storage.io.checkpoints import (
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    encode_offset_checkpoint,
)
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.records import iterate_headers


def lose_records(directory: Path, node_id: int) -> None:
    """Cut off the newer half of each partition's log of a node. Raises ClusterError.

    The node cannot detect it: each log ends with a whole batch, and the checkpoints are empty.
    """
    data = data_directory(directory, node_id)
    try:
        for checkpoint in (RECOVERY_POINT_FILE, REPLICATION_FILE):
            (data / checkpoint).write_bytes(encode_offset_checkpoint({}))
        for partition in data.iterdir():
            segments = sorted(partition.glob("*.log")) if partition.name != METADATA_LOG else []
            left = sum(segment.stat().st_size for segment in segments) // 2
            for segment in segments:
                size = segment.stat().st_size
                os.truncate(segment, _whole_batches(segment, min(size, left)))
                left -= min(size, left)
    except (OSError, CorruptBatch) as error:
        raise ClusterError(f"cannot cut the logs in {data}: {error}") from error


def _whole_batches(segment: Path, size: int) -> int:
    """Return the number of bytes of whole batches within the first `size` bytes."""
    if not size:
        return 0
    with (
        segment.open("rb") as file,
        mmap(file.fileno(), size, access=ACCESS_READ) as mapped,
        memoryview(mapped) as content,
    ):
        return sum(header.size_in_bytes for _, header in iterate_headers(content))
