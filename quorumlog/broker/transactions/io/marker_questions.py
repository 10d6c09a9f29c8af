"""The markers of transactions, as questions for partition leaders (WriteTxnMarkers, KIP-98).

It reports the outcome of each marker once, and never retries: the coordinator does. One request has
at most one marker of a producer id, because the response identifies markers only by producer id.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from quorumlog.broker.transactions.core.effects import SendMarkers
from quorumlog.wire.codec.error_codes import ErrorCode, known
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_Codes = Mapping[tuple[int, str, int], int]  # by producer id, topic and partition
Written = Callable[[Mapping[TopicPartition, ErrorCode]], None]
"""Called with the outcome of some of the markers of a SendMarkers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MarkerQuestion:
    """The markers of one transaction for one broker."""

    markers: SendMarkers
    partitions: tuple[TopicPartition, ...]
    written: Written

    @property
    def key(self) -> int:
        """Return the producer id."""
        return self.markers.producer.producer_id

    @property
    def group(self) -> int:
        """Return a unique group: each question of a producer id gets its own request."""
        return id(self)

    @property
    def weight(self) -> int:
        """Return the number of markers."""
        return len(self.partitions)

    def refuse(self, error_code: ErrorCode) -> None:
        """Report an unknown outcome of these markers."""
        self.written(dict.fromkeys(self.partitions, error_code))


class MarkerExchange:
    """Sends questions about markers as WriteTxnMarkers."""

    def request_of(self, questions: Sequence[MarkerQuestion]) -> WriteTxnMarkersRequest:
        """Return the request."""
        return WriteTxnMarkersRequest(markers=[_marker(question) for question in questions])

    def answers_of(self, response: WriteTxnMarkersResponse) -> _Codes:
        """Return the error of each marker."""
        return {
            (of_producer.producer_id, topic.name, one.partition_index): one.error_code
            for of_producer in response.markers
            for topic in of_producer.topics
            for one in topic.partitions
        }

    def answer(self, question: MarkerQuestion, answers: _Codes) -> None:
        """Report the outcome of each marker of one transaction."""
        absent = ErrorCode.UNKNOWN_SERVER_ERROR
        question.written(
            {
                where: known(answers.get((question.key, *where), absent))
                for where in question.partitions
            }
        )


def _marker(question: MarkerQuestion) -> WritableTxnMarker:
    markers = question.markers
    topics: dict[str, WritableTxnMarkerTopic] = {}
    for topic, partition in question.partitions:
        of_topic = topics.setdefault(topic, WritableTxnMarkerTopic(name=topic))
        of_topic.partition_indexes.append(partition)
    return WritableTxnMarker(
        producer_id=markers.producer.producer_id,
        producer_epoch=markers.producer.epoch,
        transaction_result=markers.commit,
        topics=[*topics.values()],
        coordinator_epoch=markers.coordinator_epoch,
        transaction_version=markers.transaction_version,
    )
