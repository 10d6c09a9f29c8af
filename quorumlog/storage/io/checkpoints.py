"""The small files of a log directory, in Kafka's formats; each is replaced whole and durably.

A damaged file is refused with its name and a remedy (CorruptCheckpoint): a guess could lose records
silently. But a damaged file of offsets counts as missing, with a warning: the logs and the other
replicas make up for it.
Byte layouts: docs/log-format.md.
"""

import json
import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from crc32c import crc32c

from quorumlog.invariants import require
from quorumlog.storage.errors import CorruptCheckpoint
from quorumlog.storage.io.disk import Disk, read_file, write_file_durably
from quorumlog.wire.codec.identifiers import BrokerId, Offset, TopicId, TopicPartition

RECOVERY_POINT_FILE: Final = "recovery-point-offset-checkpoint"
REPLICATION_FILE: Final = "replication-offset-checkpoint"
CLEANED_FILE: Final = "cleaner-offset-checkpoint"
LOG_START_FILE: Final = "log-start-offset-checkpoint"
META_PROPERTIES_FILE: Final = "meta.properties"
CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
PARTITION_METADATA_FILE: Final = "partition.metadata"
LOCK_FILE: Final = ".lock"

CONSEQUENCES: Final[Mapping[str, str]] = {
    RECOVERY_POINT_FILE: "every segment is checked",
    REPLICATION_FILE: "high watermarks start low, and rise with the first fetches",
    LOG_START_FILE: "logs start at their first segment, or at the leader's log start offset;"
    " records that DeleteRecords removed may be readable again",
    CLEANED_FILE: "compacted logs are cleaned from their start again",
}
"""The consequence of a missing file of offsets, by its name."""

REMEDIES: Final[Mapping[str, str]] = {
    META_PROPERTIES_FILE: "write it again without the #crc32c line, with this node's cluster.id,"
    " node.id and directory.id",
    PARTITION_METADATA_FILE: "write it again with the topic's id, or delete the partition's"
    " directory if another replica is in sync",
}

_logger: Final = logging.getLogger(__name__)


def _corrupt(path: str, reason: object) -> CorruptCheckpoint:
    remedy = REMEDIES[path.rpartition("/")[2]]
    return CorruptCheckpoint(f"{path} is damaged ({reason}): {remedy}")


# --- offsets of partitions ---

_CHECKSUM_ENTRY: Final = TopicPartition("#crc32c", 0)  # no topic can have this name


def write_offset_checkpoint(
    disk: Disk, log_dir: str, file_name: str, offsets: Mapping[TopicPartition, Offset]
) -> None:
    """Replace a checkpoint: durable when it returns. Raises OSError."""
    write_file_durably(disk, f"{log_dir}/{file_name}", encode_offset_checkpoint(offsets))


def encode_offset_checkpoint(offsets: Mapping[TopicPartition, Offset]) -> bytes:
    """Return the content of a checkpoint. Its last entry is the checksum of the lines before it."""
    lines = ["0", str(len(offsets) + 1)]
    lines += [_entry(at, offset) for at, offset in sorted(offsets.items())]
    content = ("\n".join(lines) + "\n").encode()
    return content + f"{_entry(_CHECKSUM_ENTRY, crc32c(content))}\n".encode()


def _entry(at: TopicPartition, offset: int) -> str:
    return f"{at.topic} {at.partition} {offset}"


def read_offset_checkpoint(
    disk: Disk, log_dir: str, file_name: str
) -> dict[TopicPartition, Offset]:
    """Read a checkpoint; a missing or damaged file has no entries. Raises OSError."""
    path = f"{log_dir}/{file_name}"
    if not disk.exists(path):
        return {}
    try:
        return decode_offset_checkpoint(read_file(disk, path))
    except ValueError as error:
        _logger.warning(
            "%s is damaged (%s), and counts as missing: %s", path, error, CONSEQUENCES[file_name]
        )
        return {}


