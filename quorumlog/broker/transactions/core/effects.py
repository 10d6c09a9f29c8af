"""The effects of a transaction coordinator: the common effects, and two of its own."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quorumlog.broker.coordination.core.effects import AnswerRequest, AppendRecords, OwnEffect
from quorumlog.broker.transactions.core.events import MarkersWritten
from quorumlog.broker.transactions.core.records import TransactionRecord
from quorumlog.broker.transactions.core.requests import ProducerIdAndEpoch, Result
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, TopicPartition

__all__ = ["AllocateProducerId", "AnswerRequest", "AppendRecords", "Effect", "SendMarkers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerId(OwnEffect):
    """Get an unused producer id for this transactional id."""

    transactional_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMarkers(OwnEffect):
    """Have the leaders of these partitions write the marker of a transaction (WriteTxnMarkers).

    `transactional_id` and `prepared_ms` identify the decision; `MarkersWritten` returns them.
    `transaction_version` goes into the request (v2, KIP-1228): with 2, a leader may require a newer
    epoch.
    """

    transactional_id: str
    prepared_ms: int
    producer: ProducerIdAndEpoch
    coordinator_epoch: Epoch
    commit: bool
    transaction_version: int
    partitions: tuple[TopicPartition, ...]

    def by_leader(
        self, image: ClusterImage
    ) -> tuple[Mapping[BrokerId, Sequence[TopicPartition]], frozenset[TopicPartition]]:
        """Return the partitions of each leader, by ascending id, and the deleted partitions."""
        of_leaders: defaultdict[BrokerId, list[TopicPartition]] = defaultdict(list)
        deleted: set[TopicPartition] = set()
        for at in self.partitions:
            if (partition := image.partition(at)) is None:
                deleted.add(at)
            else:
                of_leaders[partition.leader_id].append(at)
        return dict(sorted(of_leaders.items())), frozenset(deleted)

    def written(self, errors: Mapping[TopicPartition, ErrorCode]) -> MarkersWritten:
        """Return the event of the outcomes of some of the markers."""
        return MarkersWritten(
            transactional_id=self.transactional_id,
            prepared_ms=self.prepared_ms,
            coordinator_epoch=self.coordinator_epoch,
            errors=errors,
        )


Effect = AppendRecords[TransactionRecord] | AnswerRequest[Result] | AllocateProducerId | SendMarkers
