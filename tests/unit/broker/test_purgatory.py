"""Requests and deletions that wait, their deadlines and timers; the threads of the disk queue."""

import asyncio
import math
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from quorumlog.broker.deadline_timer import DeadlineTimer
from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.deletions import (
    DeletionQueue,
    DeletionResult,
    WaitingDeletion,
    policy_refusal,
)
from quorumlog.broker.partitions.core.fetch_wakeup import FetchWakeup
from quorumlog.broker.partitions.core.purgatory import (
    EMPTY_PLACES_MAX,
    Deadlines,
    FetchPurgatory,
    PendingProduce,
    ProduceQueue,
    Wait,
    WaitingFetch,
)
from quorumlog.broker.partitions.io.disk_threads import (
    THREADS,
    WAITING_PER_WORK,
    WORKS_MAX,
    DiskThreads,
    performed,
)
from quorumlog.clock import monotonic_ms
from quorumlog.invariants import InvariantViolation
from quorumlog.settings.topics import TopicConfig
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Offset, TopicPartition
from tests.support.broker.replicas import ALL_ALIVE, BROKERS, Replica, fetched_by, image
from tests.support.groups.memory_log import World

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def done(_error_code: ErrorCode, _count: int) -> None:
    """Nothing: the caller of the queue tells it."""


def ends(waits: list[PendingProduce]) -> list[list[int]]:
    return [[*wait.ends] for wait in waits]


def committed(queue: ProduceQueue, high_watermark: int) -> list[tuple[list[int], int]]:
    return [([*wait.ends], count) for wait, count in queue.complete_below(high_watermark)]


def test_a_produce_is_completed_once() -> None:
    deadlines = Deadlines[PendingProduce]()
    queue = ProduceQueue(deadlines)
    assert queue.add(50, [10], done)
    assert queue.add(40, [20], done)  # its deadline is the earliest now
    assert queue.complete_below(9) == []
    assert committed(queue, 10) == [([10], 1)]
    assert ends(deadlines.expire(60)) == [[20]]
    assert queue.complete_below(30) == []
    assert queue.fail() == []
    assert len(deadlines) == 0


def test_a_repeated_batch_does_not_wait_for_newer_ones() -> None:
    queue = ProduceQueue(Deadlines[PendingProduce]())
    queue.add(50, [20], done)
    queue.add(50, [10], done)
    assert committed(queue, 15) == [([10], 1)]
    assert ends(queue.fail()) == [[20]]


def test_the_batches_of_a_run_are_committed_one_after_the_other_and_end_together() -> None:
    deadlines = Deadlines[PendingProduce]()
    queue = ProduceQueue(deadlines)
    queue.add(50, [10, 20, 30], done)
    queue.add(50, [20], done)  # a repeated batch
    queue.add(60, [40, 50], done)
    assert committed(queue, 9) == []
    assert committed(queue, 10) == [([10, 20, 30], 1)]
    assert committed(queue, 25) == [([10, 20, 30], 1), ([20], 1)]
    assert len(deadlines) == 2
    (expired,) = deadlines.expire(50)
    assert expired.left == 1
    assert committed(queue, 40) == [([40, 50], 1)]
    (failed,) = queue.fail()
    assert failed.left == 1
    assert len(deadlines) == 0
    assert committed(queue, 90) == []


def test_those_who_timed_out_do_not_pile_up() -> None:
    deadlines = Deadlines[PendingProduce]()
    queue = ProduceQueue(deadlines)
    for offset in range(100):
        queue.add(offset, [offset + 1], done)
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
    held = [place[2] for place in deadlines._heap if place[2] is not None]
    assert len(held) == len(deadlines) == 500
    assert len(deadlines._heap) <= 2 * 500 + EMPTY_PLACES_MAX
    assert deadlines.next_deadline_ms() == waits[-1].deadline_ms
    assert deadlines.expire(5000) == waits[:1499:-1]
    assert deadlines.next_deadline_ms() is None


