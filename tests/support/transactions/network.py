"""Partitions that take the data and the markers of transactions, and the network before them."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from quorumlog.broker.transactions.core.effects import SendMarkers
from quorumlog.broker.transactions.core.events import Event, MarkersWritten, PartitionsDeleted
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from tests.support.transactions.model import Producer

Tag = tuple[str, int]  # a transactional id, and which of its transactions


@dataclass
class Partition:
    """A leader as KIP-98, KIP-890 and KIP-1228 require it.

    `data`: of open transactions, by producer id. `outcomes`: of their markers."""

    data: dict[int, list[Tag]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    coordinator_epochs: dict[int, int] = field(default_factory=dict)
    outcomes: list[tuple[Tag, bool]] = field(default_factory=list)

    def produce(self, producer: Producer, tag: Tag) -> None:
        producer_id, epoch = producer
        if epoch >= self.epochs.get(producer_id, -1):
            self.epochs[producer_id] = epoch
            self.data.setdefault(producer_id, []).append(tag)

    def mark(self, sent: SendMarkers) -> ErrorCode:
        producer_id, epoch = sent.producer
        if sent.coordinator_epoch < self.coordinator_epochs.get(producer_id, -1):
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        known = self.epochs.get(producer_id, -1)
        is_there_already = epoch == known and producer_id not in self.data
        if epoch < known or (sent.transaction_version == 2 and epoch == known):
            return ErrorCode.NONE if is_there_already else ErrorCode.INVALID_PRODUCER_EPOCH
        self.epochs[producer_id] = epoch
        self.coordinator_epochs[producer_id] = sent.coordinator_epoch
        for tag in self.data.pop(producer_id, ()):
            self.outcomes.append((tag, sent.commit))
        return ErrorCode.NONE


@dataclass
class Message:
    """The marker of one partition on its way, or the answer: `error_code`.

    `generation`: of the coordinator that sent the request.
    """

    sent: SendMarkers
    where: TopicPartition
    generation: int
    error_code: ErrorCode | None = None


class Network:
    """`late`: copies of requests that the coordinator has given up, with epochs of their own."""

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.partitions = {where: Partition() for where in partitions}
        self.messages: list[Message] = []
        self.answers: list[Message] = []
        self.late: list[Message] = []
        self.generation = 0

    def send(self, sent: SendMarkers) -> None:
        self.messages += [Message(sent, where, self.generation) for where in sent.partitions]

    def awaited(self) -> set[str]:
        """Return the transactional ids that are to get an answer."""
        return {one.sent.transactional_id for one in (*self.messages, *self.answers)}

    def arrive(self, index: int, fate: str) -> list[Event]:
        """Let a marker arrive, or not; return the response that reaches the coordinator now."""
        message = self.messages.pop(index)
        where, error_code = message.where, ErrorCode.REQUEST_TIMED_OUT
        learned: list[Event] = []
        if where not in self.partitions:
            learned.append(PartitionsDeleted(partitions=frozenset({where})))
            error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif fate in {"written", "slowly answered"}:
            error_code = self.partitions[where].mark(message.sent)
        elif fate == "unanswered":
            self.partitions[where].mark(message.sent)
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
            errors={message.where: message.error_code},
        )

    def first_in_time(self) -> int | None:
        """Return the place of a response to a request of this coordinator."""
        for index, message in enumerate(self.answers):
            if message.generation == self.generation:
                return index
        return None

    def deliver_late(self) -> None:
        message = self.late.pop(0)
        if message.where in self.partitions:
            self.partitions[message.where].mark(message.sent)

    def deliver_older(self) -> None:
        """Older clients' markers have no epoch of their own: they stay in order, or are lost."""
        for message in [one for one in self.messages if one.sent.transaction_version < 2]:
            self.messages.remove(message)
            if message.where in self.partitions:
                self.partitions[message.where].mark(message.sent)

    def delete(self, where: TopicPartition) -> None:
        """Markers on their way to it are lost, even if a new one gets its name."""
        del self.partitions[where]
        self.late = [one for one in self.late if one.where != where]
        self.messages = [one for one in self.messages if one.where != where]
