"""Scripted schedules that random search would need long to find; see also the property tests."""

from collections.abc import Sequence

from quorumlog.client.core.accumulator import (
    EPOCH_MAX,
    NEVER_MS,
    Accumulator,
    BatchAnswer,
    Requests,
)
from quorumlog.client.core.batch import Batch, BatchState, ProducerIdentity
from quorumlog.client.core.metadata_cache import Leader
from quorumlog.client.settings import ProducerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
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


def test_a_new_leader_is_not_kept_waiting() -> None:
    producer, (batch,) = started(1)
    producer.answer(batch, E.NOT_LEADER_OR_FOLLOWER)
    assert producer.drain() == []
    producer.route = Leader(2, 1)
    assert producer.drain() == [batch]


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


def test_without_a_leader_somebody_must_look_for_it() -> None:
    producer, (batch,) = started(1)
    producer.lose(batch)
    producer.route = None
    assert producer.drain() == []
    assert producer.looked_for == [P]


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


def test_a_duplicate_is_a_success_without_an_offset() -> None:
    producer, (batch,) = started(1)
    result = BatchAnswer(E.DUPLICATE_SEQUENCE_NUMBER, -1)
    assert producer.accumulator.handle_answer(0, batch, result, 0.5)
    assert (batch.error, batch.base_offset) == (None, -1)


def test_numbers_wrap_to_zero() -> None:
    producer, _ = started(0)
    queue = producer.accumulator.queue(P)
    queue.sequence = ProducerIdentity(1, 0), 2**31 - 1
    batches = producer.send(2)
    assert producer.drain() == batches
    assert numbers(batches) == [(0, 2**31 - 1), (0, 0)]


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
