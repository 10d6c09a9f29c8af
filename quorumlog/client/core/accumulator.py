"""Decides the order, sequence numbers, retries and end of a producer's batches.

Order. One queue per partition. Batches leave in its order, and only the oldest unfinished batch
is retried, so that the log has the records in the order of `send`.

Sequence numbers (KIP-98). An idempotent producer numbers a partition's records from 0; a broker
keeps the last five batches of a producer and accepts only the next number. A retry keeps its
numbers, which makes it harmless. Numbers change in one case: the OLDEST batch in flight gets the
error OUT_OF_ORDER_SEQUENCE_NUMBER or UNKNOWN_PRODUCER_ID, and each attempt of it was refused. Then
the log does not have the batch, and no later batch can follow under the old numbers. When all
outstanding responses have arrived, the batches in flight are numbered anew from 0 in the next
producer epoch, raised by the client (KIP-360). Each partition has its own epoch: brokers compare
epochs per partition. If an attempt may have been written, such an error proves nothing: the broker
may have dropped the batch (a snapshot keeps only a producer's last batch), or may receive the lost
request after the retry. New numbers could write it twice, so it fails with an indefinite error.

The first batch in a new epoch travels alone: a broker accepts any first number from a producer id
that its log does not have, so a second batch could be written before a refused first batch.
The first batch for a re-created topic travels alone, too: the new log has no producer state.
It leaves after the responses to the batches for the deleted topic.

In a transaction no number changes: a failed batch ends the transaction (`core.transactions`), and
the next transaction begins from 0 in another epoch.

INVALID_PRODUCER_EPOCH means that another producer raised our epoch. A batch in flight may be a
duplicate by now, so it fails; a batch that was never sent goes out under a new producer id.
"""

from collections import deque
from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from quorumlog.backoff import Backoff
from quorumlog.client.core.batch import Batch, BatchState, ProducerIdentity
from quorumlog.client.core.metadata_cache import Leader, Leaders
from quorumlog.client.errors import DEFINITE, KafkaError, denied
from quorumlog.client.records import Headers
from quorumlog.client.settings import ProducerSettings
from quorumlog.invariants import require
from quorumlog.wire.codec.error_codes import RETRIABLE, ErrorCode, known
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicPartition


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """The batches `in_flight` (sent at least once), then `waiting`; the oldest first.

    `sequence`: identity and sequence number of the next new batch. `topic_id`: the topic of new
    batches. `pipelined`: a batch of that identity and topic id was acknowledged. `renumber`: number
    all batches in flight anew, once every response to them has arrived.
    """

    topic_partition: TopicPartition
    in_flight: list[Batch] = field(default_factory=list)
    waiting: deque[Batch] = field(default_factory=deque)
    sequence: tuple[ProducerIdentity, int] | None = None
    topic_id: bytes = ZERO_TOPIC_ID
    pipelined: bool = False
    renumber: bool = False

    def batches(self) -> Iterator[Batch]:
        """Return all unfinished batches, oldest first."""
        yield from self.in_flight
        yield from self.waiting


class Requests:
    """The batches of each request (`by_broker`), and when to drain again (`wake_at_ms`).

    `wake_at_ms` is the next time at which a batch becomes ready or expires; `inf` if only an event
    can do that. A request has at most `size_max` bytes, or one larger batch.
    """

    def __init__(self, size_max: int, wake_at_ms: float) -> None:
        self.by_broker: Final[dict[int, list[Batch]]] = {}
        self.wake_at_ms = wake_at_ms
        self._size_max: Final = size_max
        self._sizes: Final[dict[int, int]] = {}

    def take(self, broker_id: int, batch: Batch) -> bool:
        """Add a batch to the broker's request; return False if the request is full."""
        size = self._sizes.get(broker_id, 0) + batch.size_in_bytes
        if size > self._size_max and broker_id in self.by_broker:
            return False
        self.by_broker.setdefault(broker_id, []).append(batch)
        self._sizes[broker_id] = size
        return True

    def look_again(self, at_ms: float) -> None:
        """Drain again at `at_ms` or earlier."""
        self.wake_at_ms = min(self.wake_at_ms, at_ms)


