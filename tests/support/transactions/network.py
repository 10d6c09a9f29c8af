"""Partitions that append the data and the markers of transactions, and the network before them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from quorumlog.broker.transactions.core.effects import SendMarkers
from quorumlog.broker.transactions.core.events import Event, MarkersWritten, PartitionsDeleted
from quorumlog.broker.transactions.core.requests import ProducerIdAndEpoch
from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.chaos.simulation.oracles.transactions import Place, Transactions
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.records import Record, encode_batch, read_header
from quorumlog.wire.codec.transaction_markers import TransactionMarker


@dataclass
class Message:
    """The marker of one partition on its way, or the answer: `error_code`.

    `generation`: of the coordinator that sent the request.
    """

    sent: SendMarkers
    at: TopicPartition
    generation: int
    error_code: ErrorCode | None = None


class Network:
    """The leaders of partitions, by KIP-98, KIP-890 and KIP-1228; the oracle reads their logs.

    `ends`: the log end offsets of the partitions that exist. `late`: copies of requests that the
    coordinator has given up, with epochs of their own.
    """

    def __init__(self, partitions: Iterable[TopicPartition], oracle: Transactions) -> None:
        self.ends = dict.fromkeys(partitions, 0)
        self.oracle = oracle
        self.messages: list[Message] = []
        self.answers: list[Message] = []
        self.late: list[Message] = []
        self.generation = 0

    # --- partitions ---

    def produce(self, at: TopicPartition, producer: ProducerIdAndEpoch) -> None:
        place = self.oracle.places[at].get(producer.producer_id, Place())
        if producer.epoch < max(place.epoch, place.marker_epoch):
            return
        batch = encode_batch(
            [Record(self.ends[at], 0, None, b"value")],
            base_offset=self.ends[at],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=0,
            is_transactional=True,
        )
        self.ends[at] += 1
        self.oracle.appended(at, read_header(batch))

    def mark(self, at: TopicPartition, sent: SendMarkers) -> ErrorCode:
        producer_id, epoch = sent.producer
        place = self.oracle.places[at].get(producer_id, Place())
        if sent.coordinator_epoch < place.coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        newest, is_open = max(place.epoch, place.marker_epoch), place.first_offset >= 0
        if epoch < newest or (sent.transaction_version == 2 and epoch == newest):
            is_there_already = epoch == newest and not is_open
            return ErrorCode.NONE if is_there_already else ErrorCode.INVALID_PRODUCER_EPOCH
        decided = TransactionState.PREPARE_COMMIT if sent.commit else TransactionState.PREPARE_ABORT
        if is_open:  # an older client has one epoch for all its transactions
            state = self.oracle.states[sent.transactional_id].state
            assert state is decided, f"a marker of another decision: {sent}"
        marker = TransactionMarker(producer_id, epoch, sent.coordinator_epoch, sent.commit)
        self.oracle.marked(at, marker, self.ends[at])
        self.ends[at] += 1
        return ErrorCode.NONE

    def delete(self, at: TopicPartition) -> None:
        """Markers on their way to it are lost, even if a new one gets its name."""
        del self.ends[at]
        self.oracle.places.pop(at, None)
        self.late = [one for one in self.late if one.at != at]
        self.messages = [one for one in self.messages if one.at != at]

    # --- messages ---

    def send(self, sent: SendMarkers) -> None:
        self.messages += [Message(sent, at, self.generation) for at in sent.partitions]

    def awaited(self) -> set[str]:
        """Return the transactional ids that are to get an answer."""
        return {one.sent.transactional_id for one in (*self.messages, *self.answers)}

    def arrive(self, index: int, fate: str) -> list[Event]:
        """Let a marker arrive, or not; return the events at the coordinator now."""
        message = self.messages.pop(index)
        at, error_code = message.at, ErrorCode.REQUEST_TIMED_OUT
        learned: list[Event] = []
        if at not in self.ends:
            learned.append(PartitionsDeleted(partitions=frozenset({at})))
            error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif fate in {"written", "slowly answered"}:
            error_code = self.mark(at, message.sent)
        elif fate == "unanswered":
            self.mark(at, message.sent)
        elif message.sent.transaction_version == 2:  # it may yet come
            self.late.append(message)
        self.answers.append(replace(message, error_code=error_code))
        if fate != "slowly answered":
            learned.append(self.answer(len(self.answers) - 1))
        return learned

    def answer(self, index: int) -> MarkersWritten:
        message = self.answers.pop(index)
        assert message.error_code is not None
        return MarkersWritten(
            transactional_id=message.sent.transactional_id,
            prepared_ms=message.sent.prepared_ms,
            coordinator_epoch=message.sent.coordinator_epoch,
            errors={message.at: message.error_code},
        )

    def first_in_time(self) -> int | None:
        """Return the place of a response to a request of this coordinator."""
        generations = [message.generation for message in self.answers]
        return generations.index(self.generation) if self.generation in generations else None

    def deliver_late(self) -> None:
        message = self.late.pop(0)
        if message.at in self.ends:
            self.mark(message.at, message.sent)

    def deliver_older(self) -> None:
        """Older clients' markers have no epoch of their own: they stay in order, or are lost."""
        for message in [one for one in self.messages if one.sent.transaction_version < 2]:
            self.messages.remove(message)
            if message.at in self.ends:
                self.mark(message.at, message.sent)