def decode_offset_checkpoint(content: bytes) -> dict[TopicPartition, Offset]:
    """Read the content of a checkpoint. Raises ValueError unless it is whole.

    Kafka creates the file empty, and reads an empty file as no entries (CheckpointFile). A file
    whose last entry is not a checksum was written by Kafka or a former release.
    """
    if not content:
        return {}
    text = content.decode()
    version, count, *lines = text.splitlines()
    rows = [line.split(" ") for line in lines]
    offsets = {TopicPartition(topic, int(index)): Offset(int(at)) for topic, index, at in rows}
    if version != "0" or int(count) != len(offsets) or not text.endswith("\n"):
        raise ValueError(f"version {version}; {len(offsets)} of {count} entries")
    is_last = _CHECKSUM_ENTRY in offsets and lines[-1].startswith(f"{_CHECKSUM_ENTRY.topic} ")
    checksum = offsets.pop(_CHECKSUM_ENTRY, None)
    if is_last and checksum != crc32c(content[: -len(lines[-1]) - 1]):
        raise ValueError("its checksum differs")
    return offsets


# --- meta.properties ---

_CHECKSUM: Final = "#crc32c="


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """The cluster, node and directory ids of a log directory. Ids are Kafka's text of a UUID."""

    cluster_id: str
    node_id: BrokerId
    directory_id: str


def write_meta_properties(disk: Disk, log_dir: str, meta: MetaProperties) -> None:
    """Write `meta.properties`, version 1: durable when it returns. Raises OSError.

    The checksum covers the file without the checksum's line, which is a comment to Apache Kafka.
    """
    lines = [
        f"cluster.id={meta.cluster_id}",
        f"directory.id={meta.directory_id}",
        f"node.id={meta.node_id}",
        "version=1",
    ]
    content = ("\n".join(lines) + "\n").encode()
    checksum = f"{_CHECKSUM}{crc32c(content):08x}\n".encode()
    write_file_durably(disk, f"{log_dir}/{META_PROPERTIES_FILE}", checksum + content)


def read_meta_properties(disk: Disk, log_dir: str) -> MetaProperties | None:
    """Read `meta.properties`; None if there is none. Raises CorruptCheckpoint, OSError."""
    path = f"{log_dir}/{META_PROPERTIES_FILE}"
    if not disk.exists(path):
        return None
    try:
        return decode_meta_properties(read_file(disk, path))
    except (KeyError, ValueError) as error:
        raise _corrupt(path, error) from error


def decode_meta_properties(content: bytes) -> MetaProperties:
    """Read the content of `meta.properties`. Raises KeyError or ValueError unless it is whole.

    A file without a checksum was written by Kafka or a former release.
    """
    text = content.decode()
    if text.startswith(_CHECKSUM):
        line, _, rest = text.partition("\n")
        if line != f"{_CHECKSUM}{crc32c(rest.encode()):08x}":
            raise ValueError("its checksum differs")
    properties = _parse_properties(text)
    if properties["version"] != "1":
        raise ValueError(f"version {properties['version']}")
    return MetaProperties(
        cluster_id=properties["cluster.id"],
        node_id=BrokerId(int(properties["node.id"])),
        directory_id=properties["directory.id"],
    )


def _parse_properties(text: str) -> dict[str, str]:
    """Parse Java properties as Kafka writes them: comments, and a backslash before ":" or "="."""
    properties = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith(("#", "!")):
            name, _, value = line.partition("=")
            properties[name.strip()] = value.strip().replace("\\", "")
    return properties


# --- clean shutdown ---


class CleanShutdownMarker:
    """The file that proves that all logs of this directory were flushed and closed.

    Invariant: it exists only between a complete shutdown and the next start; never after a start
    that did not finish (KAFKA-15375), since that start may not have opened every log.
    """

    def __init__(self, disk: Disk, log_dir: str) -> None:
        self._disk = disk
        self._log_dir = log_dir
        self._path = f"{log_dir}/{CLEAN_SHUTDOWN_FILE}"
        self._is_taken = self._is_started = False
        self._found: bytes | None = None

    def take(self) -> int | None:
        """Remove the marker, durably, before any log is written to.

        Returns the broker epoch of the shutdown, -1 if the file lacks it; None: it was not clean.
        Raises OSError: then the call may be repeated.
        """
        self._is_taken = True
        if self._disk.exists(self._path):
            self._found = read_file(self._disk, self._path)
            self._disk.unlink(self._path)
        if self._found is None:
            return None
        self._disk.fsync_dir(self._log_dir)
        try:
            fields = json.loads(self._found)
        except ValueError:
            return -1  # its existence suffices; Kafka before 3.8 left it empty
        epoch = fields.get("brokerEpoch", -1) if isinstance(fields, dict) else -1
        return epoch if isinstance(epoch, int) else -1

    def note_started(self) -> None:
        """Record that every log of the directory is open."""
        require(self._is_taken, "the marker is taken before logs are opened")
        self._is_started = True

    def leave(self, broker_epoch: int) -> bool:
        """Write the marker, if start-up had finished; every log has been closed with `clean`.

        Returns whether it was written, durably. Raises OSError.
        """
        if not self._is_started:
            return False
        content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode()
        write_file_durably(self._disk, self._path, content)
        self._is_started = False
        return True