@pytest.mark.parametrize("seed", range(40))
def test_an_entry_added_again_expires_as_a_new_one(seed: int) -> None:
    """Compared with a list, which is sorted by deadline and time of addition."""
    draw = random.Random(seed)
    deadlines, waits, rings_at_ms = Deadlines[Wait](), list[Wait](), math.inf
    added: dict[Wait, tuple[int, int]] = {}
    now_ms = 0
    for serial in range(600):
        action, ended = draw.random(), [wait for wait in waits if wait.is_over]
        if action < 0.2 or not waits:
            waits.append(Wait(now_ms + draw.randrange(1, 50)))
            added[waits[-1]] = waits[-1].deadline_ms, serial
            is_first = deadlines.add(waits[-1])
            assert is_first == (min(added, key=lambda wait: added[wait]) is waits[-1])
        elif action < 0.5 and ended:
            wait = draw.choice(ended)
            added[wait] = now_ms + draw.randrange(1, 50), serial
            is_first = deadlines.add_again(wait, added[wait][0])
        elif action < 0.85:
            wait, is_first = draw.choice(waits), False
            assert deadlines.end(wait) == (added.pop(wait, None) is not None)
        else:
            now_ms, is_first = now_ms + draw.randrange(20), False
            expected = sorted(
                [wait for wait in added if added[wait][0] <= now_ms], key=added.__getitem__
            )
            assert deadlines.expire(now_ms) == expected
            for wait in expected:
                del added[wait]
            rings_at_ms = math.inf
            is_first = bool(added)
        earliest_ms = min((deadline_ms for deadline_ms, _ in added.values()), default=math.inf)
        if is_first:  # as DeadlineTimer sets its timer
            rings_at_ms = min(rings_at_ms, earliest_ms)
        assert rings_at_ms <= earliest_ms
        assert len(deadlines) == len(added)
        if draw.random() < 0.2:
            assert (deadlines.next_deadline_ms() or math.inf) == earliest_ms


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


ONE, TWO, THREE = BROKERS


def leader(records: int = 5) -> Replica:
    replica = Replica(ONE)
    published = events.PartitionPublished(image=image(1, 4, 9, (1,)), brokers=ALL_ALIVE)
    replica.step(0, published)
    replica.append(0, [0] * records)
    return replica


def fetch(replica: Replica, who: BrokerId, log_start: int) -> None:
    end, start = replica.partition.state.log_end_offset, Offset(log_start)
    replica.step(0, fetched_by(who, end, broker_epoch=0, leader_epoch=4, log_start_offset=start))


def rise(replica: Replica, offset: int) -> None:
    replica.step(0, events.LogStartRose(log_start_offset=Offset(offset)))


