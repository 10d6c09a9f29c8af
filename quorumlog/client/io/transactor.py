"""A transactional producer's requests to coordinators, and the calls that wait for their outcome.

`core.transactions` chooses the next request, `core.transaction_attempts` its broker and its time.
When a call is cancelled, or times out after `max_block_ms`, its requests continue: the next call of
the same method waits for the same outcome.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, assert_never

from quorumlog.chance import random_fraction
from quorumlog.client.core.accumulator import Accumulator
from quorumlog.client.core.batch import ProducerIdentity
from quorumlog.client.core.metadata_cache import Leaders
from quorumlog.client.core.topic_partitions import by_topic
from quorumlog.client.core.transaction import Outcome
from quorumlog.client.core.transaction_attempts import TransactionAttempts
from quorumlog.client.core.transaction_requests import (
    Abilities,
    AddOffsets,
    AddPartitions,
    Answer,
    CommitOffsets,
    CoordinatorType,
    Dispatch,
    EndTransaction,
    FindCoordinator,
    InitProducerId,
)
from quorumlog.client.core.transactions import TransactionBatches, Transactions, TransactionState
from quorumlog.client.core.waits import Wait
from quorumlog.client.errors import KafkaError
from quorumlog.client.io.cluster import Cluster, Purpose
from quorumlog.client.io.coordinator import find_coordinator
from quorumlog.client.io.delivery import called
from quorumlog.client.records import GroupMetadata, OffsetAndMetadata
from quorumlog.client.settings import ProducerSettings
from quorumlog.tasks import Tasks, log_failure
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from quorumlog.wire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from quorumlog.wire.codec.messages.end_txn import EndTxnRequest
from quorumlog.wire.codec.messages.init_producer_id import InitProducerIdRequest
from quorumlog.wire.codec.messages.produce import ProduceRequest
from quorumlog.wire.codec.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from quorumlog.wire.io.connection import KafkaConnection

ADD_PARTITIONS_MAX: Final = 3  # later versions are for brokers
INIT_PRODUCER_ID_MAX: Final = 5  # before KIP-939
RECOVERS_SINCE: Final = 3  # InitProducerId with the producer's own id and epoch
END_IMPLICIT: Final = 5  # under transaction.version 2 (KIP-890); before, v4
OFFSETS_IMPLICIT: Final = 5
PRODUCE_IMPLICIT: Final = 12
TRANSACTION_VERSION: Final = "transaction.version"
IMPLICIT_SINCE_LEVEL: Final = 2


def abilities_of(connection: KafkaConnection) -> Abilities:
    """Return the transaction features of the connection's broker."""

    def reaches(api_key: int, version: int) -> bool:
        return version in connection.api_versions.get(api_key, range(0))

    is_implicit = (
        connection.finalized_features.get(TRANSACTION_VERSION, 0) >= IMPLICIT_SINCE_LEVEL
        and reaches(ProduceRequest.API_KEY, PRODUCE_IMPLICIT)
        and reaches(EndTxnRequest.API_KEY, END_IMPLICIT)
        and reaches(TxnOffsetCommitRequest.API_KEY, OFFSETS_IMPLICIT)
    )
    recovers = reaches(InitProducerIdRequest.API_KEY, RECOVERS_SINCE)
    return Abilities(recovers=recovers, is_implicit=is_implicit)


