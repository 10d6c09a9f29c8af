"""Records that other threads hand to a producer's event loop, without a call to the loop for each.

A thread puts its record into the inbox. The loop admits the records to their batches, in order,
before it looks which batches are due, and before every other call of the producer. So a thread
needs to wake the loop only if the record's partition has no open batch, or the batch is full by
now: an open batch has its timer, or the event that it waits for.

The loop may look at the inbox, and send the open batch, while a thread puts its record behind that
look. Then the loop finds the record when it looks again at the end of the step, or the thread finds
no open batch any more, and wakes the loop.
"""

import threading
from collections import deque
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from quorumlog.chance import random_fraction
from quorumlog.client.core.accumulator import Accumulator, PartitionQueue
from quorumlog.client.core.batch import Batch
from quorumlog.client.core.partitioner import partition_for_key
from quorumlog.client.core.record_columns import RecordFields
from quorumlog.client.core.topic_queues import TopicQueues
from quorumlog.client.core.transactions import Transactions
from quorumlog.client.errors import KafkaError
from quorumlog.client.io.delivery import Outcome, failed_batch
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

_ADMITTED_MAX: Final = 1_000  # in one step: other tasks of the loop run between two steps


_Entry = tuple[int, Outcome, str, TopicQueues, PartitionQueue | None, RecordFields, int, int]
"""The bytes of this record and all before it, its outcome, the topic's name and queues, its queue
(None: any), timestamp_ms, key, value and headers, its size, the number of its transaction."""

PENDING: Final = Batch(TopicPartition("", -1), 0.0)
"""The batch of a record that the loop has not admitted yet."""


class Loop(Protocol):
    """The parts of an event loop that an inbox needs."""

    def time(self) -> float:
        """Return the monotonic time in seconds."""

    def call_soon_threadsafe(self, callback: Callable[[], object], /) -> object:
        """Call back in the loop's next turn."""


