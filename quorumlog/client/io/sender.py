"""A producer's requests: sends the drained batches, and passes responses to the accumulator.

`core.accumulator` decides which batches are sent. One request has at most one batch for each
partition of a broker.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from quorumlog.backoff import Backoff
from quorumlog.chance import random_fraction
from quorumlog.client.core.accumulator import NEVER_MS, Accumulator, BatchAnswer
from quorumlog.client.core.batch import Batch, ProducerIdentity
from quorumlog.client.core.metadata_cache import Leader, Node
from quorumlog.client.errors import DENIED, KafkaError, answered, denied
from quorumlog.client.io.cluster import QUESTION_TIMEOUT_MS, Cluster
from quorumlog.client.io.delivery import wait_until_done
from quorumlog.client.io.inbox import Inbox
from quorumlog.client.io.pump import Pump
from quorumlog.client.io.stalled_requests import StalledRequests
from quorumlog.client.io.transactor import Transactor
from quorumlog.client.settings import ProducerSettings
from quorumlog.tasks import log_failure
from quorumlog.wire.codec.compression import Compression
from quorumlog.wire.codec.error_codes import ErrorCode, known
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicPartition
from quorumlog.wire.codec.messages.init_producer_id import InitProducerIdRequest
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from quorumlog.wire.io.connection import (
    ConnectionLost,
    KafkaConnection,
    RequestTimedOut,
    UnsupportedVersion,
)

_logger: Final = logging.getLogger(__name__)

NAMED_TOPICS_MAX: Final = 12  # from the next version on, Produce has topic ids only
EXPLICIT_MAX: Final = 11  # later versions add partitions to the transaction (KIP-890)


class Sender:
    """The requests of one producer.

    An unexpected error of a produce request is logged, and its batches are retried as lost. If
    InitProducerId has one, all batches fail.
    """

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        on_done: Callable[[], None],
        open_inbox: Callable[..., Inbox],
    ) -> None:
        """`on_done`: called when batches are done and have left the buffer.

        `open_inbox`: returns the inbox, given `transactions` and `wake`.
        """
        self._cluster: Final = cluster
        self._accumulator: Final = accumulator
        self._settings: Final[ProducerSettings] = accumulator.settings
        self._on_done: Final = on_done
        self._compression: Final = Compression[self._settings.compression_type.upper()]
        self._acks: Final = -1 if self._settings.acks == "all" else self._settings.acks
        self._in_flight: Final[Counter[int]] = Counter()
        self.failed_attempts: Final[Counter[ErrorCode]] = Counter()
        self._identifying = False
        self._flushes = 0
        self._stalls: Final = StalledRequests(cluster, "Produce")
        self._pump: Final = Pump(
            cluster, self._start_requests, on_error=log_failure(_logger, "a producer's request")
        )
        cluster.lookout.partitions.append(accumulator.waiting_partitions)
        cluster.lookout.refusals.append(accumulator.refusals)
        cluster.on_refused.append(self._fail_refused)
        self.transactor: Transactor | None = None
        """None without a transactional id."""
        if self._settings.transactional_id is not None:
            self.transactor = Transactor(
                cluster, accumulator, self, wake=self.wake, flush=self.flush
            )
        transactions = None if self.transactor is None else self.transactor.transactions
        self.inbox: Final = open_inbox(transactions=transactions, wake=self.wake)

    # --- the Leaders protocol, for the accumulator ---

    def leader(self, topic_partition: TopicPartition) -> Leader | None:
        """Return the leader if it is connected; None otherwise."""
        return self._cluster.leader(topic_partition)

    def has_room(self, broker_id: int) -> bool:
        """Return whether one more request may be sent to this broker now."""
        return self._in_flight[broker_id] < self._settings.max_in_flight

    # --- requests ---

    def wake(self) -> None:
        """Send soon the batches that are ready."""
        self._pump.wake()

    def _start_requests(self, now_ms: float) -> float:
        self.inbox.admit()
        if self._accumulator.wants_identity and not self._identifying:
            self._identifying = True
            self._pump.start(self._identify())
        self._done(self._accumulator.expire(now_ms))
        wake_at_ms = self._step_transaction(now_ms)
        leaders = self if self.transactor is None else self.transactor.batches
        drained = self._accumulator.drain(now_ms, leaders)
        for broker_id, batches in drained.by_broker.items():
            connection = self._cluster.connected(broker_id)
            if connection is None:  # closed since the drain looked up the leader
                self._lost(batches, written=False, message="connection closed")
                continue
            self._in_flight[broker_id] += 1
            self._pump.start(self._produce(connection, broker_id, batches))
        if self.inbox.has_records:  # put in since, behind a batch that was open until now
            self.wake()
        return min(drained.wake_at_ms, wake_at_ms)

    def _fail_refused(self, error: KafkaError) -> None:
        """Fail the batches whose leader refuses TLS or SASL: a retry has the same outcome."""
        metadata, failing = self._cluster.metadata, set[TopicPartition]()
        for name in self._accumulator.waiting_partitions():
            leader = metadata.leader(name)
            if leader is None or self._cluster.is_failing(leader.broker_id):
                failing.add(name)
        self._done(self._accumulator.fail_all(error, but_sent=True, of=failing))

    def _step_transaction(self, now_ms: float) -> float:
        if self.transactor is None:
            return NEVER_MS
        self._done(self.transactor.batches.sweep())
        return self.transactor.step(now_ms, is_idle=not self._in_flight.total())

    async def _produce(
        self, connection: KafkaConnection, broker_id: int, batches: list[Batch]
    ) -> None:
        names = [batch.topic_partition for batch in batches]
        is_idempotent = self._settings.idempotent
        outstanding = self._stalls.begin(broker_id, names, may_cancel=is_idempotent)
        try:
            await self._ask(connection, batches)
        except asyncio.CancelledError:
            deposed = f"{self._cluster.name_of(broker_id)} did not answer and leads no longer"
            self._lost(batches, written=True, message=deposed)
            raise
        except (ConnectionLost, RequestTimedOut) as error:
            self._cluster.request_update()
            self._lost(
                batches, written=True, message=f"{self._cluster.name_of(broker_id)}: {error}"
            )
        except UnsupportedVersion as error:
            answer = BatchAnswer(error_code=ErrorCode.UNSUPPORTED_VERSION, message=str(error))
            self._answered([(batch, answer) for batch in batches])
        except Exception as error:
            self._lost(batches, written=True, message=f"unexpected: {error!r}")
            raise
        finally:
            self._stalls.end(outstanding)
            self._in_flight[broker_id] -= 1
            self.wake()

    async def _ask(self, connection: KafkaConnection, batches: list[Batch]) -> None:
        request, has_ids = self._request(batches)
        version = connection.version_for(request)
        if not has_ids:
            version = min(version, NAMED_TOPICS_MAX)
        if self.transactor is not None and not self.transactor.transactions.is_implicit:
            version = min(version, EXPLICIT_MAX)
        if self._acks == 0:
            connection.send_no_reply(request, version=version)
            await connection.drain()  # only this shows that the broker still receives
            self._answered([(batch, BatchAnswer()) for batch in batches])
            return
        response = await connection.send(request, version=version)
        # The ids as sent: a topic that was re-created since has another id in the metadata.
        names = {topic.topic_id: topic.name for topic in request.topic_data}
        self._handle(batches, response, names)

    def _request(self, batches: list[Batch]) -> tuple[ProduceRequest, bool]:
        """Return the request, and whether every topic in it has an id."""
        by_topic: dict[tuple[str, bytes], list[PartitionProduceData]] = {}
        for batch in batches:
            topic, partition = batch.topic_partition
            data = PartitionProduceData(index=partition, records=batch.encode(self._compression))
            by_topic.setdefault((topic, batch.topic_id), []).append(data)
        topics = [
            TopicProduceData(name=topic, topic_id=topic_id, partition_data=partitions)
            for (topic, topic_id), partitions in by_topic.items()
        ]
        has_ids = all(topic.topic_id != ZERO_TOPIC_ID for topic in topics)
        request = ProduceRequest(
            transactional_id=self._settings.transactional_id,
            acks=self._acks,
            timeout_ms=self._settings.request_timeout_ms,
            topic_data=topics,
        )
        return request, has_ids

    def _handle(
        self, batches: list[Batch], response: ProduceResponse, names: Mapping[bytes, str]
    ) -> None:
        metadata = self._cluster.metadata
        nodes = [Node(one.node_id, one.host, one.port, one.rack) for one in response.node_endpoints]
        answers: dict[TopicPartition, PartitionProduceResponse] = {}
        for topic in response.responses:
            name = topic.name or names.get(topic.topic_id, "")
            for partition in topic.partition_responses:
                answers[TopicPartition(name, partition.index)] = partition
        results = []
        for batch in batches:
            found = answers.get(batch.topic_partition)
            if found is None:
                missing = BatchAnswer(
                    ErrorCode.UNKNOWN_SERVER_ERROR, message="left out of the answer"
                )
                results.append((batch, missing))
                continue
            leader = found.current_leader
            if leader is not None:
                hint = Leader(leader.leader_id, leader.leader_epoch, batch.topic_id)
                metadata.hint(batch.topic_partition, hint, nodes)
            answer = BatchAnswer(
                found.error_code,
                found.base_offset,
                found.log_append_time_ms,
                found.error_message or "",
            )
            results.append((batch, answer))
        self._answered(results)

    def _answered(self, results: Iterable[tuple[Batch, BatchAnswer]]) -> None:
        now_ms = self._cluster.now_ms()
        done = []
        for batch, answer in results:
            if batch.attempts > 1 and answer.error_code == ErrorCode.NONE:
                self._cluster.lookout.observe_soon()
            if self._accumulator.handle_answer(now_ms, batch, answer, random_fraction()):
                done.append(batch)
            if answer.error_code != ErrorCode.NONE:
                self.failed_attempts[known(answer.error_code)] += 1
                _logger.debug("%s: %s", batch.topic_partition, answer)
                self._cluster.request_update()
        self._done(done)

    def _lost(self, batches: list[Batch], *, written: bool, message: str) -> None:
        now_ms, accumulator, done = self._cluster.now_ms(), self._accumulator, []
        self.failed_attempts[ErrorCode.NETWORK_EXCEPTION] += len(batches)
        for batch in batches:
            fraction = random_fraction()
            if accumulator.handle_lost(
                now_ms, batch, written=written, message=message, random_fraction=fraction
            ):
                done.append(batch)
        self._done(done)

    def _done(self, batches: list[Batch]) -> None:
        if self.transactor is not None:
            self.transactor.batches.handle_done(batches)
        for batch in batches:
            for callback in batch.on_done:
                callback()
            batch.on_done.clear()
        if batches:
            self._on_done()

    async def _identify(self) -> None:
        """Get a producer id, with retries; a lasting error fails all batches."""
        backoff = Backoff(self._settings.retry_backoff_ms, self._settings.retry_backoff_max_ms)
        failures = 0
        try:
            with self._cluster.lookout.waiting("a producer id") as wait:
                while True:
                    try:
                        self._accumulator.identify(await self._init_producer_id())
                        return
                    except KafkaError as error:
                        if error.definite and not error.passing:
                            self._done(self._accumulator.fail_all(error))
                            return
                        wait.fail(error)
                        _logger.debug("InitProducerId: %s", error)
                    failures += 1
                    await asyncio.sleep(backoff.delay_ms(failures, random_fraction()) / 1000)
        except Exception as error:
            message = f"no producer id, see the log: {error!r}"
            failure = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, message, definite=True)
            self._done(self._accumulator.fail_all(failure))
            raise
        finally:
            self._identifying = False
            self.wake()

    async def _init_producer_id(self) -> ProducerIdentity:
        request = InitProducerIdRequest(transaction_timeout_ms=60_000)
        response = await self._cluster.send(None, request, timeout_ms=QUESTION_TIMEOUT_MS)
        if response.error_code != ErrorCode.NONE:
            message = "InitProducerId"
            if response.error_code in DENIED:
                message = denied(response.error_code, "the cluster", "IDEMPOTENT_WRITE")
                message += ", which WRITE on any topic implies"
            raise answered(response.error_code, message)
        return ProducerIdentity(response.producer_id, response.producer_epoch)

    # --- the end ---

    async def flush(self) -> None:
        """Send all records now, without linger, and wait until each is acknowledged or failed."""
        self._flushes += 1
        self._accumulator.flushing = True
        try:
            self.inbox.admit_all()
            self.wake()
            for batch in self._accumulator.incomplete():
                await wait_until_done(batch)
        finally:
            self._flushes -= 1
            self._accumulator.flushing = self._flushes > 0

    async def finish(self) -> None:
        """Abort an open transaction, or wait for the end of an ending one. Then flush."""
        self.inbox.admit_all()
        if self.transactor is not None:
            await self.transactor.finish()
        await self.flush()

    async def close(self) -> None:
        """Stop at once: unfinished batches fail."""
        self.inbox.close()
        self._pump.stop()
        self._cluster.lookout.partitions.remove(self._accumulator.waiting_partitions)
        self._cluster.lookout.refusals.remove(self._accumulator.refusals)
        self._cluster.on_refused.remove(self._fail_refused)
        self._stalls.close()
        closed = KafkaError(ErrorCode.NETWORK_EXCEPTION, "the producer was closed", definite=True)
        self._done(self._accumulator.fail_all(closed))
        try:
            if self.transactor is not None:
                await self.transactor.close(closed)
        finally:
            await self._pump.close()
