"""Batches and their errors, in schedules that random search would need long to find."""

from collections.abc import Sequence

import pytest

from quorumlog.client.core.accumulator import (
    EPOCH_MAX,
    NEVER_MS,
    Accumulator,
    BatchAnswer,
    Requests,
)
from quorumlog.client.core.batch import Batch, BatchState, ProducerIdentity, checked_record_size
from quorumlog.client.core.metadata_cache import Leader
from quorumlog.client.errors import DEFINITE, KafkaError, answered
from quorumlog.client.settings import ProducerSettings
from quorumlog.wire.codec.error_codes import ErrorCode, known
from quorumlog.wire.codec.identifiers import TopicPartition

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
E = ErrorCode


class Producer:
    """An accumulator with one leader, which can be moved, and no linger unless asked for."""

    def __init__(self, *, epoch: int = 0, linger_ms: float = 0, batch_size: int = 1) -> None:
        settings = ProducerSettings(
            bootstrap_servers="x:1", linger_ms=linger_ms, batch_size=batch_size
        )
        self.accumulator = Accumulator(settings)
        self.accumulator.identify(ProducerIdentity(1, epoch))
        self.route: Leader | None = Leader(1, 0)
        self.now_ms = 0.0
        self.looked_for: list[TopicPartition] = []
        self.brokers: Sequence[int] = ()  # the leader of each partition, if they have several

    def leader(self, topic_partition: TopicPartition) -> Leader | None:
        if self.brokers:
            return Leader(self.brokers[topic_partition.partition], 0)
        if self.route is None:
            self.looked_for.append(topic_partition)
        return self.route

    def has_room(self, broker_id: int) -> bool:
        return True

    def send(self, count: int = 1, to: TopicPartition = P) -> list[Batch]:
        queue = self.accumulator.queue(to)
        record = (0, None, b"v", ())
        now_ms, accumulator = self.now_ms, self.accumulator
        return [accumulator.append(now_ms, queue, record, 22)[0] for _ in range(count)]

    def drain(self) -> list[Batch]:
        sent: list[Batch] = []
        while by_broker := self.accumulator.drain(self.now_ms, self).by_broker:
            sent += [batch for batches in by_broker.values() for batch in batches]
        self.accumulator.check_invariants()
        return sent

    def answer(self, batch: Batch, code: ErrorCode = E.NONE) -> None:
        self.accumulator.handle_answer(self.now_ms, batch, BatchAnswer(code, 0), 0.5)

    def lose(self, batch: Batch) -> None:
        self.accumulator.handle_lost(
            self.now_ms, batch, written=True, message="", random_fraction=0.5
        )


def started(count: int, **options: int) -> tuple[Producer, list[Batch]]:
    """A producer with one acknowledged batch and `count` in flight."""
    producer = Producer(**options)
    (first,) = producer.send()
    assert producer.drain() == [first]
    producer.answer(first)
    batches = producer.send(count)
    assert producer.drain() == batches[:5]
    return producer, batches


def numbers(batches: list[Batch]) -> list[tuple[int, int]]:
    return [(b.identity.producer_epoch, b.base_sequence) for b in batches if b.identity]


def sent(requests: Requests) -> dict[int, list[int]]:
    """The partitions in the request to each broker."""
    return {
        broker_id: [batch.topic_partition.partition for batch in batches]
        for broker_id, batches in requests.by_broker.items()
    }


def test_the_first_batch_travels_alone_and_then_five() -> None:
    producer = Producer()
    batches = producer.send(8)
    assert producer.drain() == batches[:1]
    producer.answer(batches[0])
    assert producer.drain() == batches[1:6]
    assert numbers(batches[:6]) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]


def test_batches_are_retried_one_after_the_other_in_order() -> None:
    producer, batches = started(3)
    for batch in batches:
        producer.lose(batch)
    assert producer.drain() == []  # not before its backoff
    producer.now_ms += 1_000
    for batch in batches:
        assert producer.drain() == [batch]
        producer.answer(batch)
    assert numbers(batches) == [(0, 1), (0, 2), (0, 3)]


def test_a_new_leader_is_not_kept_waiting_and_a_missing_one_is_looked_for() -> None:
    producer, (batch,) = started(1)
    producer.answer(batch, E.NOT_LEADER_OR_FOLLOWER)
    assert producer.drain() == []
    producer.route = Leader(2, 1)
    assert producer.drain() == [batch]
    producer, (batch,) = started(1)
    producer.lose(batch)
    producer.route = None
    assert producer.drain() == []
    assert producer.looked_for == [P]


