"""The committed metadata: replayed into an image, and published in order."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple

from quorumlog.metadata_quorum.core.messages import SnapshotId
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.metadata_quorum.image.model import (
    ClusterDelta,
    ClusterImage,
    ImagePublisher,
    difference,
)
from quorumlog.metadata_quorum.image.records import MetadataRecord
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.metadata_quorum.log.metadata_log import MetadataLog
from quorumlog.metadata_quorum.log.restored_image import restored_image
from quorumlog.storage.errors import DiskExhausted
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset


class _Jump(NamedTuple):
    """The change of the image that an installed snapshot makes."""

    before: ClusterImage
    after: ClusterImage
    delta: ClusterDelta


class CommittedImage:
    """The metadata that this node may act on. A published image is never taken back.

    It starts empty. A snapshot's image is published once this node's high watermark has reached the
    snapshot's end, together with the records behind it. Many records are replayed slice by slice,
    and published as one change.
    """

    replayed_at_once = 1000
    """The number of records in a slice."""

    def __init__(self, log: MetadataLog) -> None:
        """Read the newest snapshot, and the voters behind it. Raises DamagedLog, StorageError."""
        self.image = ClusterImage()
        self._log: Final = log
        self._replay = ClusterReplay(self.image)
        self._restored = restored = restored_image(log)  # until it is published
        end_offset = Offset(0) if restored is None else restored.end_offset
        self.restored_id: Final = (
            None if restored is None else SnapshotId(end_offset, log.epoch_before(end_offset))
        )
        self.restored_voter_sets: Final = log.voter_sets(self.restored_id)
        self._jump: _Jump | None = None
        self._publishers: list[ImagePublisher] = []
        self._high_watermark = self._target = self.image.end_offset
        self._unread: Iterator[tuple[Offset, MetadataRecord]] = iter(())  # below the target
        self._jumps = False  # the target is the first behind a snapshot

    @property
    def voters(self) -> VoterSet | None:
        """The voters in the log at the start; None: kraft.version was 0."""
        return self.restored_voter_sets[-1][1] if self.restored_voter_sets else None

    @property
    def is_upgrade_committed(self) -> bool:
        """Whether a voter set in the log was certainly committed at the start."""
        snapshot_end = self.restored_id.end_offset if self.restored_id else 0
        committed = max(self._log.known_committed, snapshot_end)
        return any(offset < committed for offset, _ in self.restored_voter_sets[:1])

    def add_publisher(self, publisher: ImagePublisher) -> None:
        """Add a publisher; it first gets the published image, as one change."""
        self._publishers.append(publisher)
        if self.image.end_offset > 0:
            publisher.publish(difference(ClusterImage(), self.image), self.image)

    @property
    def is_behind(self) -> bool:
        """Whether `replay_slice` has committed records to replay."""
        return self.image.end_offset < self._target

    def advance(self, high_watermark: Offset) -> None:
        """Replay the records committed now, or their first slice; publish them as one change."""
        self._high_watermark = high_watermark
        if not self.is_behind:
            self._maybe_begin()
        if self.is_behind:
            self.replay_slice()

    def _maybe_begin(self) -> None:
        restored, target = self._restored, self._high_watermark
        least = self.image.end_offset + 1 if restored is None else restored.end_offset
        if target < least:
            return
        if restored is not None:
            self._replay, self._restored = ClusterReplay(restored), None
        self._jumps, self._target = restored is not None, target
        self._unread = self._log.replay(self._replay.end_offset, target)

    def replay_slice(self) -> None:
        """Replay a slice of the committed records; publish the image if it was the last slice.

        Raises DiskExhausted: the next call continues behind the last replayed record.
        """
        count = 0
        try:
            for offset, record in islice(self._unread, self.replayed_at_once):
                self._replay.apply(offset, record)
                count += 1
        except DiskExhausted:
            self._unread = self._log.replay(self._replay.end_offset, self._target)
            raise
        if count < self.replayed_at_once:
            self._publish(self._target)
            self._maybe_begin()  # with the records committed meanwhile

    def install(self, image: ClusterImage) -> None:
        """Install the image of a leader's snapshot: the next `advance` publishes it.

        Abandons a replay that is under way, because the log starts anew behind the snapshot. The
        call takes long, and may run in a thread while no other image is published.
        """
        self._jump = _Jump(self.image, image, difference(self.image, image))
        self._restored = image
        self._target, self._unread = self.image.end_offset, iter(())

    def lead_by(self, leader_id: BrokerId, leader_epoch: Epoch) -> None:
        """Record the leader of the quorum in the image; NOBODY: unknown."""
        if (leader_epoch, leader_id) != (self.image.epoch, self.image.controller_id):
            self.image = replace(self.image, epoch=leader_epoch, controller_id=leader_id)
            self._tell(ClusterDelta())

    def _publish(self, end_offset: Offset) -> None:
        before = self.image
        delta, self.image = self._replay.publish(
            end_offset=end_offset, epoch=before.epoch, controller_id=before.controller_id
        )
        if self._jumps:  # the replay has only the records behind the snapshot
            delta = self._known_delta(before) or difference(before, self.image)
        self._jump = None
        self._tell(delta)

    def _known_delta(self, before: ClusterImage) -> ClusterDelta | None:
        jump = self._jump
        if jump is None or jump.before is not before:
            return None
        return jump.delta if jump.after.end_offset == self.image.end_offset else None

    def _tell(self, delta: ClusterDelta) -> None:
        for publisher in self._publishers:
            publisher.publish(delta, self.image)