class TransactionMessages:
    """Sends requests to coordinators, each once. Raises KafkaError; definite if not sent."""

    def __init__(self, cluster: Cluster, settings: ProducerSettings) -> None:
        self._cluster: Final = cluster
        self._id: Final = settings.transactional_id or ""
        self._timeout_ms: Final = settings.transaction_timeout_ms

    async def init_producer_id(self, broker_id: int, request: InitProducerId) -> Answer:
        """Request a producer identity."""
        producer_id, producer_epoch = request.identity or (-1, -1)
        message = InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        response = await self._cluster.send(
            broker_id, message, purpose=Purpose.GROUP, version_max=INIT_PRODUCER_ID_MAX
        )
        identity = ProducerIdentity(response.producer_id, response.producer_epoch)
        return Answer(error_code=response.error_code, identity=identity)

    async def add_partitions(self, broker_id: int, request: AddPartitions) -> Answer:
        """Add partitions to the transaction."""
        topics = [
            AddPartitionsToTxnTopic(name=topic, partitions=partitions)
            for topic, partitions in by_topic(request.partitions).items()
        ]
        message = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=request.identity.producer_id,
            v3_and_below_producer_epoch=request.identity.producer_epoch,
            v3_and_below_topics=topics,
        )
        response = await self._cluster.send(
            broker_id, message, purpose=Purpose.GROUP, version_max=ADD_PARTITIONS_MAX
        )
        codes = {
            TopicPartition(topic.name, one.partition_index): one.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for one in topic.results_by_partition
        }
        return _answer(request.partitions, codes)

    async def add_offsets(self, broker_id: int, request: AddOffsets) -> Answer:
        """Add a group's offsets to the transaction."""
        message = AddOffsetsToTxnRequest(
            transactional_id=self._id,
            producer_id=request.identity.producer_id,
            producer_epoch=request.identity.producer_epoch,
            group_id=request.group_id,
        )
        response = await self._cluster.send(broker_id, message, purpose=Purpose.GROUP)
        return Answer(error_code=response.error_code)

    async def commit_offsets(self, broker_id: int, request: CommitOffsets) -> Answer:
        """Send offsets to the group's coordinator, to take effect when the transaction commits."""
        topics = []
        for topic, partitions in by_topic(request.offsets).items():
            entries = []
            for index in partitions:
                place = request.offsets[TopicPartition(topic, index)]
                entry = TxnOffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=place.offset,
                    committed_leader_epoch=place.leader_epoch,
                    committed_metadata=place.metadata,
                )
                entries.append(entry)
            topics.append(TxnOffsetCommitRequestTopic(name=topic, partitions=entries))
        group = request.group
        message = TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=group.group_id,
            producer_id=request.identity.producer_id,
            producer_epoch=request.identity.producer_epoch,
            generation_id=group.generation_id,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
            topics=topics,
        )
        version_max = OFFSETS_IMPLICIT if request.is_implicit else OFFSETS_IMPLICIT - 1
        response = await self._cluster.send(
            broker_id, message, purpose=Purpose.GROUP, version_max=version_max
        )
        codes = {
            TopicPartition(found.name, one.partition_index): one.error_code
            for found in response.topics
            for one in found.partitions
        }
        return _answer(request.offsets, codes)

    async def end(self, broker_id: int, request: EndTransaction) -> Answer:
        """Commit or abort the transaction."""
        message = EndTxnRequest(
            transactional_id=self._id,
            producer_id=request.identity.producer_id,
            producer_epoch=request.identity.producer_epoch,
            committed=request.committed,
        )
        version_max = END_IMPLICIT if request.is_implicit else END_IMPLICIT - 1
        response = await self._cluster.send(
            broker_id, message, purpose=Purpose.GROUP, version_max=version_max
        )
        identity = None
        if response.producer_id >= 0:
            identity = ProducerIdentity(response.producer_id, response.producer_epoch)
        return Answer(error_code=response.error_code, identity=identity)


def _answer(wanted: Iterable[TopicPartition], codes: Mapping[TopicPartition, int]) -> Answer:
    """Return a code for each wanted partition; UNKNOWN_SERVER_ERROR if `codes` has none."""
    missing = ErrorCode.UNKNOWN_SERVER_ERROR
    return Answer(partitions={name: codes.get(name, missing) for name in wanted})


_logger: Final = logging.getLogger(__name__)

_UNFINISHED: Final = frozenset({TransactionState.COMMITTING, TransactionState.ABORTING})
_TO_ABORT: Final = frozenset({TransactionState.IN_TRANSACTION, TransactionState.ABORTABLE_ERROR})


