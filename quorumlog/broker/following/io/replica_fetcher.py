"""Following: a fetcher fetches followed partitions from one leader.

A fetch is a long poll in a fetch session, and names only the changes since the last fetch. When the
set of partitions changes while a fetch is parked at the leader, a new fetch begins another session
at once, on another connection; the leader ends the old fetch, and its response is applied where it
is still current. With `log.flush.acks` a fetch waits until the records of the last response are
durable: its fetch offsets acknowledge them. Sources: KIP-227, KIP-320, KIP-595, KIP-903.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, cast

from quorumlog.backoff import Backoff
from quorumlog.broker.following.core.session_client import Changes, SessionClient
from quorumlog.broker.following.log.followed_partition import (
    FollowedPartition,
    Key,
    Position,
    forgotten_topics_of,
    take_answer,
    topics_of,
)
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.peer_addresses import PeerConnect
from quorumlog.broker.settings import BrokerSettings
from quorumlog.chance import random_fraction
from quorumlog.clock import monotonic_ms
from quorumlog.invariants import InvariantViolation, require
from quorumlog.tasks import Tasks
from quorumlog.wakeup import Wakeup
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, TopicPartition
from quorumlog.wire.codec.message import Buffer, Response
from quorumlog.wire.codec.messages.fetch import (
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from quorumlog.wire.codec.repeated_fetches import RepeatableFetch
from quorumlog.wire.io.connection import (
    ConnectionLost,
    KafkaConnection,
    RequestTimedOut,
    UnsupportedVersion,
)

LOOPS_MAX: Final = 4  # concurrent fetches: the current one, the rest superseded
FIRST_BACKOFF_MS: Final = 10  # the leader may get the same metadata a moment later
CONNECT_TIMEOUT_S: Final = 2.0  # TCP repeats a lost SYN ever more slowly
# A new session names all its partitions, each for a tenth of a millisecond of CPU. So a fetcher of
# many partitions waits a hundred times as long before its next session. If the parked fetch ends
# first, as it does after `replica.fetch.wait.max.ms`, the next fetch names only the changes.
RENEWAL_S_PER_PARTITION: Final = 0.01
TAKEN_AT_ONCE: Final = 25  # partitions of a response, in one turn of the loop; per lane
THROTTLE_CHECK_MS: Final = 1_000  # a raised rate takes effect within this time
_Session = SessionClient[Key, Position]
_Shape = tuple[int, int, Changes[Key]]
"""Session id, broker epoch and changes: nearly all that is not a number of a repetition."""
_Answer = tuple[Key, PartitionData]
NextFetch = Callable[[TopicPartition, BrokerId, int, int], int]
"""Returns when a follower may fetch again: see `ReplicationThrottle.next_fetch_ms`."""


class _SessionLost(Exception):
    """The leader refused the session: begin a new one, on a new connection."""


_FETCH_ERRORS: Final = (
    *(ConnectionLost, RequestTimedOut, UnsupportedVersion, OSError),
    _SessionLost,
)

_logger: Final = logging.getLogger(__name__)


def _key(driver: PartitionDriver) -> Key:
    return driver.topic_id, driver.topic_partition.partition


def _answers_in(response: FetchResponse) -> list[_Answer]:
    return [
        ((topic.topic_id, answer.partition_index), answer)
        for topic in response.responses
        for answer in topic.partitions
    ]


class ReplicaFetcher:
    """Follows one leader at one address; it does not fetch while `broker_epoch()` is -1."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        broker_id: BrokerId,
        settings: BrokerSettings,
        broker_epoch: Callable[[], int],
        wall_ms: Callable[[], int],
        failed: Callable[[BaseException], None],
        connect: PeerConnect,
        next_fetch_ms: NextFetch = lambda _at, _follower_id, _size, now_ms: now_ms,
    ) -> None:
        """`next_fetch_ms` gets the size of fetched records: see `ReplicationThrottle`."""
        self.address: Final = address
        self._broker_id: Final = broker_id
        self._settings: Final = settings
        self._broker_epoch: Final = broker_epoch
        self._connect_to: Final = connect
        self._wall_ms: Final = wall_ms
        self._followed: dict[Key, FollowedPartition] = {}
        self._session: _Session = SessionClient()  # of the current loop
        self._idle: list[KafkaConnection] = []
        self._next_fetch_ms: Final = next_fetch_ms
        self._tasks: Final = Tasks(failed)
        self._loops: dict[asyncio.Task[None], None] = {}  # not cancelled, the oldest first
        self._backoff: Final = Backoff(FIRST_BACKOFF_MS, settings.replica_fetch_backoff_ms)
        self._serial = 0  # of the current loop
        self._is_at_leader = False  # a fetch of the current loop is with the leader
        self._asked: KafkaConnection | None = None  # the last connection of a fetch
        self._is_stopped = False
        self._renewed_s = 0.0  # when the last loop began
        self._renewal: asyncio.TimerHandle | None = None  # changes wait for it
        self._flushing: Final[set[Key]] = set()  # the next fetch waits for their flushes
        self._throttled: Final[dict[Key, FollowedPartition]] = {}
        self._changed: Final = Wakeup()
        self._shape: _Shape | None = None  # of the last fetch
        self._repeated: RepeatableFetch

    def set_followed(self, followed: Iterable[FollowedPartition]) -> None:
        """Replace the followed partitions; a parked fetch does not delay new partitions."""
        former, self._followed = self._followed, {_key(one.driver): one for one in followed}
        self._flushing.intersection_update(self._followed)
        for key in {**former, **self._followed}:
            if self._followed.get(key) is not former.get(key):
                self._session.touch(key)
        self.wake()

    def wake(self) -> None:
        """Fetch at once, unless the fetcher was stopped.

        A new fetch does not wait for a fetch that is parked at the leader. If LOOPS_MAX are parked,
        the oldest is cancelled, and the new fetch includes its partitions.
        """
        if self._is_stopped:
            return
        self._changed.set()
        if self._renewal is not None:
            return
        loop = asyncio.get_running_loop()
        due_s = self._renewed_s + len(self._followed) * RENEWAL_S_PER_PARTITION
        if self._loops and loop.time() < due_s:
            self._renewal = loop.call_at(due_s, self._maybe_renew)
        else:
            self._maybe_renew()

    def _maybe_renew(self) -> None:
        """Begin another fetch, unless the current loop has yet to send a fetch with the change."""
        self._renewal = None
        if self._loops and not (self._is_at_leader and self._changed.is_set()):
            return  # its fetch was not sent yet, or was built after the change
        self._serial += 1
        self._is_at_leader = False
        loop = asyncio.get_running_loop()
        self._renewed_s = loop.time()
        if len(self._loops) >= LOOPS_MAX:
            oldest = next(iter(self._loops))
            del self._loops[oldest]
            oldest.cancel()
        task = self._tasks.start(self._run(self._serial))
        self._loops[task] = None
        task.add_done_callback(lambda ended: self._loops.pop(ended, None))

    def is_unanswered(self) -> bool:
        """Return whether a fetch is unanswered for longer than a leader may park it, by half."""
        since_s = None if self._asked is None else self._asked.waits_since_s
        late_s = self._settings.replica_fetch_wait_max_ms * 1.5 / 1000
        return since_s is not None and asyncio.get_running_loop().time() - since_s > late_s

    def touch(self, driver: PartitionDriver) -> None:
        """Check the position of this partition again, before the next fetch."""
        self._session.touch(_key(driver))

    def note_flush_ended(self, driver: PartitionDriver) -> None:
        """Stop waiting for this log: it is durable, or its flush has failed."""
        key = _key(driver)
        self._flushing.discard(key)
        self._changed.set()
        if driver.partition.may_fetch() and key not in self._session.asked:
            self._session.touch(key)
            self.wake()  # the fetch under way left it out

    def check_progress(self, driver: PartitionDriver, leader_epoch: Epoch) -> None:
        """Raise InvariantViolation if this partition waits, and no fetch of it will come.

        It is truncated or flushed, or it backs off until a deadline, or the fetch under way or the
        next one includes it. Tests and simulations call it.
        """
        key = _key(driver)
        followed = self._followed.get(key)
        if followed is None or followed.driver is not driver:
            raise InvariantViolation("a fetcher follows it")
        require(followed.leader_epoch == leader_epoch, "it is followed in its epoch")
        if self._broker_epoch() < 0:
            return  # `registered` wakes the fetcher
        require(len(self._loops) > 0, "its fetcher runs")
        if key in self._flushing:
            is_busy = followed.is_flushing or driver.is_truncating
            require(is_busy, "a flush that a fetcher waits for is under way")
        elif followed.is_ready:
            covers = self._session.covers(key, followed.position())
            require(covers, "the leader has its position, or gets it by the next fetch")
            if self._flushing or not self._changed.sleeps_past(followed.due_ms):
                return
            # After a lost connection the fetcher itself backs off, for at most 1.2 of the setting.
            deadline_ms = max(followed.due_ms, monotonic_ms()) + 2 * self._backoff.max_ms
            sleeps = self._changed.sleeps_past(deadline_ms)
            require(not sleeps, f"a fetch at or before {deadline_ms}")

    async def stop(self) -> None:
        """Cancel all fetches and close the connections, for good."""
        self._is_stopped = True
        if self._renewal is not None:
            self._renewal.cancel()
        await self._tasks.stop()
        for connection in self._idle:
            await connection.close()
        self._idle.clear()

    async def _run(self, serial: int) -> None:
        connection: KafkaConnection | None = None
        failures = 0
        session = self._begin_session(self._session)
        try:
            while serial == self._serial:
                if not self._is_due(monotonic_ms()):
                    await self._wait_for_work()
                    continue
                try:
                    if connection is None:
                        connection = await self._connect()
                    # Built after the connect: positions may have changed meanwhile.
                    request = self._request(session, monotonic_ms())
                    if request is None:
                        session = self._begin_session(session)
                        continue
                    self._is_at_leader = serial == self._serial
                    response = await self._rounds(serial, connection, session, request)
                except _FETCH_ERRORS as error:
                    await self._discard(connection)
                    connection = None
                    if serial == self._serial:
                        self._is_at_leader = False
                        session = self._begin_session(session)
                        failures += 1
                        await self._after_failure(failures, error)
                    continue
                if serial == self._serial:
                    self._is_at_leader = False
                failures = 0
                if response is not None:
                    await self._take(session, response)
            if connection is not None and not connection.closed.done():
                self._idle.append(connection)
                connection = None
        finally:
            await self._discard(connection)

    async def _rounds(
        self, serial: int, connection: KafkaConnection, session: _Session, request: FetchRequest
    ) -> FetchResponse | None:
        """Send `request`, and further fetches while nothing else is to be done between them.

        Return the last response if it is still to be applied. The others are applied, and followed
        by the next fetch, within the callback of the socket: no task is woken for them.
        """
        last: asyncio.Future[FetchResponse | None] = asyncio.get_running_loop().create_future()

        def received(outcome: Response | Exception) -> None:
            if last.done():
                return  # cancelled
            try:
                following = self._next_fetch(serial, session, outcome)
                if isinstance(following, FetchRequest):
                    connection.request(following, received)
                else:
                    last.set_result(following)
            except Exception as error:  # noqa: BLE001 - `_run` is the outermost frame
                last.set_exception(error)

        self._asked = connection
        connection.request(request, received)
        return await last

    def _next_fetch(
        self, serial: int, session: _Session, outcome: Response | Exception
    ) -> FetchRequest | FetchResponse | None:
        """Apply a small response and return the next fetch, if it is due at once; or else None.

        Return a large response: it is still to be applied. Its records are copied.
        """
        if not isinstance(outcome, FetchResponse):
            raise cast("Exception", outcome)
        if not session.answered(outcome.error_code, outcome.session_id):
            raise _SessionLost(ErrorCode(outcome.error_code).name)
        answers = _answers_in(outcome)
        if serial != self._serial or len(answers) >= TAKEN_AT_ONCE:
            for _, answer in answers:
                answer.records = bytes(cast("Buffer", answer.records or b""))
            return outcome
        self._is_at_leader = False
        now_ms = monotonic_ms()
        unused = self._take_slice(session, answers, now_ms)
        if unused:
            self._log_unused(unused)
        if serial != self._serial:
            return None
        request = self._repetition(session, now_ms)
        if request is None:
            if not self._is_due(now_ms):
                return None
            request = self._request(session, now_ms)
        self._is_at_leader = request is not None
        return request

    def _begin_session(self, former: _Session) -> _Session:
        self._session = SessionClient(closes=former.session_id)
        return self._session

    async def _connect(self) -> KafkaConnection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed.done():
                return connection
            await connection.close()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            return await self._connect_to(*self.address)

    async def _discard(self, connection: KafkaConnection | None) -> None:
        if connection is not None:
            await connection.close()

    async def _after_failure(self, failures: int, error: Exception) -> None:
        """Wait before the next attempt: not at all the first time, then longer each time."""
        _logger.info("fetching from %s:%d: %s", *self.address, error)
        if failures > 1:
            delay_ms = self._backoff.delay_ms(failures, random_fraction())
            await self._wait(int(delay_ms))

    def _is_due(self, now_ms: int) -> bool:
        """Whether a followed partition may be fetched now, and no flush must end before."""
        if self._throttled:
            self._ask_throttle(now_ms)
        if self._flushing or self._broker_epoch() < 0:
            return False
        for followed in self._followed.values():  # noqa: SIM110 - `any` costs a generator
            if followed.may_ask(now_ms):
                return True
        return False

    def _ask_throttle(self, now_ms: int) -> None:
        """End the throttle delay of partitions early if the rate was raised."""
        for key, followed in tuple(self._throttled.items()):
            if followed.paid_ms > now_ms:
                paid_ms = self._throttled_until_ms(followed, 0, now_ms)
                followed.paid_ms = min(followed.paid_ms, paid_ms)
            if followed.paid_ms <= now_ms or self._followed.get(key) is not followed:
                del self._throttled[key]

    def _throttled_until_ms(self, followed: FollowedPartition, size: int, now_ms: int) -> int:
        at = followed.driver.topic_partition
        return self._next_fetch_ms(at, self._broker_id, size, now_ms)

    async def _wait_for_work(self) -> None:
        """Wait for a change, or until the first back-off ends."""
        backing_off = [followed.due_ms for followed in self._followed.values() if followed.is_ready]
        if not backing_off or self._flushing or self._broker_epoch() < 0:
            await self._changed.wait()  # the end of a truncation sets it, too
            return
        duration_ms = min(backing_off) - monotonic_ms()
        await self._wait(min(duration_ms, THROTTLE_CHECK_MS) if self._throttled else duration_ms)

    async def _wait(self, duration_ms: int) -> None:
        await self._changed.wait(max(duration_ms, 1))

    def _repetition(self, session: _Session, now_ms: int) -> FetchRequest | None:
        """Do as `_is_due` and `_request` if the next fetch names the partition of the last, alone.

        None: they have to do it.
        """
        key, shape, broker_epoch = session.only_touched(now_ms), self._shape, self._broker_epoch()
        if key is None or shape is None or self._throttled or self._flushing or broker_epoch < 0:
            return None
        session_id, former_epoch, changes = shape
        if session_id != session.session_id or former_epoch != broker_epoch:
            return None
        followed, asked = self._followed.get(key), session.asked.get(key)
        if asked is None or followed is None or len(changes.named) != 1 or changes.forgotten:
            return None
        position = followed.position()
        if changes.named[0] != key or position == asked or not followed.may_ask(now_ms):
            return None
        if not self._repeated.renumber(session.epoch, (position,)):
            return None
        session.note_asked(key, position)
        self._changed.clear()
        return self._repeated

    def _request(self, session: _Session, now_ms: int) -> FetchRequest | None:
        """Return the next fetch, without partitions that back off; None: the session is empty."""
        self._changed.clear()
        followed_by_key = self._followed

        def question(key: Key) -> Position | None:
            followed = followed_by_key.get(key)
            if followed is None or not followed.may_ask(now_ms):
                return None
            return followed.position()

        changes = session.changes(now_ms, followed_by_key, question)
        asked = session.asked
        if not asked:
            return None
        shape = session.session_id, self._broker_epoch(), changes
        positions = [asked[key] for key in changes.named]
        if shape != self._shape or not self._repeated.renumber(session.epoch, positions):
            self._shape, self._repeated = shape, self._new_request(session, changes)
        return self._repeated

    def _new_request(self, session: _Session, changes: Changes[Key]) -> RepeatableFetch:
        return RepeatableFetch(
            replica_id=self._broker_id,
            replica_state=ReplicaState(
                replica_id=self._broker_id, replica_epoch=self._broker_epoch()
            ),
            max_wait_ms=self._settings.replica_fetch_wait_max_ms,
            min_bytes=self._settings.replica_fetch_min_bytes,
            max_bytes=self._settings.replica_fetch_response_max_bytes,
            session_id=session.session_id,
            session_epoch=session.epoch,
            topics=topics_of(changes.named, session.asked, self._settings.replica_fetch_max_bytes),
            forgotten_topics_data=forgotten_topics_of(changes.forgotten),
        )

    async def _take(self, session: _Session, response: FetchResponse) -> None:
        """Apply a response in slices; each partition's answer only if it is still current.

        The event loop runs between two slices. The session's next fetch follows the last slice.
        """
        answers = _answers_in(response)
        unused: list[str] = []
        for start in range(0, len(answers), TAKEN_AT_ONCE):
            part = answers[start : start + TAKEN_AT_ONCE]
            unused += self._take_slice(session, part, monotonic_ms())
            if len(part) == TAKEN_AT_ONCE:
                await asyncio.sleep(0)
        self._log_unused(unused)

    def _log_unused(self, unused: Sequence[str]) -> None:
        if unused:
            more = f", and {len(unused) - 1} more such" if len(unused) > 1 else ""
            _logger.info("fetching from %s:%d: %s%s", *self.address, unused[0], more)

    def _take_slice(self, session: _Session, answers: Iterable[_Answer], now_ms: int) -> list[str]:
        """Apply a slice of a response; return the new failures, to be logged once."""
        unused: list[str] = []
        for key, answer in answers:
            self._session.touch(key)  # also after the answer of a superseded fetch
            asked, followed = session.asked.get(key), self._followed.get(key)
            if asked is None or followed is None:
                continue
            if asked.leader_epoch != followed.leader_epoch:
                continue  # followed in a newer leader epoch by now
            is_unused = take_answer(
                followed,
                asked,
                answer,
                now_ms=now_ms,
                wall_ms=self._wall_ms,
                backoff=self._backoff,
                random_fraction=random_fraction,
            )
            if is_unused:
                at, code = followed.driver.topic_partition, answer.error_code
                unused.append(f"{at}: {code} answers a fetch from {asked.fetch_offset} on")
            if followed.is_flushing:
                self._flushing.add(key)
            if answer.records:
                size = len(answer.records)
                followed.paid_ms = self._throttled_until_ms(followed, size, now_ms)
                if followed.paid_ms > now_ms:
                    self._throttled[key] = followed
                if len(self._followed) > 1:
                    # Goes last in a full fetch: a full response leaves out the last partitions.
                    self._followed[key] = self._followed.pop(key)
        return unused
