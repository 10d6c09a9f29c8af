"""The producer's requests: takes what the accumulator lets go, sends it, brings back the answers.

No decisions: they are `core.batches`. One request per broker carries a batch of each of its
partitions.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from quorumlog.backoff import Backoff
from quorumlog.client.core.batch import Batch, ProducerIdentity
from quorumlog.client.core.batches import Accumulator, Answer
from quorumlog.client.core.leaders import Leader
from quorumlog.client.core.metadata_cache import Node
from quorumlog.client.errors import KafkaError, answered
from quorumlog.client.io.cluster import QUESTION_TIMEOUT_MS, Cluster
from quorumlog.client.io.deliveries import wait_until_done
from quorumlog.client.io.stalls import Stalls
from quorumlog.client.settings import ProducerSettings
from quorumlog.wire.codec.compression import Compression
from quorumlog.wire.codec.error_codes import ErrorCode
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

NAMED_TOPICS_MAX: Final = 12  # from the next version on, Produce names topics by id only


def _chance() -> float:
    # Not for cryptography: it spreads retries.
    return random.random()  # noqa: S311 - no secret


class Sender:
    """One producer's traffic. `on_done` is told of the bytes that left the buffer."""

    def __init__(
        self, cluster: Cluster, accumulator: Accumulator, on_done: Callable[[], None]
    ) -> None:
        self._cluster: Final = cluster
        self._accumulator: Final = accumulator
        self._settings: Final[ProducerSettings] = accumulator.settings
        self._on_done: Final = on_done
        self._loop: Final = asyncio.get_running_loop()
        self._compression: Final = Compression[self._settings.compression_type.upper()]
        self._acks: Final = -1 if self._settings.acks == "all" else self._settings.acks
        self._in_flight: Final[Counter[int]] = Counter()
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._identifying = False
        self._flushes = 0
        self._is_closed = False
        self._stalls: Final = Stalls(cluster)
        cluster.on_change.append(self.wake)
        cluster.lookout.partitions.append(accumulator.waiting_partitions)

    # --- what the accumulator asks (the Leaders protocol) ---

    def leader(self, topic_partition: TopicPartition) -> Leader | None:
        """Return the leader if it can be sent to now."""
        return self._cluster.leader(topic_partition)

    def has_room(self, broker_id: int) -> bool:
        """May one more request be sent to this broker now."""
        return self._in_flight[broker_id] < self._settings.max_in_flight

    # --- the pump ---

    def wake(self) -> None:
        """Look soon at what may be sent; many calls make one look."""
        if self._soon is None and not self._is_closed:
            self._soon = self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._soon = None
        if self._is_closed:
            return
        now_ms = self._cluster.now_ms()
        if self._accumulator.wants_identity and not self._identifying:
            self._identifying = True
            self._start(self._identify())
        self._done(self._accumulator.expire(now_ms))
        drained = self._accumulator.drain(now_ms, self)
        for broker_id, batches in drained.by_broker.items():
            connection = self._cluster.connected(broker_id)
            if connection is None:  # closed since it was looked up
                self._lost(batches, written=False, message="connection closed")
                continue
            self._in_flight[broker_id] += 1
            self._start(self._produce(connection, broker_id, batches))
        self._set_timer(now_ms, drained.wake_at_ms)

    def _set_timer(self, now_ms: float, wake_at_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_at_ms != float("inf"):
            delay_s = max(wake_at_ms - now_ms, 0) / 1000
            self._timer = self._loop.call_later(delay_s, self.wake)

    def _start(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- requests ---

    async def _produce(
        self, connection: KafkaConnection, broker_id: int, batches: list[Batch]
    ) -> None:
        outstanding = None
        if self._settings.idempotent:
            names = [batch.topic_partition for batch in batches]
            outstanding = self._stalls.begin(broker_id, names)
        try:
            await self._ask(connection, batches)
        except asyncio.CancelledError:
            deposed = f"broker {broker_id} did not answer and leads no longer"
            self._lost(batches, written=True, message=deposed)
            raise
        except (ConnectionLost, RequestTimedOut) as error:
            self._cluster.request_update()
            self._lost(batches, written=True, message=f"broker {broker_id}: {error}")
        except UnsupportedVersion as error:
            answer = Answer(error_code=ErrorCode.UNSUPPORTED_VERSION, message=str(error))
            self._answered([(batch, answer) for batch in batches])
        except Exception:
            _logger.exception("a produce request ended: a bug")
            self._lost(batches, written=True, message="internal error")
        finally:
            if outstanding is not None:
                self._stalls.end(outstanding)
            self._in_flight[broker_id] -= 1
            self.wake()

    async def _ask(self, connection: KafkaConnection, batches: list[Batch]) -> None:
        request, has_ids = self._request(batches)
        version = connection.version_for(request)
        if not has_ids:
            version = min(version, NAMED_TOPICS_MAX)
        if self._acks == 0:
            connection.send_no_reply(request, version=version)
            await connection.drain()  # no answer tells that the broker still reads
            self._answered([(batch, Answer()) for batch in batches])
            return
        response = await connection.send(request, version=version)
        # As they were sent: a topic that was made anew since has another id.
        names = {topic.topic_id: topic.name for topic in request.topic_data}
        self._handle(batches, response, names)

    def _request(self, batches: list[Batch]) -> tuple[ProduceRequest, bool]:
        """Make the request; tell whether it names every topic by id."""
        by_topic: dict[str, list[PartitionProduceData]] = {}
        for batch in batches:
            topic, partition = batch.topic_partition
            data = PartitionProduceData(index=partition, records=batch.encode(self._compression))
            by_topic.setdefault(topic, []).append(data)
        metadata, has_ids = self._cluster.metadata, True
        topics = []
        for topic, partitions in by_topic.items():
            topic_id = metadata.topic_id(topic)
            has_ids = has_ids and topic_id != ZERO_TOPIC_ID
            topics.append(
                TopicProduceData(name=topic, topic_id=topic_id, partition_data=partitions)
            )
        timeout_ms = self._settings.request_timeout_ms
        return ProduceRequest(acks=self._acks, timeout_ms=timeout_ms, topic_data=topics), has_ids

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
                missing = Answer(ErrorCode.UNKNOWN_SERVER_ERROR, message="left out of the answer")
                results.append((batch, missing))
                continue
            leader = found.current_leader
            if leader is not None:
                hint = Leader(leader.leader_id, leader.leader_epoch)
                metadata.hint(batch.topic_partition, hint, nodes)
            answer = Answer(
                found.error_code,
                found.base_offset,
                found.log_append_time_ms,
                found.error_message or "",
            )
            results.append((batch, answer))
        self._answered(results)

    def _answered(self, results: Iterable[tuple[Batch, Answer]]) -> None:
        now_ms = self._cluster.now_ms()
        done = []
        for batch, answer in results:
            if self._accumulator.handle_answer(now_ms, batch, answer, _chance()):
                done.append(batch)
            if answer.error_code != ErrorCode.NONE:
                _logger.debug("%s: %s", batch.topic_partition, answer)
                self._cluster.request_update()
        self._done(done)

    def _lost(self, batches: list[Batch], *, written: bool, message: str) -> None:
        now_ms = self._cluster.now_ms()
        self._done(
            [
                batch
                for batch in batches
                if self._accumulator.handle_lost(
                    now_ms, batch, written=written, message=message, chance=_chance()
                )
            ]
        )

    def _done(self, batches: list[Batch]) -> None:
        for batch in batches:
            for callback in batch.on_done:
                callback()
            batch.on_done.clear()
        if batches:
            self._on_done()

    async def _identify(self) -> None:
        """Get a producer id, for as long as it takes; an error that stays ends all batches."""
        backoff = Backoff(self._settings.retry_backoff_ms, self._settings.retry_backoff_max_ms)
        failures = 0
        try:
            while True:
                try:
                    self._accumulator.identify(await self._init_producer_id())
                    return
                except KafkaError as error:
                    is_passing = error.retriable or error.code == ErrorCode.BROKER_NOT_AVAILABLE
                    if error.definite and not is_passing:
                        self._done(self._accumulator.fail_all(error))
                        return
                    _logger.debug("InitProducerId: %s", error)
                failures += 1
                await asyncio.sleep(backoff.delay_ms(failures, _chance()) / 1000)
        finally:
            self._identifying = False
            self.wake()

    async def _init_producer_id(self) -> ProducerIdentity:
        broker_id = await self._cluster.any_broker()
        request = InitProducerIdRequest(transaction_timeout_ms=60_000)
        response = await self._cluster.send(broker_id, request, timeout_ms=QUESTION_TIMEOUT_MS)
        if response.error_code != ErrorCode.NONE:
            raise answered(response.error_code, "InitProducerId")
        return ProducerIdentity(response.producer_id, response.producer_epoch)

    # --- the end ---

    async def flush(self) -> None:
        """Send all that was put in line, now, and wait until it is acknowledged or failed."""
        self._flushes += 1
        self._accumulator.flushing = True
        try:
            self.wake()
            for batch in self._accumulator.incomplete():
                await wait_until_done(batch)
        finally:
            self._flushes -= 1
            self._accumulator.flushing = self._flushes > 0

    async def close(self) -> None:
        """Stop at once: what is not done fails."""
        self._is_closed = True
        self._cluster.on_change.remove(self.wake)
        self._cluster.lookout.partitions.remove(self._accumulator.waiting_partitions)
        self._stalls.close()
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()
        closed = KafkaError(ErrorCode.NETWORK_EXCEPTION, "the producer was closed", definite=True)
        self._done(self._accumulator.fail_all(closed))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
