"""The `TransactionVerifier` of a broker: checks with coordinators that transactions are open.

Coordinators, here or elsewhere, get AddPartitionsToTxn v4 or later, with many transactional ids in
one request (KIP-890).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from quorumlog.broker.partitions.log.verified_appends import TransactionProducer
from quorumlog.broker.settings import BrokerSettings
from quorumlog.broker.transactions.io.broker_channels import BrokerChannels, Peers
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.wire.codec.error_codes import ErrorCode, known
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, BrokerId, TopicId, TopicPartition
from quorumlog.wire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

ADDING_LANES: Final = 4  # connections to one coordinator; opened only when needed

Outcomes = Mapping[TopicPartition, ErrorCode]
_Answers = tuple[Mapping[tuple[str, str, int], int], int]

# All producers, old ones too, retry after NOT_ENOUGH_REPLICAS, without a metadata refresh.
_UNKNOWN: Final = frozenset(
    {
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # the coordinator's image is behind
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VerificationQuestion:
    """Whether partitions belong to a transaction. `settle` gets the coordinator's error codes."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    topic_id: TopicId  # of the partitions; zeros: not compared
    adds: bool
    give_up_s: float  # after this time, the client must retry
    answer: "asyncio.Future[Outcomes]"
    settle: Callable[["VerificationQuestion", Outcomes], None]

    @property
    def key(self) -> str:
        """Return the transactional id."""
        return self.transactional_id

    @property
    def group(self) -> tuple[int, int, bool]:
        """Return producer id, epoch and kind: a request has one such group for each id."""
        return self.producer_id, self.producer_epoch, self.adds

    @property
    def weight(self) -> int:
        """Return the number of partitions."""
        return len(self.partitions)

    def refuse(self, error_code: ErrorCode) -> None:
        """Settle with an error: the coordinator's answer is missing."""
        self.settle(self, dict.fromkeys(self.partitions, error_code))


class VerificationExchange:
    """Sends questions about transactions as AddPartitionsToTxn."""

    def request_of(self, questions: Sequence[VerificationQuestion]) -> AddPartitionsToTxnRequest:
        """Return the request."""
        by_id: dict[str, list[VerificationQuestion]] = {}
        for question in questions:
            by_id.setdefault(question.transactional_id, []).append(question)
        return AddPartitionsToTxnRequest(transactions=[*map(_transaction, by_id.values())])

    def answers_of(self, response: AddPartitionsToTxnResponse) -> _Answers:
        """Return the error of each partition, and the error of partitions without a result."""
        codes = {
            (result.transactional_id, topic.name, one.partition_index): one.partition_error_code
            for result in response.results_by_transaction
            for topic in result.topic_results
            for one in topic.results_by_partition
        }
        return codes, response.error_code or ErrorCode.UNKNOWN_SERVER_ERROR

    def answer(self, question: VerificationQuestion, answers: _Answers) -> None:
        """Settle one question."""
        codes, absent = answers
        outcomes = {
            where: known(codes.get((question.key, *where), absent)) for where in question.partitions
        }
        question.settle(question, outcomes)


class CoordinatorVerifier:
    """Finds the coordinators in the newest image (`publish`)."""

    def __init__(
        self,
        *,
        partition_of: Callable[[str], TopicPartition],
        settings: BrokerSettings,
        peers: Peers,
    ) -> None:
        """`partition_of` returns the partition of `__transaction_state` of a transactional id."""
        self._partition_of: Final = partition_of
        self._retry_s: Final = settings.add_partitions_to_txn_retry_backoff_ms / 1000
        self._retry_max_s: Final = settings.add_partitions_to_txn_retry_backoff_max_ms / 1000
        self._image = ClusterImage()
        self._asking: Final = BrokerChannels(VerificationExchange(), peers)
        # An addition may wait at the coordinator for its busy id: others pass in another lane.
        self._adding: Final = tuple(
            BrokerChannels(VerificationExchange(), peers) for _ in range(ADDING_LANES)
        )

    def publish(self, image: ClusterImage) -> None:
        """Use the coordinators of this image from now on."""
        self._image = image
        for channels in (self._asking, *self._adding):
            channels.publish(image)

    def verify(
        self,
        producer: TransactionProducer,
        partitions: Sequence[TopicPartition],
        *,
        topic_id: TopicId = ZERO_TOPIC_ID,
        adds: bool,
    ) -> asyncio.Future[Outcomes]:
        """Return for each partition NONE if it is in the open transaction, else the error."""
        loop = asyncio.get_running_loop()
        question = VerificationQuestion(
            **producer._asdict(),
            partitions=tuple(partitions),
            topic_id=topic_id,
            adds=adds,
            give_up_s=loop.time() + self._retry_max_s,
            answer=loop.create_future(),
            settle=self._settle,
        )
        self._ask(question)
        return question.answer

    async def stop(self) -> None:
        """Refuse every question."""
        for channels in (self._asking, *self._adding):
            await channels.stop()

    def _ask(self, question: VerificationQuestion) -> None:
        coordinator = self._image.partition(self._partition_of(question.transactional_id))
        leader_id = BrokerId(-1) if coordinator is None else coordinator.leader_id
        channels = self._asking
        if question.adds:
            channels = self._lane(leader_id)
        channels.ask(leader_id, question)

    def _lane(self, coordinator_id: BrokerId) -> BrokerChannels[VerificationQuestion]:
        """Return the lane with the fewest questions ahead of an addition."""
        first = self._adding[0]
        if first.load(coordinator_id) == 0:
            return first  # nearly always
        return min(self._adding, key=lambda lane: lane.load(coordinator_id))

    def _settle(self, question: VerificationQuestion, outcomes: Outcomes) -> None:
        """Answer the leader; retry an addition, for a while, until the last transaction has ended.

        Its end is decided, and its markers are under way: a client of transaction.version 2 begins
        the next transaction before they are written.
        """
        if question.answer.done():  # the request was cancelled
            return
        loop = asyncio.get_running_loop()
        must_wait = question.adds and ErrorCode.CONCURRENT_TRANSACTIONS in outcomes.values()
        if must_wait and loop.time() + self._retry_s <= question.give_up_s:
            loop.call_later(self._retry_s, self._ask, question)
            return
        question.answer.set_result(
            {where: _worded(outcomes[where], adds=question.adds) for where in question.partitions}
        )


def _worded(error_code: ErrorCode, *, adds: bool) -> ErrorCode:
    """Return the error code for the producer, as Kafka maps it."""
    if error_code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    is_old_client = error_code is ErrorCode.CONCURRENT_TRANSACTIONS and not adds
    return ErrorCode.NOT_ENOUGH_REPLICAS if error_code in _UNKNOWN or is_old_client else error_code


def _transaction(questions: Sequence[VerificationQuestion]) -> AddPartitionsToTxnTransaction:
    """Return the request's entry for all these questions, which are of one group."""
    topics: dict[tuple[str, TopicId], AddPartitionsToTxnTopic] = {}
    wanted = {(where, one.topic_id) for one in questions for where in one.partitions}
    for (topic, partition), topic_id in sorted(wanted):
        of_topic = topics.setdefault(
            (topic, topic_id), AddPartitionsToTxnTopic(name=topic, topic_id=topic_id)
        )
        of_topic.partitions.append(partition)
    first = questions[0]
    return AddPartitionsToTxnTransaction(
        transactional_id=first.transactional_id,
        producer_id=first.producer_id,
        producer_epoch=first.producer_epoch,
        verify_only=not first.adds,
        topics=[*topics.values()],
    )