EPOCH_MAX: Final = 32_767
SEQUENCE_MASK: Final = 0x7FFFFFFF  # 2**31 - 1 is followed by 0
NEVER_MS: Final = float("inf")

_GAP: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
_MISROUTED: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors of a broker that does not lead the partition, or has not yet applied its leadership."""
_FENCED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})


class BatchAnswer(NamedTuple):
    """A broker's response to one batch."""

    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    message: str = ""


class Accumulator:
    """The unfinished batches of one producer.

    Invariants (`check_invariants`; tests call it after every step):
      1. `buffered_bytes` is the sum of the sizes of the unfinished batches.
      2. At most `max_in_flight` batches of a partition are in flight; 1 until one is acknowledged.
      3. Sequence numbers in flight ascend and do not overlap, within one identity.
      4. A batch is SENT or RETRYING exactly while it is in flight.
    """

    def __init__(self, settings: ProducerSettings) -> None:
        self.settings: Final = settings
        self.idempotent: Final = settings.idempotent
        self.transactional: Final = settings.transactional_id is not None
        self.batch_size: Final = min(settings.batch_size, settings.max_request_size)
        self._retry: Final = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._reroute: Final = Backoff(
            settings.metadata_retry_backoff_ms, settings.metadata_retry_backoff_max_ms
        )
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self._active: dict[TopicPartition, PartitionQueue] = {}  # with batches
        self.identity: ProducerIdentity | None = None
        self.buffered_bytes = 0
        self.flushing = False
        self.awaiting_room = 0  # callers of `send` that wait until the buffer has room
        self._next_expiry_ms = NEVER_MS

    # --- records come in ---

    def queue(self, topic_partition: TopicPartition) -> PartitionQueue:
        """Return the partition's queue. Callers keep it, to avoid a look-up for every record."""
        if topic_partition not in self.queues:
            self.queues[topic_partition] = PartitionQueue(topic_partition)
        return self.queues[topic_partition]

    def append(
        self,
        now_ms: float,
        queue: PartitionQueue,
        record: tuple[int, bytes | None, bytes | None, Headers],
        size: int,
    ) -> tuple[Batch, bool]:
        """Add a record (timestamp_ms, key, value, headers) of `size`, its `checked_record_size`.

        Returns the record's batch, of which it is the last record, and whether `drain` may have a
        batch to send: a batch has begun or is full.
        """
        waiting = queue.waiting
        batch = waiting[-1] if waiting else None
        is_ready = False
        if batch is None or batch.size_in_bytes + size > self.batch_size:
            is_ready = True
            batch = Batch(queue.topic_partition, now_ms, self.transactional)
            waiting.append(batch)
            self._active[queue.topic_partition] = queue
            self.buffered_bytes += batch.size_in_bytes
            expiry_ms = now_ms + self.settings.delivery_timeout_ms
            self._next_expiry_ms = min(self._next_expiry_ms, expiry_ms)
        batch.records.append((len(batch.records), *record))
        batch.size_in_bytes += size
        self.buffered_bytes += size
        return batch, is_ready or batch.size_in_bytes >= self.batch_size

    # --- batches go out ---

    @property
    def wants_identity(self) -> bool:
        """True if a new batch needs a producer id from InitProducerId."""
        # A transactional producer gets its identity from `Transactions`.
        is_own = self.idempotent and not self.transactional
        return is_own and self.identity is None and bool(self._active)

    def identify(self, identity: ProducerIdentity) -> None:
        """Use the `identity` from InitProducerId for new batches."""
        self.identity = identity

    def drain(self, now_ms: float, leaders: Leaders) -> Requests:
        """Return the requests to send now; the caller reports the end of every batch in them.

        A lingering batch joins a request to its broker, as in Kafka's client: one request is
        cheaper than two.
        """
        requests = Requests(self.settings.max_request_size, self._next_expiry_ms)
        lingering: list[tuple[PartitionQueue, Leader, float]] = []
        for topic_partition, queue in list(self._active.items()):
            ready_at_ms = self._ready_at_ms(queue)
            if ready_at_ms == NEVER_MS:
                continue
            leader = leaders.leader(topic_partition)
            if leader is None or not self._may_follow(queue, leader):
                continue  # new metadata, a connection or a response wakes the sender
            is_retry = self._retries(queue)
            if is_retry and _is_newer(leader, queue.in_flight[0]):
                ready_at_ms = now_ms  # the backoff spares the old leader
            if ready_at_ms > now_ms and is_retry:
                requests.look_again(ready_at_ms)
            elif ready_at_ms > now_ms:
                lingering.append((queue, leader, ready_at_ms))
            elif leaders.has_room(leader.broker_id):  # else the next response wakes the sender
                self._put(requests, queue, leader, now_ms)
        for queue, leader, ready_at_ms in lingering:
            if leader.broker_id in requests.by_broker:
                self._put(requests, queue, leader, ready_at_ms)
            else:
                requests.look_again(ready_at_ms)
        return requests

    def _put(self, requests: Requests, queue: PartitionQueue, leader: Leader, or_ms: float) -> None:
        """Add the next batch to the leader's request; if that is full, look again at `or_ms`."""
        batch = queue.in_flight[0] if self._retries(queue) else queue.waiting[0]
        if not requests.take(leader.broker_id, batch):
            requests.look_again(or_ms)
            return
        self._send(queue, batch, leader)
        self._active[queue.topic_partition] = self._active.pop(queue.topic_partition)  # in turn
        requests.look_again(self._ready_at_ms(queue))

    def _retries(self, queue: PartitionQueue) -> bool:
        return any(batch.state is BatchState.RETRYING for batch in queue.in_flight)

    def _ready_at_ms(self, queue: PartitionQueue) -> float:
        """Return when the queue's next batch may be sent; `inf` if an event must come first."""
        if self._retries(queue):
            if queue.renumber and not self._renumber(queue):
                return NEVER_MS
            head = queue.in_flight[0]
            return head.retry_at_ms if head.state is BatchState.RETRYING else NEVER_MS
        if not queue.waiting or len(queue.in_flight) >= self._in_flight_max(queue):
            return NEVER_MS
        if self.idempotent and not self._may_number(queue):
            return NEVER_MS
        first = queue.waiting[0]
        is_full = len(queue.waiting) > 1 or first.size_in_bytes >= self.batch_size
        if is_full or self.flushing or self.awaiting_room:
            return first.created_ms
        return first.created_ms + self.settings.linger_ms

    def _in_flight_max(self, queue: PartitionQueue) -> int:
        return self.settings.max_in_flight if queue.pipelined or not self.idempotent else 1

    def _may_follow(self, queue: PartitionQueue, leader: Leader) -> bool:
        """Return whether a new batch may follow the batches in flight: same topic id."""
        if leader.topic_id == queue.topic_id or self._retries(queue):
            return True
        if queue.in_flight and self.idempotent:
            return False
        queue.topic_id, queue.pipelined = leader.topic_id, False
        return True

    def _may_number(self, queue: PartitionQueue) -> bool:
        is_old = self.transactional and queue.sequence and queue.sequence[0] != self.identity
        is_new = queue.sequence is None or is_old
        if is_new and self.identity is not None and not queue.in_flight:
            queue.sequence, queue.pipelined = (self.identity, 0), False
        return queue.sequence is not None

    def _send(self, queue: PartitionQueue, batch: Batch, leader: Leader) -> None:
        if batch.state is BatchState.WAITING:
            queue.in_flight.append(queue.waiting.popleft())
            if queue.sequence is not None:
                self._number(queue, batch, *queue.sequence)
        batch.become(BatchState.SENT)
        batch.attempts += 1
        batch.leader_epoch, batch.topic_id = leader.leader_epoch, leader.topic_id

    def _number(
        self, queue: PartitionQueue, batch: Batch, identity: ProducerIdentity, sequence: int
    ) -> None:
        batch.number(identity, sequence)
        queue.sequence = identity, (sequence + len(batch.records)) & SEQUENCE_MASK

    def _renumber(self, queue: PartitionQueue) -> bool:
        """Give the batches in flight new numbers in the next epoch; False before all responses."""
        if any(batch.state is BatchState.SENT for batch in queue.in_flight):
            return False
        identity = queue.in_flight[0].identity
        require(identity is not None, "only numbered batches are numbered anew")
        if identity is not None and identity.producer_epoch < EPOCH_MAX:
            identity = ProducerIdentity(identity.producer_id, identity.producer_epoch + 1)
        else:
            self._forget(identity)
            identity = self.identity
        if identity is None:
            return False
        queue.sequence, queue.pipelined, queue.renumber = (identity, 0), False, False
        for batch in queue.in_flight:
            self._number(queue, batch, *queue.sequence)
        return True

    def _forget(self, identity: ProducerIdentity | None) -> None:
        if identity and self.identity and self.identity.producer_id == identity.producer_id:
            self.identity = None

    # --- responses come in ---

    def handle_answer(
        self, now_ms: float, batch: Batch, answer: BatchAnswer, random_fraction: float
    ) -> bool:
        """Handle a broker's response to the last attempt. True if the batch is now done.

        `random_fraction` in [0, 1) spreads the retry.
        """
        if batch.state is BatchState.DONE:
            return False  # it has expired before
        queue = self.queues[batch.topic_partition]
        code = batch.last_code = known(answer.error_code)
        if code in {ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER}:
            batch.base_offset = answer.base_offset
            batch.log_append_time_ms = answer.log_append_time_ms
            is_current = self._is_current(queue, batch) and batch.topic_id == queue.topic_id
            queue.pipelined = queue.pipelined or is_current
            self._finish(queue, batch)
            return True
        if code not in DEFINITE:
            batch.indefinite = True
        is_gap = self.idempotent and code in _GAP
        if is_gap and batch is queue.in_flight[0]:
            # DEVIATION: Kafka's clients number the batch anew, and may write it twice.
            # docs/decisions/0042-producer-outcomes.md
            if batch.indefinite or self.transactional:  # the broker validates the next batch
                self._fail(queue, batch, answer)
                return True
            queue.renumber = True
        if is_gap or code in RETRIABLE:
            backoff = self._reroute if is_gap or code in _MISROUTED else self._retry
            retry_at_ms = now_ms + backoff.delay_ms(batch.attempts, random_fraction)
            return self._retry_or_fail(queue, batch, retry_at_ms, answer, now_ms)
        if code in _FENCED and not self.transactional:
            self._forget(batch.identity)
            queue.sequence = None  # set again when no batch of the old identity is in flight
        self._fail(queue, batch, answer)
        return True

    def handle_lost(
        self, now_ms: float, batch: Batch, *, written: bool, message: str, random_fraction: float
    ) -> bool:
        """Handle a lost response. `written`: a byte may have left. True if the batch is done."""
        if batch.state is BatchState.DONE:
            return False
        batch.indefinite = batch.indefinite or written
        batch.last_code = ErrorCode.NETWORK_EXCEPTION
        answer = BatchAnswer(error_code=ErrorCode.NETWORK_EXCEPTION, message=message)
        retry_at_ms = now_ms + self._reroute.delay_ms(batch.attempts, random_fraction)
        queue = self.queues[batch.topic_partition]
        return self._retry_or_fail(queue, batch, retry_at_ms, answer, now_ms)

    def _retry_or_fail(
        self,
        queue: PartitionQueue,
        batch: Batch,
        retry_at_ms: float,
        answer: BatchAnswer,
        now_ms: float,
    ) -> bool:
        is_late = now_ms >= batch.created_ms + self.settings.delivery_timeout_ms
        if is_late or batch.attempts > self.settings.retries:
            self._fail(queue, batch, answer)
            return True
        batch.become(BatchState.RETRYING)
        batch.retry_at_ms = retry_at_ms
        return False

    @staticmethod
    def _is_current(queue: PartitionQueue, batch: Batch) -> bool:
        return queue.sequence is not None and batch.identity == queue.sequence[0]

    # --- batches end ---

    def expire(self, now_ms: float) -> list[Batch]:
        """Fail batches older than delivery_timeout_ms, even while a response is outstanding."""
        if now_ms < self._next_expiry_ms:
            return []
        limit_ms = self.settings.delivery_timeout_ms
        deadline_ms = now_ms - limit_ms
        expired = []
        for queue in list(self._active.values()):
            for batch in [batch for batch in queue.batches() if batch.created_ms <= deadline_ms]:
                batch.indefinite = batch.indefinite or batch.state is BatchState.SENT
                late = f"not acknowledged within delivery_timeout_ms={limit_ms}: "
                late += batch.last_outcome()
                self._fail(queue, batch, BatchAnswer(ErrorCode.REQUEST_TIMED_OUT, message=late))
                expired.append(batch)
        oldest = [batch.created_ms for queue in self._active.values() for batch in queue.batches()]
        self._next_expiry_ms = min(oldest, default=NEVER_MS) + limit_ms
        return expired

    def fail_all(
        self,
        error: KafkaError,
        *,
        but_sent: bool = False,
        of: Container[TopicPartition] | None = None,
    ) -> list[Batch]:
        """Fail every batch with `error`: the producer is closed, or has failed.

        `but_sent`: keep the batches whose response is outstanding. `of`: only of these partitions.
        """
        failed = [one for one in self.incomplete() if of is None or one.topic_partition in of]
        if but_sent:
            failed = [batch for batch in failed if batch.state is not BatchState.SENT]
        for batch in failed:
            batch.indefinite = batch.indefinite or batch.state is BatchState.SENT
            answer = BatchAnswer(error.code, message=error.message)
            self._fail(self.queues[batch.topic_partition], batch, answer)
        return failed

    def incomplete(self) -> list[Batch]:
        """Return all unfinished batches."""
        return [batch for queue in self._active.values() for batch in queue.batches()]

    def waiting_partitions(self) -> Collection[TopicPartition]:
        """Return the partitions that have unfinished batches."""
        return self._active.keys()

    def refusals(self) -> dict[TopicPartition, str]:
        """Return the last error of each partition's oldest batch, if a retry follows."""
        refused = {}
        for name, queue in self._active.items():
            oldest = next(iter(queue.batches()), None)
            if oldest is not None and oldest.is_refused:
                refused[name] = f"its leader does not take records: {oldest.last_code.name}"
        return refused

    def _fail(self, queue: PartitionQueue, batch: Batch, answer: BatchAnswer) -> None:
        where = f"{batch.topic_partition}: {answer.message}".removesuffix(": ")
        if answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            where = denied(answer.error_code, f"topic {batch.topic_partition.topic!r}", "WRITE")
        if answer.error_code == ErrorCode.MESSAGE_TOO_LARGE:
            where += f": a batch of {batch.size_in_bytes} bytes: lower batch_size, or raise the"
            where += " topic's max.message.bytes"
        batch.error = KafkaError(answer.error_code, where, definite=not batch.indefinite)
        self._finish(queue, batch)

    def _finish(self, queue: PartitionQueue, batch: Batch) -> None:
        if batch.state is BatchState.WAITING:
            queue.waiting.remove(batch)
        else:
            queue.in_flight.remove(batch)
        queue.renumber = queue.renumber and bool(queue.in_flight)
        batch.become(BatchState.DONE)
        batch.release()
        self.buffered_bytes -= batch.size_in_bytes
        if not queue.in_flight and not queue.waiting:
            del self._active[queue.topic_partition]

    def check_invariants(self) -> None:
        """Raise InvariantViolation with the number of the rule that does not hold."""
        held = sum(batch.size_in_bytes for batch in self.incomplete())
        require(held == self.buffered_bytes, "1: buffered_bytes is the sum of the sizes")
        for queue in self._active.values():
            flying = queue.in_flight
            require(len(flying) <= self.settings.max_in_flight, "2: max_in_flight")
            for earlier, later in pairwise(flying):
                gap = later.base_sequence - earlier.base_sequence - len(earlier.records)
                ascends = gap & SEQUENCE_MASK < SEQUENCE_MASK // 2
                same = earlier.identity == later.identity
                require(not self.idempotent or (same and ascends), "3: numbers ascend")
            sent = {BatchState.SENT, BatchState.RETRYING}
            require({batch.state for batch in flying} <= sent, "4: in flight means sent")


def _is_newer(leader: Leader, batch: Batch) -> bool:
    """Return whether `leader` is newer than the last attempt's, by its epoch or topic id."""
    is_same_topic = leader.topic_id == batch.topic_id
    return not is_same_topic or leader.leader_epoch > batch.leader_epoch