def test_the_first_batch_for_a_topic_that_was_created_again_travels_alone() -> None:
    """Its log takes any number from a producer that it does not know."""
    producer, (first,) = started(1)
    second, third = producer.send(2)
    producer.route = Leader(1, 0, b"2" * 16)
    assert producer.drain() == []  # the first may still be answered for the deleted topic
    producer.answer(first, E.UNKNOWN_TOPIC_ID)
    assert producer.drain() == [first]
    assert producer.drain() == []
    producer.answer(first)
    assert producer.drain() == [second]
    producer.answer(second)
    assert producer.drain() == [third]
    assert numbers([first, second, third]) == [(0, 1), (0, 2), (0, 3)]


def test_a_gap_seen_by_a_later_batch_waits_for_its_turn() -> None:
    producer, (first, second) = started(2)
    producer.lose(first)
    producer.answer(second, E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    producer.now_ms += 1_000
    assert producer.drain() == [first]
    assert numbers([first, second]) == [(0, 1), (0, 2)]
    producer.answer(first)
    assert producer.drain() == [second]
    assert numbers([second]) == [(0, 2)]


def test_a_gap_seen_by_the_oldest_starts_a_new_epoch_when_all_answers_are_in() -> None:
    producer, (first, second, third) = started(3)
    producer.answer(first, E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert producer.drain() == []  # the second may still be written
    producer.answer(second, E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    producer.lose(third)
    producer.now_ms += 1_000
    assert producer.drain() == [first]  # alone: it is the first of its epoch
    assert numbers([first, second, third]) == [(1, 0), (1, 1), (1, 2)]
    producer.send(1, to=Q)
    (other,) = producer.drain()
    assert numbers([other]) == [(0, 0)]  # the epoch is the partition's own


def test_an_exhausted_epoch_needs_a_new_producer_id() -> None:
    producer, (batch,) = started(1, epoch=EPOCH_MAX)
    producer.answer(batch, E.UNKNOWN_PRODUCER_ID)
    assert producer.drain() == []
    assert producer.accumulator.wants_identity
    producer.accumulator.identify(ProducerIdentity(2, 0))
    producer.now_ms += 1_000
    assert producer.drain() == [batch]
    assert batch.identity == ProducerIdentity(2, 0)


def test_a_fenced_producer_fails_what_it_sent_and_goes_on_as_another() -> None:
    producer, (first, second) = started(2)
    (unsent,) = producer.send()
    producer.answer(first, E.INVALID_PRODUCER_EPOCH)
    assert first.error is not None
    assert producer.accumulator.wants_identity
    producer.accumulator.identify(ProducerIdentity(2, 0))
    assert producer.drain() == []  # the second's fate is open
    producer.answer(second, E.INVALID_PRODUCER_EPOCH)
    assert producer.drain() == [unsent]
    assert unsent.identity == ProducerIdentity(2, 0)


def test_numbers_wrap_to_zero_and_a_duplicate_has_no_offset() -> None:
    producer, _ = started(0)
    queue = producer.accumulator.queue(P)
    queue.sequence = ProducerIdentity(1, 0), 2**31 - 1
    batches = producer.send(2)
    assert producer.drain() == batches
    assert numbers(batches) == [(0, 2**31 - 1), (0, 0)]
    producer, (batch,) = started(1)
    result = BatchAnswer(E.DUPLICATE_SEQUENCE_NUMBER, -1)
    assert producer.accumulator.handle_answer(0, batch, result, 0.5)
    assert (batch.error, batch.base_offset) == (None, -1)


def test_linger_a_full_batch_and_a_flush() -> None:
    producer = Producer(linger_ms=5, batch_size=110)
    one, again = producer.send(2)
    assert one is again
    drained = producer.accumulator.drain(0, producer)
    assert (drained.by_broker, drained.wake_at_ms) == ({}, 5)
    producer.accumulator.flushing = True
    assert producer.drain() == [one]
    producer.answer(one)
    producer.accumulator.flushing = False
    full, same, rest = producer.send(3)
    assert full is same
    assert producer.drain() == [full]
    assert rest.state is BatchState.WAITING
    producer.now_ms = 5
    assert producer.drain() == [rest]
    producer.answer(full)
    producer.answer(rest)
    assert producer.accumulator.buffered_bytes == 0
    assert producer.accumulator.drain(9, producer).wake_at_ms < NEVER_MS  # the next expiry look
    assert producer.accumulator.expire(1e9) == []
    assert producer.accumulator.drain(1e9, producer).wake_at_ms == NEVER_MS


def test_what_lingers_leaves_with_a_request_to_its_broker() -> None:
    producer = Producer(linger_ms=5, batch_size=110)
    producer.brokers = (1, 1, 2, 1)
    for index, count in ((1, 1), (2, 1), (0, 3)):  # the first batch of partition 0 is full
        producer.send(count, to=TopicPartition("t", index))
    drained = producer.accumulator.drain(0, producer)
    assert sent(drained) == {1: [0, 1]}
    assert drained.wake_at_ms == 5
    producer.now_ms = 1
    producer.send(to=TopicPartition("t", 3))  # nothing else leaves for its broker
    assert sent(producer.accumulator.drain(1, producer)) == {}
    assert sent(producer.accumulator.drain(5, producer)) == {2: [2]}
    assert sent(producer.accumulator.drain(6, producer)) == {1: [3]}


def test_what_lingers_waits_if_the_request_is_full() -> None:
    settings = ProducerSettings(
        bootstrap_servers="x:1", linger_ms=5, batch_size=110, max_request_size=110
    )
    producer = Producer()
    producer.accumulator = Accumulator(settings)
    producer.accumulator.identify(ProducerIdentity(1, 0))
    producer.send(to=Q)
    producer.send(3)
    drained = producer.accumulator.drain(0, producer)
    assert (sent(drained), drained.wake_at_ms) == ({1: [0]}, 5)


def test_a_batch_that_may_stand_never_gets_new_numbers() -> None:
    """The broker may know its last batch only, or meet the lost request after the retry."""
    producer, (first, second) = started(2)
    producer.lose(first)
    producer.answer(second, E.NOT_ENOUGH_REPLICAS)
    producer.now_ms += 1_000
    assert producer.drain() == [first]
    producer.answer(first, E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert first.error is not None
    assert not first.error.definite
    producer.now_ms += 1_000
    assert producer.drain() == [second]
    assert numbers([second]) == [(0, 2)]  # its own: nothing was learned about it
    producer.answer(second, E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    producer.now_ms += 1_000
    assert producer.drain() == [second]
    assert numbers([second]) == [(1, 0)]


def test_a_gap_that_stays_is_not_asked_about_without_pause() -> None:
    producer, (batch,) = started(1)
    for _ in range(3):
        producer.answer(batch, E.OUT_OF_ORDER_SEQUENCE_NUMBER)
        assert producer.drain() == []
        producer.now_ms += 1_000
        assert producer.drain() == [batch]


def test_partitions_take_turns_when_a_request_is_full() -> None:
    settings = ProducerSettings(
        bootstrap_servers="x:1", linger_ms=0, batch_size=100, max_request_size=100, acks=1
    )
    accumulator, route = Accumulator(settings), Producer()
    for index in (0, 1, 2, 0, 1, 2):
        queue = accumulator.queue(TopicPartition("t", index))
        accumulator.append(0, queue, (0, None, b"v", ()), 90)
    order = []
    for _ in range(6):
        (batches,) = accumulator.drain(0, route).by_broker.values()
        order += [batch.topic_partition.partition for batch in batches]
    assert order == [0, 1, 2, 0, 1, 2]


def test_a_batch_never_outgrows_a_request() -> None:
    settings = ProducerSettings(bootstrap_servers="x:1", batch_size=1_000, max_request_size=200)
    accumulator = Accumulator(settings)
    first, _ = accumulator.append(0, accumulator.queue(P), (0, None, b"v", ()), 100)
    second, _ = accumulator.append(0, accumulator.queue(P), (0, None, b"v", ()), 100)
    assert first is not second


def test_what_runs_out_of_time_says_what_was_tried() -> None:
    producer, (first, second, _) = started(3)
    (waiting,) = producer.send(1, to=Q)
    producer.answer(first, E.UNKNOWN_TOPIC_OR_PARTITION)
    producer.accumulator.expire(1e9)
    told = [str(batch.error) for batch in (first, second, waiting)]
    for message, news in zip(
        told, ("ended with UNKNOWN_TOPIC_OR_PARTITION", "no answer came", "never sent"), strict=True
    ):
        assert news in message


LOST_UNSENT, LOST_SENT, TIMED_OUT = "lost, not written", "lost, written", "delivery timeout"


class Anywhere:
    def leader(self, topic_partition: TopicPartition) -> Leader:
        return Leader(1, 1)

    def has_room(self, broker_id: int) -> bool:
        return True


def fate(*attempts: ErrorCode | str) -> KafkaError:
    """The error of one record whose attempts ended like this."""
    settings = ProducerSettings(bootstrap_servers="x:1", linger_ms=0, delivery_timeout_ms=30_000)
    accumulator = Accumulator(settings)
    accumulator.identify(ProducerIdentity(1, 0))
    now_ms = 0.0
    queue = accumulator.queue(TopicPartition("t", 0))
    size = checked_record_size(None, b"v", ())
    batch, _ = accumulator.append(now_ms, queue, (0, None, b"v", ()), size)
    for number, attempt in enumerate(attempts, start=1):
        if number == len(attempts) and attempt != TIMED_OUT:
            now_ms = 30_000
        else:
            now_ms += 5_000  # beyond any backoff
        if attempt == TIMED_OUT:
            accumulator.expire(30_000)
            break
        assert accumulator.drain(now_ms, Anywhere()).by_broker == {1: [batch]}
        end(accumulator, batch, now_ms, attempt)
    assert batch.error is not None
    return batch.error


def end(accumulator: Accumulator, batch: Batch, now_ms: float, attempt: ErrorCode | str) -> None:
    if isinstance(attempt, ErrorCode):
        accumulator.handle_answer(now_ms, batch, BatchAnswer(attempt), 0.5)
    else:
        written = attempt == LOST_SENT
        accumulator.handle_lost(
            now_ms, batch, written=written, message=attempt, random_fraction=0.5
        )


@pytest.mark.parametrize(
    ("attempts", "definite"),
    [
        ((E.MESSAGE_TOO_LARGE,), True),
        ((E.INVALID_TIMESTAMP,), True),
        ((E.NOT_ENOUGH_REPLICAS,), True),
        ((E.NOT_ENOUGH_REPLICAS, E.NOT_ENOUGH_REPLICAS), True),
        ((LOST_UNSENT,), True),
        ((LOST_UNSENT, E.MESSAGE_TOO_LARGE), True),
        ((TIMED_OUT,), True),  # it never left
        ((E.NOT_ENOUGH_REPLICAS, TIMED_OUT), True),  # it waited for its next attempt
        ((E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,), False),
        ((E.NOT_LEADER_OR_FOLLOWER,), False),  # KAFKA-13574
        ((E.REQUEST_TIMED_OUT,), False),
        ((E.UNKNOWN_SERVER_ERROR,), False),
        ((E.UNKNOWN_TOPIC_OR_PARTITION,), False),
        ((E.KAFKA_STORAGE_ERROR,), False),
        ((LOST_SENT,), False),
        ((LOST_SENT, TIMED_OUT), False),
        ((LOST_SENT, E.MESSAGE_TOO_LARGE), False),
        ((E.NOT_LEADER_OR_FOLLOWER, E.NOT_ENOUGH_REPLICAS), False),
        ((LOST_SENT, E.OUT_OF_ORDER_SEQUENCE_NUMBER), False),  # the known trap
        ((E.NOT_ENOUGH_REPLICAS, LOST_SENT, E.INVALID_PRODUCER_EPOCH), False),
    ],
)
def test_an_error_is_as_definite_as_attempts(
    attempts: tuple[ErrorCode | str, ...], definite: bool
) -> None:
    assert fate(*attempts).definite is definite


def test_a_timeout_while_an_answer_is_under_way_is_indefinite() -> None:
    settings = ProducerSettings(bootstrap_servers="x:1", linger_ms=0, delivery_timeout_ms=30_000)
    accumulator = Accumulator(settings)
    accumulator.identify(ProducerIdentity(1, 0))
    queue = accumulator.queue(TopicPartition("t", 0))
    batch, _ = accumulator.append(0, queue, (0, None, b"v", ()), 30)
    accumulator.drain(0, Anywhere())
    assert accumulator.expire(29_999) == []
    assert accumulator.expire(30_000) == [batch]
    assert batch.error is not None
    assert (batch.error.code, batch.error.definite) == (E.REQUEST_TIMED_OUT, False)
    assert not accumulator.handle_answer(30_001, batch, BatchAnswer(), 0.5)  # too late to matter
    accumulator.check_invariants()


def test_what_an_error_says_of_itself() -> None:
    fenced = KafkaError(E.PRODUCER_FENCED, "by another", definite=True)
    assert str(fenced) == "PRODUCER_FENCED: by another"
    assert (fenced.retriable, fenced.abortable, fenced.fatal) == (False, False, True)
    assert KafkaError(E.NOT_ENOUGH_REPLICAS, definite=True).retriable
    assert KafkaError(E.TRANSACTION_ABORTABLE, definite=True).abortable
    assert answered(E.TOPIC_ALREADY_EXISTS).definite
    assert not answered(E.TOPIC_ALREADY_EXISTS, earlier_definite=False).definite
    assert known(9_999) == E.UNKNOWN_SERVER_ERROR
    assert not answered(9_999).definite


def test_nothing_that_may_follow_an_append_counts_as_definite() -> None:
    after_append = {
        E.NONE,
        E.KAFKA_STORAGE_ERROR,
        E.NETWORK_EXCEPTION,
        E.NOT_CONTROLLER,
        E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        E.NOT_LEADER_OR_FOLLOWER,
        E.REQUEST_TIMED_OUT,
        E.UNKNOWN_SERVER_ERROR,
        E.UNKNOWN_TOPIC_ID,
        E.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert not DEFINITE & after_append
