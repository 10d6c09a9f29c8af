"""The logs that the controller needs reports of: damaged logs, and logs that decide an election.

A log that is not whole is not opened until the metadata shows that other replicas have its records:
docs/decisions/0014-whole-logs.md
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from quorumlog.broker.partitions.core.placement import Standing, standing_of
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.metadata_quorum.controller_client import LogReport
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, PartitionImage
from quorumlog.storage.errors import LacksRecords
from quorumlog.wire.codec.identifiers import (
    NO_EPOCH,
    BrokerId,
    Epoch,
    Offset,
    PartitionIndex,
    TopicId,
    TopicPartition,
)


class NewReplicas:
    """Compares images. Replicas of the first image may have been here in an earlier process."""

    def __init__(self, broker_id: BrokerId) -> None:
        self._broker_id: Final = broker_id
        self._is_first = True
        self._new: Final[set[TopicPartition]] = set()

    def __contains__(self, at: TopicPartition) -> bool:
        return at in self._new

    def note(self, delta: ClusterDelta, before: ClusterImage, after: ClusterImage) -> None:
        """Apply the next image."""
        if not self._is_first:
            self._new.update(at for at in delta.partitions if self._is_new(at, before, after))
        self._is_first = False

    def forget(self, at: TopicPartition) -> None:
        """Drop a replica that is open here, or that is not to be here any more."""
        self._new.discard(at)

    def standing_of(self, at: TopicPartition, partition: PartitionImage) -> Standing:
        """Return the standing of a replica whose log is about to be opened."""
        return standing_of(partition, self._broker_id, is_new=at in self._new)

    def _is_new(self, at: TopicPartition, before: ClusterImage, after: ClusterImage) -> bool:
        partition = before.partition(at)
        was, is_now = before.topics.get(at.topic), after.topics.get(at.topic)
        if partition is None or was is None or self._broker_id not in partition.replicas:
            return True
        return is_now is not None and was.topic_id != is_now.topic_id


class _Refused(NamedTuple):
    """A log that is not opened: its topic, its standing, and how far it is whole."""

    topic_id: TopicId
    standing: Standing
    error: LacksRecords


class ReportedLogs:
    """The reports of one broker. `send` receives each partition that may need a report.

    It is set before the first image is published.
    """

    send: Callable[[TopicPartition], None]

    def __init__(
        self, broker_id: BrokerId, drivers: Mapping[TopicPartition, PartitionDriver]
    ) -> None:
        self.new: Final = NewReplicas(broker_id)
        self._broker_id: Final = broker_id
        self._drivers: Final = drivers
        self._refused: Final[dict[TopicPartition, _Refused]] = {}
        self._opened_as: Final[dict[TopicPartition, Standing]] = {}
        self._disclaimed: Final[set[TopicPartition]] = set()  # refused, and still in ISR or ELR
        self._undecided: Final[set[TopicPartition]] = set()

    @property
    def refused(self) -> dict[TopicPartition, LacksRecords]:
        """The logs that are not opened, each with the error that describes its loss."""
        return {at: one.error for at, one in self._refused.items()}

    @property
    def left_to_disclaim(self) -> int:
        """The number of damaged logs whose replicas are still in the ISR or the ELR."""
        return len(self._disclaimed)

    def opening(self, at: TopicPartition, image: PartitionImage) -> Standing:
        """Return the standing with which a log is opened now."""
        standing = self._opened_as[at] = self.new.standing_of(at, image)
        return standing

    def refuse(self, at: TopicPartition, topic_id: TopicId, error: LacksRecords) -> None:
        """Record that a log could not be opened with its standing. `note` follows."""
        self._refused[at] = _Refused(topic_id, self._opened_as[at], error)

    def is_refused(self, at: TopicPartition, topic_id: TopicId | None = None) -> bool:
        """Return whether a log is refused: of this topic id, or of any without one."""
        refused = self._refused.get(at)
        return refused is not None and topic_id in {None, refused.topic_id}

    def take_up(self, at: TopicPartition, image: PartitionImage) -> bool:
        """Return whether a refused log may be opened now; if so, it is no longer refused.

        A torn log may be opened once the replica is in neither the ISR nor the ELR.
        """
        standing = self.new.standing_of(at, image)
        is_asked_less = standing is not self._refused[at].standing and (
            standing is not Standing.COUNTED_ON
        )
        if is_asked_less:
            del self._refused[at]
        return is_asked_less

    def forget(self, at: TopicPartition) -> None:
        """Drop a partition without a replica here, or with one of a new topic."""
        self._refused.pop(at, None)
        self._opened_as.pop(at, None)
        self._disclaimed.discard(at)
        self._undecided.discard(at)

    def note(self, at: TopicPartition, image: PartitionImage) -> None:
        """Apply the metadata of a replica here."""
        is_refused = at in self._refused
        is_member = self.new.standing_of(at, image) is Standing.COUNTED_ON
        for places, is_in in (
            (self._disclaimed, is_refused and is_member),
            (self._undecided, image.is_undecided),
        ):
            if is_in:
                places.add(at)
            else:
                places.discard(at)
        driver = self._drivers.get(at)
        is_contradicted = driver is not None and driver.partition.state.is_contradicted
        if is_refused or image.is_undecided or is_contradicted:
            self.send(at)

    def renew(self) -> None:
        """Send all reports again, to a new controller."""
        contradicted = [
            at for at, one in self._drivers.items() if one.partition.state.is_contradicted
        ]
        for at in [*self._undecided, *self._disclaimed, *contradicted]:
            self.send(at)

    def report_of(
        self, at: TopicPartition, image: ClusterImage, broker_epoch: int
    ) -> LogReport | None:
        """Return the report that the controller needs of a log by this image; None: no report.

        None also while the image does not contain the process of `broker_epoch`.
        """
        topic, partition = image.topics.get(at.topic), image.partition(at)
        is_shown = image.process(self._broker_id, broker_epoch) is not None
        if topic is None or partition is None or not is_shown:
            return None
        driver, refused, topic_id = self._drivers.get(at), self._refused.get(at), topic.topic_id
        is_whole = False
        if refused is not None and refused.topic_id == topic_id:
            last_epoch, end_offset = refused.error.last_epoch, refused.error.end_offset
        elif driver is not None and driver.topic_id == topic_id:
            state = driver.partition.state
            is_whole = not state.is_contradicted or state.leader_epoch != partition.leader_epoch
            if is_whole and not partition.is_undecided:
                return None
            end_offset = driver.log.log_end_offset
            last_epoch = driver.log.epochs.epoch_at(end_offset - 1) if end_offset > 0 else NO_EPOCH
        else:
            return None
        return LogReport(
            topic_id=topic_id,
            partition=PartitionIndex(at.partition),
            last_epoch=Epoch(last_epoch),
            log_end_offset=Offset(end_offset),
            is_whole=is_whole,
        )