class Inbox:
    """The records of one producer that its event loop has not admitted yet.

    Invariants (tests/unit/client/test_client_inbox.py):
      1. Records are admitted in the order in which they were put in, each once.
      2. The loop waits for no thread. A signal handler, at any moment of `put`, may call the
         producer, and close it: nothing that the loop needs is held, or half done, meanwhile.
      3. A record that is put in before a call of the producer is admitted before the call begins.
      4. After `close` every record that is left fails, once.
    """

    def __init__(
        self,
        loop: Loop,
        accumulator: Accumulator,
        topics: Mapping[str, TopicQueues],
        lines: Container[str],
        *,
        transactions: Transactions | None,
        wake: Callable[[], None],
    ) -> None:
        """`lines`: the topics for which calls wait. `wake`: makes a step of the sender soon."""
        self._accumulator: Final = accumulator
        self._memory: Final = accumulator.settings.buffer_memory
        self._batch_size: Final = accumulator.batch_size
        self._topics: Final = topics
        self._lines: Final = lines
        self._transactions: Final = transactions
        self._wake: Final = wake
        self._loop: Final = loop
        self._wake_from_thread: Final = partial(self._loop.call_soon_threadsafe, wake)
        self._entries: Final[deque[_Entry]] = deque()
        self._putting: Final = threading.RLock()  # among threads; reentrant for signal handlers
        self._admitted_bytes = 0  # the `total` of the last admitted entry
        self._looks = 0  # of the loop
        self._woken_for = -1  # the last number of `_looks` for which a thread has woken the loop
        self._is_closed = False

    # --- in any thread ---

    def topic(self, name: str) -> TopicQueues | None:
        """Return the partitions of a topic that was used before."""
        return self._topics.get(name)

    def put(
        self, name: str, partition: int | None, record: RecordFields, size: int, outcome: Outcome
    ) -> bool:
        """Put in a record; False if its call must wait, or a queue be made: call the loop then.

        `record`: timestamp_ms, key, value and headers, all checked. `size`: its
        `checked_record_size`. `outcome`: of the batch PENDING. Raises the errors of
        `Transactions.ticket`.
        """
        topic = self._topics.get(name)
        if topic is None or name in self._lines or self._is_closed:
            return False
        key = record[1]
        if partition is None and key is not None:
            partition = partition_for_key(key, topic.count)
        if partition is None:
            queue, current = None, topic.queues.get(topic.sticky.current)
        else:
            queue = current = topic.queues.get(partition)
            if queue is None:
                return False
        ticket = 0 if self._transactions is None else self._transactions.ticket()
        try:
            with self._putting:
                total = self._total_bytes() + size
                pending = total - self._admitted_bytes
                if self._accumulator.buffered_bytes + pending > self._memory:
                    return False
                self._entries.append((total, outcome, name, topic, queue, record, size, ticket))
            if current is None or not self._is_open(current, pending):
                self._wake_once()
        except BaseException:
            with suppress(RuntimeError):  # interrupted (Ctrl-C): the record may be in
                self._wake_from_thread()
            raise
        if self._is_closed:  # by another thread, or a signal handler, meanwhile
            self._fail_all()
            return False
        return True

    def _wake_once(self) -> None:
        """Wake the loop, unless a thread has done so since the loop looked."""
        looks = self._looks
        if self._woken_for != looks:
            with suppress(RuntimeError):  # the loop is closed: `put` fails the record
                self._wake_from_thread()
            self._woken_for = looks

    def _total_bytes(self) -> int:
        try:
            return self._entries[-1][0]
        except IndexError:  # all are admitted
            return self._admitted_bytes

    def _is_open(self, queue: PartitionQueue, pending: int) -> bool:
        """Return whether the queue's last batch waits, and has room for all pending records."""
        try:
            return queue.waiting[-1].size_in_bytes + pending < self._batch_size
        except IndexError:
            return False

    def _fail_all(self) -> None:
        closed = KafkaError(ErrorCode.NETWORK_EXCEPTION, "the producer was closed", definite=True)
        while True:
            try:
                entry = self._entries.popleft()
            except IndexError:
                return
            entry[1].place(failed_batch(closed), 0)

    def admit_soon(self) -> None:
        """Let the loop admit all records before any call that reaches the loop later."""
        if self._entries:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.admit_all)

    # --- on the event loop ---

    def admit_all(self) -> None:
        """Admit every record, and let the sender look at the batches."""
        if self._entries:
            self.admit(len(self._entries))
            self._wake()

    def admit(self, count: int = _ADMITTED_MAX) -> None:
        """Admit the oldest records to their batches, at most `count`."""
        if self._is_closed:
            self._fail_all()
            return
        self._looks += 1
        entries, now_ms = self._entries, self._loop.time() * 1000
        while entries and count:
            count -= 1
            entry = entries[0]
            try:
                self._admit(entry, now_ms)
            finally:  # once the bytes are in the accumulator: `put` never counts too few
                self._admitted_bytes = entry[0]
                entries.popleft()

    def _admit(self, entry: _Entry, now_ms: float) -> None:
        _, outcome, name, topic, queue, record, size, ticket = entry
        if queue is None:
            number = topic.sticky_partition(size, random_fraction)
            queue = topic.queues.get(number)
            if queue is None:
                queue = topic.queues[number] = self._accumulator.queue(TopicPartition(name, number))
        if self._transactions is not None:
            try:
                self._transactions.admit(ticket, queue.topic_partition)
            except KafkaError as error:
                outcome.place(failed_batch(error), 0)
                return
            except RuntimeError as error:  # another thread has ended the transaction meanwhile
                code = ErrorCode.OPERATION_NOT_ATTEMPTED
                ended = KafkaError(code, str(error), definite=True)
                outcome.place(failed_batch(ended), 0)
                return
        batch, _ = self._accumulator.append(now_ms, queue, record, size)
        outcome.place(batch, len(batch.records) - 1)

    @property
    def has_records(self) -> bool:
        """Whether records wait to be admitted."""
        return bool(self._entries)

    def close(self) -> None:
        """Fail the records that are left, and all that threads still put in."""
        self._is_closed = True
        self._fail_all()
