"""The image with which a node starts: that of the newest snapshot that fits the log.

A snapshot that is damaged, or does not fit, stays where it is, with a warning. The next older
snapshot is used, or none: then the log is replayed from its start. If the log no longer has its
first records, the node refuses to start without a snapshot.
"""

import logging
from typing import Final, NamedTuple

from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.core.messages import SnapshotId
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.metadata_quorum.image.model import ClusterImage
from quorumlog.metadata_quorum.image.snapshot_records import image_of
from quorumlog.metadata_quorum.log.metadata_log import MetadataLog
from quorumlog.metadata_quorum.log.snapshot_files import CorruptSnapshot, SnapshotFiles
from quorumlog.storage.errors import DamagedLog

_logger: Final = logging.getLogger(__name__)


def restored_image(log: MetadataLog) -> ClusterImage | None:
    """Return the image to start with, without epoch and controller; None: an empty image.

    Raises DamagedLog if neither a snapshot nor the log contains the first records; StorageError.
    """
    refused: list[str] = []
    for snapshot_id in log.snapshots.ids():
        try:
            image = _image(log, snapshot_id)
        except CorruptSnapshot as error:
            refused.append(log.snapshots.path(snapshot_id))
            _logger.warning("%s; the file stays, unused", error)
        else:
            return image
    if log.start_offset > 0:
        raise DamagedLog(
            f"the metadata log starts at {log.start_offset}, and no snapshot has the records below"
            f"{'; damaged: ' + ', '.join(refused) if refused else ''}. Restore a snapshot "
            "from a copy; or, if other voters hold the log, move this node's log directory away"
        )
    return None


def _image(log: MetadataLog, snapshot_id: SnapshotId) -> ClusterImage:
    path = log.snapshots.path(snapshot_id)
    end_offset = snapshot_id.end_offset
    if not log.start_offset <= end_offset <= log.end_offset:
        raise CorruptSnapshot(
            f"the snapshot {path} ends at {end_offset}, but the log holds "
            f"[{log.start_offset}, {log.end_offset})"
        )
    if log.epoch_before(end_offset) != snapshot_id.epoch:
        raise CorruptSnapshot(f"the snapshot {path} is of another log: the epochs differ")
    return read_image(log.snapshots, snapshot_id)


class FetchedSnapshot(NamedTuple):
    """The content of a leader's snapshot; without voters, kraft.version is 0 at its end."""

    image: ClusterImage
    voters: VoterSet | None


def fetched_snapshot(snapshots: SnapshotFiles, snapshot_id: SnapshotId) -> FetchedSnapshot | None:
    """Return the content of a leader's snapshot from its draft; None: it is not whole.

    Raises StorageError.
    """
    try:
        image = read_image(snapshots, snapshot_id, is_fetched_draft=True)
        return FetchedSnapshot(image, snapshots.voters(snapshot_id, is_fetched_draft=True))
    except CorruptSnapshot as error:
        _logger.warning("the leader's snapshot is fetched anew: %s", error)
        return None


def read_image(
    snapshots: SnapshotFiles, snapshot_id: SnapshotId, *, is_fetched_draft: bool = False
) -> ClusterImage:
    """Return the image in a snapshot. Raises CorruptSnapshot, StorageError."""
    records = snapshots.read(snapshot_id, is_fetched_draft=is_fetched_draft)
    try:
        return image_of(records, snapshot_id.end_offset)
    except InvariantViolation as error:
        path = snapshots.path(snapshot_id)
        raise CorruptSnapshot(
            f"the snapshot {path} is damaged: its records do not fit: {error}"
        ) from error