def test_what_is_committed_may_be_deleted_by_a_leader_if_the_policy_lets_it() -> None:
    for offset, expected in {
        -1: (ErrorCode.NONE, 5),
        0: (ErrorCode.NONE, 0),
        5: (ErrorCode.NONE, 5),
        6: (ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        -2: (ErrorCode.OFFSET_OUT_OF_RANGE, -1),
    }.items():
        assert leader().partition.serving.judge_deletion(offset, ErrorCode.NONE) == expected
    not_leader = Replica(TWO).partition.serving.judge_deletion(0, ErrorCode.POLICY_VIOLATION)
    assert not_leader == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    refused = leader().partition.serving.judge_deletion(0, ErrorCode.POLICY_VIOLATION)
    assert refused == (ErrorCode.POLICY_VIOLATION, -1)


@pytest.mark.parametrize(
    ("policy", "is_allowed"),
    [("delete", True), ("compact", False), ("compact,delete", True), ("compact, delete", True)],
)
def test_a_topic_that_is_only_compacted_keeps_its_records(policy: str, is_allowed: bool) -> None:
    expected = ErrorCode.NONE if is_allowed else ErrorCode.POLICY_VIOLATION
    assert policy_refusal(TopicConfig({"cleanup.policy": policy}, {})) is expected
    assert policy_refusal(TopicConfig({}, {})) is ErrorCode.NONE
    brokers = {"log.cleanup.policy": policy}
    assert policy_refusal(TopicConfig({}, brokers)) is expected


def test_the_low_watermark_is_the_least_start_of_the_live_replicas_in_this_epoch() -> None:
    replica = leader()
    partition = replica.partition
    assert partition.serving.low_watermark() == -1  # the followers have said nothing yet
    fetch(replica, TWO, 0)
    fetch(replica, THREE, 0)
    rise(replica, 3)
    fetch(replica, TWO, 3)
    fetch(replica, THREE, 3)
    assert partition.serving.low_watermark() == 0  # a restart would bring our own start back
    replica.keep_log_start(0)
    assert partition.serving.low_watermark() == 3
    fetch(replica, THREE, 2)
    assert partition.serving.low_watermark() == 2
    fenced = {**ALL_ALIVE, THREE: replace(ALL_ALIVE[THREE], fenced=True)}
    replica.step(0, events.BrokersPublished(brokers=fenced))
    assert partition.serving.low_watermark() == 3
    newer = events.PartitionPublished(image=image(1, 5, 10, (1,)), brokers=ALL_ALIVE)
    replica.step(0, newer)
    assert replica.partition.serving.low_watermark() == -1


def test_a_start_that_was_cut_away_is_not_kept() -> None:
    replica = Replica(TWO)
    replica.log.append([(3, 0)] * 5)
    partition = replica.partition
    partition.state.log_end_offset = partition.state.high_watermark = Offset(5)
    replica.step(0, events.LogStartRose(log_start_offset=Offset(5)))
    replica.step(0, events.LogTruncated(log_end_offset=Offset(4)))
    assert (partition.state.log_start_offset, partition.state.high_watermark) == (4, 4)
    replica.step(0, events.LogStartKept(log_start_offset=Offset(5)))
    assert partition.state.kept_log_start_offset == 4
    replica.step(0, events.LogStartedOver(offset=Offset(2)))
    assert (partition.state.log_start_offset, partition.state.kept_log_start_offset) == (2, 2)


def test_a_kept_start_beyond_the_start_breaks_an_invariant() -> None:
    replica = leader()
    replica.partition.state.kept_log_start_offset = Offset(1)
    with pytest.raises(InvariantViolation, match="2: kept log start"):
        replica.step(0, events.Ticked())


def test_a_deletion_is_handed_back_once() -> None:
    deadlines: Deadlines[WaitingDeletion] = Deadlines()
    queue = DeletionQueue(deadlines)
    told: list[DeletionResult] = []
    waits = [
        WaitingDeletion(deadline_ms, Offset(required), Offset(0), told.append)
        for deadline_ms, required in ((10, 7), (20, 3), (30, 5))
    ]
    assert [queue.add(wait) for wait in waits] == [True, False, False]
    assert deadlines.expire(10) == waits[:1]
    assert queue.complete(Offset(2)) == []
    assert queue.complete(Offset(4)) == [waits[1]]
    assert queue.complete(Offset(9)) == [waits[2]]
    assert not queue.waiting
    assert (len(deadlines), deadlines.next_deadline_ms()) == (0, None)
    queue.add(WaitingDeletion(40, Offset(1), Offset(0), told.append))
    assert len(queue.fail()) == 1
    assert not queue.waiting


def _uvloop() -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = pytest.importorskip("uvloop").new_event_loop()
    return loop


LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, _uvloop])


class NoDeadlines:
    def next_deadline_ms(self) -> int | None:
        return None


async def test_a_timer_rings_again_for_the_entries_that_still_wait() -> None:
    waiting = [monotonic_ms(), monotonic_ms() + 5]
    ended = asyncio.Event()

    class Waiting:
        def next_deadline_ms(self) -> int | None:
            return waiting[0] if waiting else None

    def expire(_now_ms: int) -> None:
        del waiting[0]
        if not waiting:
            ended.set()

    timer = DeadlineTimer(Waiting(), expire)
    timer.arm(waiting[0])
    await asyncio.wait_for(ended.wait(), 5)
    timer.stop()


