"""MirrorMaker 2's internal topics: their names, and the bytes of their records (KIP-382).

Java's RemoteClusterUtils and MirrorClient read these. All numbers are big-endian; a STRING is an
int16 length and UTF-8. Checkpoints and heartbeats have an int16 version, 0, before the value.
Source: OffsetSync, Checkpoint and Heartbeat of connect-mirror 4.3.
"""

import struct
from typing import Final

from quorumlog.client.records import OffsetAndMetadata
from quorumlog.mirror.core.selection import HEARTBEATS
from quorumlog.wire.codec.identifiers import TopicPartition

Record = tuple[bytes, bytes]
"""Key and value."""

_VERSION: Final = struct.pack(">h", 0)


def offset_syncs_topic(target_alias: str) -> str:
    """Return the name of the topic of offset syncs; it is at the source."""
    return f"mm2-offset-syncs.{target_alias}.internal"


def checkpoints_topic(alias: str) -> str:
    """Return the name of the topic of checkpoints; it is at the target."""
    return f"{alias}.checkpoints.internal"


def heartbeats_topic() -> str:
    """Return the name of the topic of heartbeats at the source; it is mirrored as any other."""
    return HEARTBEATS


def offset_sync(place: TopicPartition, upstream: int, downstream: int) -> Record:
    """Return the record: the source's record at `upstream` is the copy at `downstream`."""
    return _text(place.topic) + _int32(place.partition), struct.pack(">qq", upstream, downstream)


def checkpoint(
    group: str, copy: TopicPartition, upstream: int, downstream: OffsetAndMetadata
) -> Record:
    """Return the record: a group's committed offset at the source, and its translation.

    copy: the partition at the target.
    """
    key = _text(group) + _text(copy.topic) + _int32(copy.partition)
    offsets = struct.pack(">qq", upstream, downstream.offset)
    return key, _VERSION + offsets + _text(downstream.metadata)


def heartbeat(alias: str, target_alias: str, time_ms: int) -> Record:
    """Return the record: the mirror from `alias` to `target_alias` was alive at `time_ms`."""
    return _text(alias) + _text(target_alias), _VERSION + struct.pack(">q", time_ms)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _int32(number: int) -> bytes:
    return struct.pack(">i", number)
