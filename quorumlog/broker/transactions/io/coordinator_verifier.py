"""Asks coordinators whether transactions are open: the `TransactionVerifier` of a broker (KIP-890).

A coordinator may be here or elsewhere: it is asked by AddPartitionsToTxn from version 4 on, many
transactional ids at once.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from quorumlog.broker.settings import BrokerSettings
from quorumlog.broker.transactions.io.broker_channels import (
    BrokerChannels,
    Peers,
    error_code_of,
)
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, TopicPartition
from quorumlog.wire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

ADDING_LANES: Final = 4  # connections to one coordinator: those behind the first as they are needed

Outcomes = Mapping[TopicPartition, ErrorCode]
_Answers = tuple[Mapping[tuple[str, str, int], int], int]

# A producer retries after NOT_ENOUGH_REPLICAS, also an old one, and asks for no metadata.
_UNKNOWN: Final = frozenset(
    {
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # the coordinator's metadata are behind ours
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VerificationQuestion:
    """Whether partitions belong to a transaction. `settle` gets the coordinator's words."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    adds: bool
    give_up_s: float  # from then on, the client has to ask again
    answer: "asyncio.Future[Outcomes]"
    settle: Callable[["VerificationQuestion", Outcomes], None]

    @property
    def key(self) -> str:
        """Return the transactional id."""
        return self.transactional_id

    @property
    def group(self) -> tuple[int, int, bool]:
        """Return what a transactional id is asked for in one request."""
        return self.producer_id, self.producer_epoch, self.adds

    @property
    def weight(self) -> int:
        """Return the number of partitions."""
        return len(self.partitions)

    def refuse(self, error_code: ErrorCode) -> None:
        """Settle: nothing is known."""
        self.settle(self, dict.fromkeys(self.partitions, error_code))


class VerificationExchange:
    """Questions about transactions as AddPartitionsToTxn."""

    def request_of(self, questions: Sequence[VerificationQuestion]) -> AddPartitionsToTxnRequest:
        """Return the request."""
        by_id: dict[str, list[VerificationQuestion]] = {}
        for question in questions:
            by_id.setdefault(question.transactional_id, []).append(question)
        return AddPartitionsToTxnRequest(transactions=[*map(_transaction, by_id.values())])

    def answers_of(self, response: AddPartitionsToTxnResponse) -> _Answers:
        """Return the error of each partition, and that of those which the response leaves out."""
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
            where: error_code_of(codes.get((question.key, *where), absent))
            for where in question.partitions
        }
        question.settle(question, outcomes)


class CoordinatorVerifier:
    """Finds the coordinators by the newest image, which `publish` brings."""

    def __init__(
        self,
        *,
        partition_of: Callable[[str], TopicPartition],
        settings: BrokerSettings,
        peers: Peers,
    ) -> None:
        """`partition_of` tells where a transactional id lives."""
        self._partition_of: Final = partition_of
        self._retry_s: Final = settings.add_partitions_to_txn_retry_backoff_ms / 1000
        self._retry_max_s: Final = settings.add_partitions_to_txn_retry_backoff_max_ms / 1000
        self._image = ClusterImage()
        self._asking: Final = BrokerChannels(VerificationExchange(), peers)
        # A coordinator lets an addition wait while its id is busy: others pass it on another lane.
        self._adding: Final = tuple(
            BrokerChannels(VerificationExchange(), peers) for _ in range(ADDING_LANES)
        )

    def publish(self, image: ClusterImage) -> None:
        """Ask these coordinators from now on."""
        self._image = image
        for channels in (self._asking, *self._adding):
            channels.publish(image)

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> asyncio.Future[Outcomes]:
        """Return for each partition NONE if it is in the open transaction, or why not."""
        loop = asyncio.get_running_loop()
        question = VerificationQuestion(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=tuple(partitions),
            adds=adds,
            give_up_s=loop.time() + self._retry_max_s,
            answer=loop.create_future(),
            settle=self._settle,
        )
        self._ask(question)
        return question.answer

    async def stop(self) -> None:
        """Answer every question: nothing is known."""
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
        """Return the lane on which an addition leaves first."""
        first = self._adding[0]
        if first.load(coordinator_id) == 0:
            return first  # nearly always
        return min(self._adding, key=lambda lane: lane.load(coordinator_id))

    def _settle(self, question: VerificationQuestion, outcomes: Outcomes) -> None:
        """Answer the leader. To add, wait a little for the end of the last transaction.

        Its end is decided, and its markers are under way: a client of transaction.version 2 begins
        the next transaction before they are written.
        """
        if question.answer.done():  # its request is gone
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
    """Return what a producer understands, as Kafka has it."""
    if error_code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    is_old_client = error_code is ErrorCode.CONCURRENT_TRANSACTIONS and not adds
    return ErrorCode.NOT_ENOUGH_REPLICAS if error_code in _UNKNOWN or is_old_client else error_code


def _transaction(questions: Sequence[VerificationQuestion]) -> AddPartitionsToTxnTransaction:
    """Ask for the partitions of all these questions, which are of one group."""
    topics: dict[str, AddPartitionsToTxnTopic] = {}
    for topic, partition in sorted({where for one in questions for where in one.partitions}):
        of_topic = topics.setdefault(topic, AddPartitionsToTxnTopic(name=topic))
        of_topic.partitions.append(partition)
    first = questions[0]
    return AddPartitionsToTxnTransaction(
        transactional_id=first.transactional_id,
        producer_id=first.producer_id,
        producer_epoch=first.producer_epoch,
        verify_only=not first.adds,
        topics=[*topics.values()],
    )
