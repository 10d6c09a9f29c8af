"""Requests that wait for the high watermark or for records, and their deadlines."""

from quorumlog.broker.partitions.core.data_path import ProduceResult
from quorumlog.broker.partitions.core.fetch_wakeup import FetchWakeup
from quorumlog.broker.partitions.core.purgatory import (
    Deadlines,
    FetchPurgatory,
    PendingProduce,
    ProduceQueue,
    Wait,
    WaitingFetch,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


RESULT = ProduceResult(ErrorCode.NONE)


def done(_result: ProduceResult) -> None:
    """Nothing: the caller of the queue tells it."""


def offsets(waits: list[PendingProduce]) -> list[int]:
    return [wait.required_offset for wait in waits]


def test_a_produce_is_completed_once() -> None:
    deadlines = Deadlines[PendingProduce]()
    queue = ProduceQueue(deadlines)
    assert queue.add(50, 10, RESULT, done)
    assert queue.add(40, 20, RESULT, done)  # its deadline is the earliest now
    assert queue.complete_below(9) == []
    assert offsets(queue.complete_below(10)) == [10]
    assert offsets(deadlines.expire(60)) == [20]
    assert queue.complete_below(30) == []
    assert queue.fail() == []
    assert len(deadlines) == 0


def test_a_repeated_batch_does_not_wait_for_newer_ones() -> None:
    queue = ProduceQueue(Deadlines[PendingProduce]())
    queue.add(50, 20, RESULT, done)
    queue.add(50, 10, RESULT, done)
    assert offsets(queue.complete_below(15)) == [10]
    assert offsets(queue.fail()) == [20]


def test_those_who_timed_out_do_not_pile_up() -> None:
    deadlines = Deadlines[PendingProduce]()
    queue = ProduceQueue(deadlines)
    for offset in range(100):
        queue.add(offset, offset + 1, RESULT, done)
        deadlines.expire(offset)
    assert len(queue._queue) <= 1


def test_deadlines_come_in_order_and_nothing_is_left_of_the_done() -> None:
    deadlines = Deadlines[Wait]()
    waits = [Wait(1000 - at) for at in range(2000)]
    for wait in waits:
        deadlines.add(wait)
    for wait in waits[:1500]:
        assert deadlines.end(wait)
        assert not deadlines.end(wait)
    assert len(deadlines._waits) == len(deadlines) == 500
    assert deadlines.next_deadline_ms() == waits[-1].deadline_ms
    assert deadlines.expire(5000) == waits[:1499:-1]
    assert deadlines.next_deadline_ms() is None


def test_of_equal_deadlines_the_oldest_comes_first() -> None:
    deadlines = Deadlines[Wait]()
    first, second, third = Wait(7), Wait(7), Wait(6)
    assert deadlines.add(first)
    assert not deadlines.add(second)
    assert deadlines.add(third)
    assert deadlines.expire(7) == [third, first, second]


def test_a_fetch_is_found_by_the_changes_that_it_waits_for() -> None:
    purgatory = FetchPurgatory[WaitingFetch]()
    follower = WaitingFetch(100, [A], FetchWakeup.APPENDED | FetchWakeup.CHANGED)
    consumer = WaitingFetch(100, [A], FetchWakeup.COMMITTED)
    purgatory.park(follower)
    purgatory.park(consumer)
    assert purgatory.waiting_on(A, FetchWakeup.APPENDED) == [follower]
    assert purgatory.waiting_on(A, FetchWakeup.COMMITTED) == [consumer]
    either = FetchWakeup.APPENDED | FetchWakeup.COMMITTED
    assert purgatory.waiting_on(A, either) == [follower, consumer]
    assert purgatory.waiting_on(A, FetchWakeup.LOG_START) == []


def test_a_fetch_waits_on_all_its_partitions_and_leaves_all() -> None:
    purgatory = FetchPurgatory[WaitingFetch]()
    both, one = WaitingFetch(100, [A, B]), WaitingFetch(200, [A])
    assert purgatory.park(both)
    assert not purgatory.park(one)
    assert purgatory.waiting_on(A) == [both, one]
    assert purgatory.end(both)
    assert not purgatory.end(both)
    assert purgatory.waiting_on(A) == [one]
    assert B not in purgatory.by_key
    assert purgatory.expire(199) == []
    assert purgatory.expire(200) == [one]
    assert A not in purgatory.by_key
