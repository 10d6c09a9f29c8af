"""Fetches: reads, and long polls that are delayed until they have enough bytes.

A change that may complete a delayed fetch is only recorded. The next turn of the event loop tries
the fetches: several produces then share one response, and an append sends no response itself.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from quorumlog.broker.deadline_timer import DeadlineTimer
from quorumlog.broker.fetching.core.fetch_sessions import FetchSession
from quorumlog.broker.fetching.core.fetch_spec import FetchSpec
from quorumlog.broker.fetching.core.response_memory import ResponseMemory
from quorumlog.broker.fetching.io.delayed_fetch import (
    DelayedFetch,
    FetchAnswers,
    PartitionRead,
    last_fetch,
)
from quorumlog.broker.fetching.io.session_answers import (
    FEW,
    answer_to,
    drop_settled,
    has_untold_commits,
    new_sessions,
    newest_answer,
    unsettled_answers,
)
from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.fetch_wakeup import ANY_CHANGE, FetchWakeup, FetchWakeups
from quorumlog.broker.partitions.core.purgatory import FetchPurgatory
from quorumlog.broker.partitions.core.reads import RECORDS
from quorumlog.broker.partitions.core.replication_throttle import ReplicationThrottle
from quorumlog.broker.partitions.log.cold_reads import BRING_INS_MAX, bring_in
from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.settings import BrokerSettings
from quorumlog.clock import monotonic_ms
from quorumlog.storage.errors import NotInMemory, OffsetOutOfRange, StorageError
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.file_range import FileRange
from quorumlog.wire.codec.identifiers import Offset, TopicPartition

_CHANGED: Final = int(FetchWakeup.CHANGED)  # an attribute of an enum costs a call
_LOG_START: Final = int(FetchWakeup.LOG_START)
_new_tuple: Final = tuple.__new__  # the class of a NamedTuple costs three times as much
AnswerT = TypeVar("AnswerT")


class Fetches:
    """All fetches of this broker. `error_for_missing`: the error for a partition without a replica.

    A fetch with an account reads only within the room in `memory`. Without room it is delayed, and
    retried in the order of arrival. Delayed fetches that hold records are answered then, so that
    no fetch waits for another.
    """

    def __init__(
        self,
        drivers: Mapping[TopicPartition, PartitionDriver],
        error_for_missing: Callable[[TopicPartition], ErrorCode],
        settings: BrokerSettings,
        disk: DiskQueue,
        *,
        throttle: ReplicationThrottle,
    ) -> None:
        self._drivers: Final = drivers
        self.memory: Final = ResponseMemory(settings.queued_max_response_bytes)
        self.memory.on_room = self._schedule_completion
        self._disk: Final = disk
        self._throttle: Final = throttle
        self.sessions: Final = new_sessions(settings)
        self.sessions.on_closed = self._complete_waiting
        self._starved: dict[DelayedFetch, None] = {}  # had no room in memory, in order
        self._holding: dict[DelayedFetch, None] = {}  # of consumers, with records
        self._error_for_missing: Final = error_for_missing
        self._purgatory: Final[FetchPurgatory[DelayedFetch]] = FetchPurgatory()
        self._timer: Final = DeadlineTimer(self._purgatory.deadlines, self._expire)
        self._changes: dict[TopicPartition, FetchWakeups] = {}
        self._brought_in: set[TopicPartition] = set()  # for any fetch, since the last try
        self._is_completion_due = False

    def fetch(
        self, spec: FetchSpec, render: Callable[[FetchAnswers], AnswerT], now_ms: int | None = None
    ) -> AnswerT | asyncio.Future[AnswerT]:
        """Return the response, or a future; cancel the future if the client has gone.

        `now_ms`: the time of the call, if the caller has just read the clock.
        """
        session = spec.session
        if session is not None and session.waiting is not None:
            self._complete_waiting(session)
        now_ms = monotonic_ms() if now_ms is None else now_ms
        again = None if session is None or session.answered is None else last_fetch(spec, session)
        if session is not None and again is not None:
            if self._waits_again(spec, session, again, now_ms):
                again.expect(render)
                response: asyncio.Future[AnswerT] = again.response
                return response
            return self._read_or_wait(spec, again.reads, render, now_ms)
        reads = [PartitionRead(partition) for partition in spec.partitions]
        return self._read_or_wait(spec, reads, render, now_ms)

    def _read_or_wait(
        self,
        spec: FetchSpec,
        reads: list[PartitionRead],
        render: Callable[[FetchAnswers], AnswerT],
        now_ms: int,
    ) -> AnswerT | asyncio.Future[AnswerT]:
        session = spec.session
        for read in reads:
            if session is None or session.take_to_judge(read.fetch):
                self._judge(spec, read, now_ms)
        # All are judged first: the follower's fetch offset of each partition counts, even if
        # another partition fills the response.
        has_room = True
        if not (spec.is_from_follower and self._has_read_all(spec, reads)):
            has_room = not (self._starved and spec.account) and self._read(spec, reads)
            if self._is_enough(spec, reads):
                return render(self._answers(spec, reads))
            if has_room:
                drop_settled(spec, reads, self._drivers)
        delayed = DelayedFetch(
            now_ms + spec.max_wait_ms, spec, reads, render=render, ended=self._end
        )
        if self._purgatory.park(delayed):
            self._timer.arm(delayed.deadline_ms)
        if session is not None:
            session.waiting = delayed
        response: asyncio.Future[AnswerT] = delayed.response
        if not has_room or spec.account is not None or self._starved:
            self._note_held(delayed, has_room=has_room)
        return response

    def _waits_again(
        self, spec: FetchSpec, session: FetchSession, delayed: DelayedFetch, now_ms: int
    ) -> bool:
        """Park the delayed fetch of the last round, whose follower has all records, as mostly.

        Does as `fetch`, which has to go on if this returns False.
        """
        read = delayed.reads[0]
        fetch = read.fetch
        driver = self._drivers.get(fetch.topic_partition)
        if driver is None or fetch.error_code or fetch.topic_id != driver.topic_id:
            return False
        if session.take_to_judge(fetch):
            self._judge_follower(spec, read, driver, now_ms)
        if read.is_final or not driver.ends_at(read.next_offset) or self._starved:
            return False
        if spec.min_bytes <= 0 or spec.max_wait_ms <= 0 or spec.awaits_commits:
            return False
        deadline_ms = now_ms + spec.max_wait_ms
        if self._purgatory.deadlines.add_again(delayed, deadline_ms):
            self._timer.arm(deadline_ms)
        session.waiting = delayed
        return True

    def note_change(self, topic_partition: TopicPartition, change: FetchWakeup) -> None:
        """Record a change; the next turn of the loop tries to complete the delayed fetches."""
        is_awaited = self.sessions.note(topic_partition, change)
        if not is_awaited and topic_partition not in self._purgatory.by_key:
            return
        self._changes[topic_partition] = self._changes.get(topic_partition, 0) | change
        self._schedule_completion()

    @property
    def delayed_count(self) -> int:
        """The number of delayed fetches."""
        return len(self._purgatory.deadlines)

    def stop(self) -> None:
        """Complete every delayed fetch with the records that it has."""
        self._timer.stop()
        deadline_ms = self._purgatory.deadlines.next_deadline_ms()
        while deadline_ms is not None:
            self._expire(deadline_ms)
            deadline_ms = self._purgatory.deadlines.next_deadline_ms()

    # --- One partition of one fetch ---

    def _judge(self, spec: FetchSpec, read: PartitionRead, now_ms: int) -> None:
        """Have the replica judge a fetch on arrival, and record a follower's fetch offset."""
        if not spec.is_from_follower:
            driver = self._judge_read(spec, read)
            if driver is not None:
                driver.traffic.fetch_requests += 1
            return
        fetch = read.fetch
        driver = self._drivers.get(fetch.topic_partition)
        if driver is None or fetch.error_code or fetch.topic_id != driver.topic_id:
            driver = self._find_replica(read)
        if driver is not None:
            self._judge_follower(spec, read, driver, now_ms)

    def _judge_follower(
        self, spec: FetchSpec, read: PartitionRead, driver: PartitionDriver, now_ms: int
    ) -> None:
        fetch = read.fetch
        fields = (
            spec.replica_id,
            spec.replica_epoch,
            fetch.leader_epoch,
            fetch.fetch_offset,
            fetch.last_fetched_epoch,
            fetch.log_start_offset,
        )
        fetched = _new_tuple(events.FollowerFetched, fields)
        driver.traffic.fetch_requests += 1
        judgement = driver.judge_follower_fetch(now_ms, fetched)
        if judgement is not RECORDS:
            read.judged(judgement)

    def _judge_read(self, spec: FetchSpec, read: PartitionRead) -> PartitionDriver | None:
        """Have the replica judge a fetch, without a change of its state; return the replica."""
        driver = self._find_replica(read)
        if driver is not None:
            fetch, serving = read.fetch, driver.partition.serving
            judgement = serving.judge_read(
                fetch.leader_epoch,
                fetch.fetch_offset,
                fetch.last_fetched_epoch,
                leader_only=spec.is_leader_only,
            )
            read.judged(judgement)
            if spec.near_rack and not read.is_final:
                read.is_elsewhere(serving.preferred_replica(spec.near_rack, fetch.fetch_offset))
        return driver

    def _find_replica(self, read: PartitionRead) -> PartitionDriver | None:
        """Return the replica of the read, or set the error of the read."""
        fetch = read.fetch
        driver = self._drivers.get(fetch.topic_partition)
        if fetch.error_code:
            read.failed(fetch.error_code)
        elif driver is None:
            read.failed(self._error_for_missing(fetch.topic_partition))
        elif fetch.topic_id is not None and fetch.topic_id != driver.topic_id:
            read.failed(ErrorCode.INCONSISTENT_TOPIC_ID)  # a re-created topic of this name
        else:
            return driver
        return None

    def _read(
        self,
        spec: FetchSpec,
        reads: list[PartitionRead],
        changes: Mapping[TopicPartition, FetchWakeups] | None = None,
    ) -> bool:
        """Continue the reads in request order, within all byte limits; False: there was no room.

        `changes`: read only these partitions.
        """
        size, most = 0, spec.max_bytes
        for read in reads:
            size += read.size + read.missing
        if spec.account is not None:
            share = self.memory.share()
            if share == 0:
                return False
            most = min(most, size + share)
        may_hold_up = spec.is_from_follower and self._throttle.is_on
        for read in reads:
            if read.is_final or read.missing or (may_hold_up and self._holds_up(spec, read)):
                continue
            if changes is None or read.fetch.topic_partition in changes:
                read_bytes = self._read_partition(spec, read, size, most)
                size += read_bytes
                if may_hold_up and read_bytes and not read.missing:
                    self._holds_up(spec, read, read_bytes)
        return True

    def _has_read_all(self, spec: FetchSpec, reads: list[PartitionRead]) -> bool:
        """Whether a fetch must wait because its follower has all records, as it nearly always has.

        Then `_read` and `_is_enough` need no call. False: perhaps.
        """
        if spec.min_bytes <= 0 or spec.max_wait_ms <= 0 or spec.awaits_commits:
            return False
        if not 0 < len(reads) <= FEW:
            return False
        for read in reads:
            driver = self._drivers.get(read.fetch.topic_partition)
            if read.is_final or driver is None or not driver.ends_at(read.next_offset):
                return False
        return True

    def _holds_up(self, spec: FetchSpec, read: PartitionRead, size: int = 0) -> bool:
        """Count `size` bytes read for a follower; return whether the throttle stops its reads."""
        at, now_ms = read.fetch.topic_partition, monotonic_ms()
        return self._throttle.next_fetch_ms(at, spec.replica_id, size, now_ms) > now_ms

    def _read_partition(self, spec: FetchSpec, read: PartitionRead, size: int, most: int) -> int:
        """Read new records; return their size. `size` of `most` bytes are already read.

        The very first batch may exceed the limits. Records that must first be brought into memory
        count with their maximum size.
        """
        driver = self._drivers.get(read.fetch.topic_partition)
        limit = min(read.fetch.max_bytes - read.size, most - size)
        if driver is None or (limit <= 0 and size > 0):
            return 0
        try:
            chunks, read_bytes, next_offset = driver.read(
                read.next_offset,
                max_bytes=max(limit, 0),
                end=spec.read_end,
                at_least_one=size == 0,
                may_wait=read.bring_ins >= BRING_INS_MAX,
                may_lend=spec.may_lend,
            )
        except NotInMemory as absent:
            self._bring_in(driver, read, absent, limit)
            is_done = not read.missing and not read.is_final  # the disk queue may have read at once
            return self._read_partition(spec, read, size, most) if is_done else read.missing
        except OffsetOutOfRange:
            read.failed(ErrorCode.OFFSET_OUT_OF_RANGE)
            return 0
        except StorageError:
            driver.traffic.failed_fetch_requests += 1
            read.failed(ErrorCode.KAFKA_STORAGE_ERROR)
            return 0
        if not read_bytes:
            return 0
        driver.traffic.note_read(read_bytes, is_from_follower=spec.is_from_follower)
        read.bring_ins = 0
        read.chunks += chunks
        read.size += read_bytes
        read.next_offset = Offset(next_offset)
        if spec.account is not None and not isinstance(chunks[0], FileRange):
            read.held += read_bytes
            spec.account.take(read_bytes)
        return read_bytes

    def _bring_in(
        self, driver: PartitionDriver, read: PartitionRead, absent: NotInMemory, limit: int
    ) -> None:
        at = read.fetch.topic_partition
        read.missing = max(limit, 1)
        read.bring_ins += 1

        def done(error: StorageError | None) -> None:
            read.missing = 0
            is_here = self._drivers.get(at) is driver
            if error is not None and is_here and read.next_offset >= driver.log.log_start_offset:
                read.failed(ErrorCode.KAFKA_STORAGE_ERROR)
            self._brought_in.add(at)
            self._schedule_completion()

        bring_in(self._disk, at, driver.log, absent, is_wanted=lambda: read.missing > 0, done=done)

    def _is_enough(self, spec: FetchSpec, reads: list[PartitionRead]) -> bool:
        """Whether to answer now; not during a disk read: Kafka reads before it waits."""
        size, is_final = 0, spec.max_wait_ms <= 0 or not (reads or spec.session is not None)
        for read in reads:
            if read.missing:
                return False
            is_final = is_final or read.is_final
            size += read.size
        if is_final or (bool(reads) and size >= spec.min_bytes):
            return True
        return has_untold_commits(spec, reads, self._drivers)

    def _answers(self, spec: FetchSpec, reads: list[PartitionRead]) -> FetchAnswers:
        """Return the answers of `reads`; in a session, only the answers with something new."""
        if spec.session is None:
            drivers = self._drivers
            return [answer_to(spec, one, drivers.get(one.fetch.topic_partition)) for one in reads]
        return unsettled_answers(spec, spec.session, reads, self._drivers)

    # --- Delayed fetches ---

    def _schedule_completion(self) -> None:
        if not self._is_completion_due:
            self._is_completion_due = True
            asyncio.get_running_loop().call_soon(self._try_complete_changed)

    def _try_complete_changed(self) -> None:
        """Continue the fetches that await one of the changes; complete each that has enough."""
        self._is_completion_due = False
        changes, self._changes = self._changes, {}
        may_restart = 0
        touched: dict[DelayedFetch, int] = {}  # not 0: complete it, even if empty
        for topic_partition, change in changes.items():
            may_restart |= change & _CHANGED
            for delayed in self._waiting_on(topic_partition, change):
                log_start = change & delayed.awaited & _LOG_START
                touched[delayed] = touched.get(delayed, 0) | log_start
        retried, self._starved = self._starved, {}
        if self._brought_in:
            brought_in, self._brought_in = self._brought_in, set()
            for topic_partition in sorted(brought_in):
                retried |= dict.fromkeys(self._waiting_on(topic_partition))
        for delayed in {**retried, **touched} if retried else touched:
            if delayed.is_over:
                continue  # completed meanwhile: an earlier fetch had no room
            if may_restart:
                self._restart_changed(delayed, changes)
            elif not touched.get(delayed, True) and self._answers_newest(delayed):
                continue
            has_room = self._read(
                delayed.spec, delayed.reads, None if delayed in retried else changes
            )
            if touched.get(delayed) or self._is_enough(delayed.spec, delayed.reads):
                self._complete(delayed)
            else:
                self._note_held(delayed, has_room=has_room)

    def _answers_newest(self, delayed: DelayedFetch) -> bool:
        """Answer a follower that lacks the newest batches of the one partition of its session.

        Does as `_read`, `_is_enough` and `_complete`, which have to do it if this returns False.
        """
        session = delayed.spec.session
        if session is None or self._throttle.is_on:
            return False
        found = newest_answer(delayed, session, self._drivers)
        if found is None:
            return False
        self._purgatory.end(delayed)  # a follower's neither holds memory nor waits for it
        session.waiting, session.answered = None, delayed  # its read is as it was
        delayed.answer_and_keep([found])
        return True

    def _waiting_on(
        self, topic_partition: TopicPartition, changes: FetchWakeups = ANY_CHANGE
    ) -> list[DelayedFetch]:
        """Return the fetches that await one of these changes of the partition.

        Each of them now includes the partition.
        """
        delayed = self._purgatory.waiting_on(topic_partition, changes)
        for session, partition in self.sessions.watchers.get(topic_partition, {}).items():
            waiting = session.waiting
            if isinstance(waiting, DelayedFetch) and waiting.awaited & changes:
                waiting.join(partition.fetch)
                delayed.append(waiting)
        return delayed

    def _note_held(self, delayed: DelayedFetch, *, has_room: bool) -> None:
        """Record whether a delayed fetch holds memory or waits for it."""
        if not has_room:
            self._starved[delayed] = None
        elif delayed.spec.account is not None and delayed.spec.account.held:
            self._holding[delayed] = None
        if self._starved:
            for one in [*self._holding]:
                self._complete(one)  # with few bytes: its client makes room

    def _restart_changed(
        self, delayed: DelayedFetch, changes: Mapping[TopicPartition, FetchWakeups]
    ) -> None:
        """Restart the reads of changed partitions: another leader may have replaced the records."""
        spec = delayed.spec
        for index, old in enumerate(delayed.reads):
            if changes.get(old.fetch.topic_partition, 0) & FetchWakeup.CHANGED:
                if spec.account is not None:
                    spec.account.take(-old.held)
                if spec.session is not None:
                    spec.session.take_to_judge(old.fetch)
                old.missing = 0  # a read from disk under way is not needed
                delayed.reads[index] = PartitionRead(old.fetch)
                self._judge_read(spec, delayed.reads[index])

    def _expire(self, now_ms: int) -> None:
        if self._brought_in:  # not read yet: the records belong into the responses
            self._try_complete_changed()
        for delayed in self._purgatory.expire(now_ms):
            if delayed.postpone():
                self._purgatory.park(delayed)
            else:
                self._complete(delayed)

    def _complete_waiting(self, session: FetchSession) -> None:
        """Answer the session's waiting fetch: another replaces it, or the session ends."""
        if isinstance(session.waiting, DelayedFetch):
            self._complete(session.waiting)

    def _end(self, delayed: DelayedFetch) -> None:
        self._purgatory.end(delayed)
        for read in delayed.reads:
            read.missing = 0
        session = delayed.spec.session
        if session is not None and session.waiting is delayed:
            session.waiting = None
        if self._starved:
            self._starved.pop(delayed, None)
        if self._holding:
            self._holding.pop(delayed, None)

    def _complete(self, delayed: DelayedFetch) -> None:
        self._end(delayed)
        session = delayed.spec.session
        if session is not None:
            for key, must_judge in session.unsettled.items():
                if not must_judge:
                    delayed.join(session.partitions[key].fetch)
        delayed.answer(self._answers(delayed.spec, delayed.reads))