# --- partition.metadata ---


def uuid_to_text(uuid: bytes) -> str:
    """Return Kafka's text form of 16 bytes: base64 for URLs, without the padding."""
    return urlsafe_b64encode(uuid).rstrip(b"=").decode("ascii")


def uuid_from_text(text: str) -> bytes:
    """Return the 16 bytes. Raises ValueError."""
    uuid = urlsafe_b64decode(f"{text}==")
    if uuid_to_text(uuid) != text or len(uuid) != 16:
        raise ValueError(f"{text!r} is not a UUID in base64")
    return uuid


class PartitionMetadata(NamedTuple):
    """The topic id of a log. `is_checked`: the file has a checksum; Kafka's files have none."""

    topic_id: TopicId
    is_checked: bool


def write_partition_metadata(
    disk: Disk, partition_dir: str, topic_id: TopicId, *, is_new: bool = False
) -> None:
    """Write the topic id into the partition's directory. Raises OSError.

    The file is durable on return, unless the directory `is_new`: then a crash may leave it torn.
    """
    content = encode_partition_metadata(topic_id)
    path = f"{partition_dir}/{PARTITION_METADATA_FILE}"
    if not is_new:
        write_file_durably(disk, path, content)
        return
    with closing(disk.open(path, create=True)) as file:
        file.truncate(0)  # leftovers of a failed write
        file.append([content])


def read_partition_metadata(disk: Disk, partition_dir: str) -> PartitionMetadata | None:
    """Read the topic id of a log; None if the directory holds neither file nor records.

    The file exists before the first append, and is durable before the first flush. Raises
    CorruptCheckpoint, also for records without it (see `was_flushed`), and OSError.
    """
    path = f"{partition_dir}/{PARTITION_METADATA_FILE}"
    try:
        content = read_file(disk, path)
    except FileNotFoundError:
        logs = (name for name in disk.listdir(partition_dir) if name.endswith(".log"))
        if any(disk.size(f"{partition_dir}/{name}") for name in logs):
            missing = FileNotFoundError("there is no such file beside the records")
            raise _corrupt(path, missing) from None
        return None
    try:
        return decode_partition_metadata(content)
    except ValueError as error:
        raise _corrupt(path, error) from error


@lru_cache(maxsize=100)  # a topic's partitions have it in common
def encode_partition_metadata(topic_id: TopicId) -> bytes:
    """Return the content of the file. Apache Kafka reads only its own two lines."""
    content = f"version: 0\ntopic_id: {uuid_to_text(topic_id)}\n".encode()
    return content + _checksum_line(content)


def _checksum_line(content: bytes) -> bytes:
    return f"crc32c: {crc32c(content):08x}\n".encode()


@lru_cache(maxsize=100)  # a topic's partitions have it in common
def decode_partition_metadata(content: bytes) -> PartitionMetadata:
    """Read the content of the file. Raises ValueError unless it is whole."""
    version, id_line, *rest = content.splitlines(keepends=True)
    name, _, text = id_line.decode("ascii").strip().partition(": ")
    if version.strip() != b"version: 0" or name != "topic_id":
        raise ValueError(f"it begins with {version!r}, {id_line!r}")
    if rest not in ([], [_checksum_line(version + id_line)]):
        raise ValueError("its checksum differs")
    return PartitionMetadata(TopicId(uuid_from_text(text)), is_checked=bool(rest))