@LOOPS
def test_a_timer_that_is_due_is_armed_again_and_a_shard_is_loaded_and_serves(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def story() -> None:
        rang = asyncio.Event()
        timer = DeadlineTimer(NoDeadlines(), lambda _now_ms: rang.set())
        for earlier_ms in (10, 5, 20):
            timer.arm(monotonic_ms() - earlier_ms)
        await asyncio.wait_for(rang.wait(), 5)
        timer.stop()
        world = World()
        await world.lead()
        await world.commit(1)
        assert world.offset() == 1
        world.service.stop()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(story())


def queue_and_errors() -> tuple[DiskThreads, list[BaseException]]:
    errors: list[BaseException] = []
    return DiskThreads(errors.append), errors


async def test_work_of_one_key_is_done_in_order_and_of_others_meanwhile() -> None:
    queue, errors = queue_and_errors()
    may_go_on, seen = threading.Event(), list[str]()

    def blocked() -> str:
        may_go_on.wait(20)
        return "first"

    queue.submit("a", blocked, seen.append)  # type: ignore[arg-type]  # the outcomes are text
    queue.submit("a", lambda: "second", seen.append)  # type: ignore[arg-type]
    assert await performed(queue, "b", lambda: "other") == "other"
    assert seen == []
    may_go_on.set()
    await queue.drain()
    queue.close()
    assert (seen, errors) == (["first", "second"], [])


async def test_what_is_done_next_waits_until_the_outcome_is_told() -> None:
    queue, _ = queue_and_errors()
    seen = list[str]()

    def done(outcome: object) -> None:
        seen.append("told")
        queue.submit("a", lambda: seen.append("third"), lambda _: None)

    queue.submit("a", lambda: seen.append("first"), done)
    queue.submit("a", lambda: seen.append("second"), lambda _: None)
    await queue.drain()
    queue.close()
    assert seen == ["first", "told", "second", "third"]


async def test_many_keys_share_few_threads() -> None:
    queue, _ = queue_and_errors()
    names = set[str]()

    def note() -> None:
        names.add(threading.current_thread().name)

    results = await asyncio.gather(*(performed(queue, key, note) for key in range(99)))
    queue.close()
    assert len(results) == 99
    assert 1 <= len(names) <= THREADS


async def test_a_disk_that_refuses_is_an_outcome_and_a_bug_is_not() -> None:
    queue, errors = queue_and_errors()

    def fail(error: Exception) -> None:
        raise error

    with pytest.raises(StorageError, match="no disk"):
        await performed(queue, "a", partial(fail, OSError("no disk")))
    bug = ZeroDivisionError()
    queue.submit("a", partial(fail, bug), lambda _: None)
    queue.submit("a", lambda: None, lambda _: fail(bug))
    assert await performed(queue, "a", lambda: "it goes on") == "it goes on"
    queue.close()
    assert errors == [bug, bug]


async def test_thousands_of_works_are_handed_to_the_threads_a_few_at_a_time() -> None:
    """Each costs the loop as much as a small request."""
    queue, errors = queue_and_errors()
    may_go_on, seen = threading.Event(), list[int]()
    for key in range(5_000):
        queue.submit(key, partial(may_go_on.wait, 20), lambda _, key=key: seen.append(key))  # type: ignore[misc]
    queue.submit(4_999, lambda: None, lambda _: seen.append(5_000))
    assert len(queue._running) == 2 * THREADS
    may_go_on.set()
    await queue.drain()
    queue.close()
    assert sorted(seen) == [*range(5_001)]
    assert seen.index(5_000) > seen.index(4_999)
    assert errors == []


async def test_of_many_that_wait_a_thread_takes_several_and_a_bug_is_that_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each outcome is told, in order; what is submitted then for the same key comes later."""
    queue, errors = queue_and_errors()
    loop, handed_over = asyncio.get_running_loop(), list[int]()
    run = loop.run_in_executor

    def counted(pool: Any, work: Any, *arguments: Any) -> Any:
        handed_over.append(len(arguments[0]))
        return run(pool, work, *arguments)

    monkeypatch.setattr(loop, "run_in_executor", counted)
    count = 2 * THREADS + WAITING_PER_WORK * WORKS_MAX
    seen, bug = list[object](), ZeroDivisionError()

    def fail(key: int) -> int:
        if key == 50:
            raise bug
        return key

    for key in range(count):
        queue.submit(key, partial(fail, key), seen.append)
    queue.submit(count - 1, lambda: "last", seen.append)
    await queue.drain()
    queue.close()
    assert handed_over[: 2 * THREADS + 1] == [1] * 2 * THREADS + [WORKS_MAX]
    assert max(handed_over) == WORKS_MAX
    assert handed_over[-1] == 1
    assert errors == [bug]
    assert sorted(map(str, seen)) == sorted(map(str, [*({*range(count)} - {50}), "last"]))
    assert seen.index("last") > seen.index(count - 1)