class Transactor:
    """One producer's requests to its coordinators.

    A request with an unexpected error is logged, counts as lost, and is retried.
    """

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        leaders: Leaders,
        *,
        wake: Callable[[], None],
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        """`wake`: called when `step` may have a request to start. `flush`: sends all batches."""
        settings = accumulator.settings
        self.transactions: Final = Transactions(settings)
        self.batches: Final = TransactionBatches(self.transactions, accumulator, leaders)
        self._cluster: Final = cluster
        self._settings: Final[ProducerSettings] = settings
        self._attempts: Final = TransactionAttempts(settings, self.transactions)
        self._messages: Final = TransactionMessages(cluster, settings)
        self._wake: Final = wake
        self._flush: Final = flush
        self._subject: Final = f"transactional id {settings.transactional_id}"
        self._wait: Wait | None = None  # of the current request
        self._tasks: Final = Tasks(log_failure(_logger, "a request of a transaction"))

    # --- requests ---

    def step(self, now_ms: float, *, is_idle: bool) -> float:
        """Start the next request if it is due; return when to step again.

        `is_idle`: no produce request is outstanding, not even one whose batches have expired.
        """
        is_quiet = is_idle and self.batches.is_empty
        dispatch = self._attempts.next(now_ms, is_quiet=is_quiet)
        if dispatch is not None:
            self._tasks.start(self._attempt(dispatch))
        return self._attempts.wake_at_ms(now_ms)

    async def _attempt(self, dispatch: Dispatch) -> None:
        if self._wait is None:
            self._wait = self._cluster.lookout.begin(self._subject)
        try:
            with self._cluster.lookout.within(self._wait):
                answer = await self._ask(dispatch)
        except KafkaError as error:
            _logger.debug("%s: %s", dispatch.request, error)
            self._lost(dispatch, error)
        except Exception as error:
            code = ErrorCode.NETWORK_EXCEPTION
            self._lost(dispatch, KafkaError(code, f"unexpected: {error!r}", definite=False))
            raise
        else:
            now_ms = self._cluster.now_ms()
            self._attempts.handle_answer(now_ms, dispatch, answer, random_fraction())
            is_found = isinstance(dispatch.request, FindCoordinator) and not answer.error_code
            if not is_found:  # else the request to the coordinator follows
                self._note_outcome(is_answered=True)
        finally:
            self._wake()

    def _note_outcome(self, *, is_answered: bool) -> None:
        """End the wait of the current request, or record why the request is retried."""
        wait, why = self._wait, self._attempts.why_repeated
        if wait is not None and why is not None:
            wait.fail(why)
        elif wait is not None:
            self._wait = None
            self._cluster.lookout.end(wait, is_answered=is_answered)

    def _lost(self, dispatch: Dispatch, error: KafkaError) -> None:
        now_ms = self._cluster.now_ms()
        self._attempts.handle_lost(now_ms, dispatch, error, random_fraction())
        self._note_outcome(is_answered=False)

    async def _ask(self, dispatch: Dispatch) -> Answer:
        messages, broker_id, request = self._messages, dispatch.broker_id, dispatch.request
        match request:
            case FindCoordinator():
                return await self._find(request)
            case InitProducerId():
                return await messages.init_producer_id(broker_id, request)
            case AddPartitions():
                return await messages.add_partitions(broker_id, request)
            case AddOffsets():
                return await messages.add_offsets(broker_id, request)
            case CommitOffsets():
                return await messages.commit_offsets(broker_id, request)
            case EndTransaction():
                return await messages.end(broker_id, request)
            case _:
                assert_never(request)

    async def _find(self, request: FindCoordinator) -> Answer:
        kind, key = request.coordinator
        broker_id = await find_coordinator(self._cluster, kind, key)
        abilities = None
        if kind is CoordinatorType.TRANSACTION:
            abilities = abilities_of(await self._cluster.connect(broker_id, Purpose.GROUP))
        return Answer(coordinator_id=broker_id, abilities=abilities)

    # --- calls ---

    async def initialize(self) -> None:
        """Get the identity of the transactional id; fence its earlier producers."""
        await self._end(self.transactions.initialize(), self._settings.max_block_ms)

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata
    ) -> None:
        """Add a group's offsets to the transaction."""
        outcome = self.transactions.send_offsets(offsets, group)
        await self._end(outcome, self._settings.max_block_ms)

    async def commit(self) -> None:
        """Send all waiting batches, then commit."""
        outcome = self.transactions.commit()
        await self._end(outcome, self._settings.max_block_ms, flush=self._flush)

    async def abort(self) -> None:
        """Fail all waiting batches and offsets, then abort."""
        await self._end(self.transactions.abort(), self._settings.max_block_ms)

    async def abort_after(self, error: BaseException) -> None:
        """Abort an open transaction after `error`; log a failure, and add it to `error`'s notes."""
        if self.transactions.state not in _TO_ABORT:
            return  # no open transaction, a commit in progress, or a fatal error
        try:
            await self.abort()
        except KafkaError as failure:
            error.add_note(f"the transaction was not aborted: {failure}")
            _logger.warning("%s: abort: %s", self._settings.client_id, failure)

    async def _end(
        self,
        outcome: Outcome,
        timeout_ms: float,
        *,
        flush: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Wait for the outcome. Raises KafkaError."""
        self._wake()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if flush is not None:
                    await flush()
                await _done(outcome)
        except TimeoutError:
            limit = f"max_block_ms={timeout_ms:g}"
            message = f"{outcome.operation} has not ended within {limit}: call it again"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, message, definite=False) from None
        error = self.transactions.claim(outcome)
        if error is not None:
            raise error.again()

    # --- the end ---

    async def finish(self) -> None:
        """Abort an open transaction, or wait for an ending one, for at most `max_block_ms`."""
        transactions, limit_ms = self.transactions, self._settings.max_block_ms
        try:
            if transactions.state in _TO_ABORT:
                await self._end(transactions.abort(), limit_ms)
            elif transactions.state in _UNFINISHED and transactions.pending is not None:
                await self._end(transactions.pending, limit_ms, flush=self._flush)
        except KafkaError as error:
            _logger.warning("the transaction at the end of %s: %s", self._settings.client_id, error)

    async def close(self, error: KafkaError) -> None:
        """Stop at once: waiting calls get `error`."""
        self._attempts.close(error)
        self._note_outcome(is_answered=False)
        await self._tasks.stop()


async def _done(outcome: Outcome) -> None:
    if not outcome.is_done:
        await called(outcome.on_done)
