"""Fetch sessions, the leader's half: each client's partitions, and their last answers.

An incremental fetch names only partitions whose request has changed, and its response has only
partitions with a change. A client with an unknown session, or with an unexpected session epoch,
gets an error and begins a new session with a full fetch. Sources: KIP-227, KIP-516 (topic ids),
KAFKA-9338, KAFKA-13111.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from quorumlog.broker.partitions.core.data_path import FetchedPartition, Key, PartitionFetch
from quorumlog.broker.partitions.core.fetch_wakeup import FetchWakeup
from quorumlog.broker.partitions.core.purgatory import WaitingFetch
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import UNKNOWN_OFFSET, TopicPartition

NO_SESSION: Final = 0  # a session id
FULL_EPOCH: Final = 0  # the epoch of a fetch that begins a session
FINAL_EPOCH: Final = -1  # the epoch of a fetch without a session, or of a session's last
_CHANGED: Final = FetchWakeup.CHANGED  # an attribute of an enum costs a call
EPOCH_MAX: Final = 2**31 - 1
EVICTABLE_AFTER_MS: Final = 120_000
SWEEP_INTERVAL_MS: Final = 500
SWEEP_PARTITIONS: Final = 10  # checked in one sweep, however large the session
RESTLESS_PARTITIONS: Final = 100  # also checked: those whose follower is not in sync
# DEVIATION: Kafka bounds the number of sessions, not the number of partitions in them.
# docs/decisions/0019-fetch-sessions.md
PARTITIONS_MAX: Final = 500_000


def next_epoch(epoch: int) -> int:
    """Return the epoch of the next fetch; 1 follows the maximum."""
    return 1 if epoch == EPOCH_MAX else epoch + 1


@dataclass(slots=True, eq=False)
class SessionPartition:
    """A partition in a session: its requested fetch, and the offsets of its last answer."""

    key: Key
    fetch: PartitionFetch
    high_watermark: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET

    def tell(self, found: FetchedPartition) -> bool:
        """Record an answer before it is sent; False: it has nothing new, and is left out."""
        if not found.is_plain:
            self.high_watermark = UNKNOWN_OFFSET  # so that the next good answer is sent
            return True
        high_watermark, log_start_offset = found.high_watermark, found.log_start_offset
        is_news = bool(found.records) or not self.was_told(high_watermark, log_start_offset)
        self.high_watermark, self.log_start_offset = high_watermark, log_start_offset
        return is_news

    def was_told(self, high_watermark: int, log_start_offset: int) -> bool:
        """Whether the last answer had these offsets."""
        return self.high_watermark == high_watermark and self.log_start_offset == log_start_offset


@dataclass(slots=True, eq=False, kw_only=True)
class FetchSession:
    """One client's session.

    Invariants:
    1. A partition outside `unsettled` was answered without an error, the client has all records
       that it may read, and the offsets of the last answer are still current.
    2. At most one fetch of a session waits (`waiting`).

    `unsettled` maps a partition to whether its fetch must be judged (again). With False, it was
    judged, its leader has not changed since, and it is only read on. Partitions whose records were
    sent last come last. `restless`: partitions to judge again periodically, because the follower
    may become eligible to join the ISR. `answered`: the fetch that has waited last, if it can wait
    again for the same partition. `last_spec`: the FetchSpec of `last_request`, for the same
    object again: then only its numbers have changed (`FetchDecoder`). `last_asked`: its partitions,
    as the session has them and as the request has them; `last_names`: the topics' names then.
    `judged_by`: the rights by which a consumer's partitions were permitted; None: no authorizer.
    """

    session_id: int
    uses_topic_ids: bool
    is_privileged: bool
    epoch: int = 1  # of the next fetch
    partitions: dict[Key, SessionPartition] = field(default_factory=dict)
    unsettled: dict[Key, bool] = field(default_factory=dict)
    restless: dict[Key, None] = field(default_factory=dict)
    to_sweep: list[Key] = field(default_factory=list)  # the rest of the current sweep
    used_ms: int = 0
    swept_ms: int = 0
    waiting: WaitingFetch | None = None
    answered: WaitingFetch | None = None
    last_request: object = None
    last_names: object = None
    last_spec: Any = None
    judged_by: object = None
    last_asked: list[tuple[PartitionFetch, Any]] = field(default_factory=list)

    def candidates(self, now_ms: int) -> list[SessionPartition]:
        """Return the partitions that a fetch must check, in reading order.

        Periodically some restless partitions are added, in turn, and fewer of the others, to find
        changes that `note` did not report.
        """
        if now_ms - self.swept_ms >= SWEEP_INTERVAL_MS:
            self.swept_ms = now_ms
            self.to_sweep = self.to_sweep or list(self.partitions)
            restless = [*islice(self.restless, RESTLESS_PARTITIONS)]
            for key in restless:  # the next sweep begins after them
                self.restless[key] = self.restless.pop(key)
            for key in (*restless, *self.to_sweep[:SWEEP_PARTITIONS]):
                if key in self.partitions:
                    self.unsettled[key] = True
            del self.to_sweep[:SWEEP_PARTITIONS]
        partitions = self.partitions
        if len(self.unsettled) == 1:  # mostly
            (key,) = self.unsettled
            return [partitions[key]]
        return [partitions[key] for key in self.unsettled]

    def partition_of(self, fetch: PartitionFetch) -> SessionPartition | None:
        """Return the partition of `fetch`; None: the session has dropped or replaced the fetch."""
        partition = self.partitions.get(fetch.key)
        return None if partition is None or partition.fetch is not fetch else partition

    def take_to_judge(self, fetch: PartitionFetch) -> bool:
        """Whether the fetch itself must be judged; if so, the caller must judge it now."""
        must_judge = self.unsettled.get(fetch.key, False)
        if must_judge:
            self.unsettled[fetch.key] = False
        return must_judge

    def take_back(self, fetches: Iterable[PartitionFetch]) -> None:
        """Note that the last answers of these fetches are not sent: the next fetch reads again."""
        self.answered = None
        for fetch in fetches:
            partition = self.partition_of(fetch)
            if partition is not None:
                partition.high_watermark = UNKNOWN_OFFSET
                self.unsettled[fetch.key] = True

    def settle(
        self,
        partition: SessionPartition,
        *,
        is_settled: bool,
        is_final: bool = False,
        has_records: bool = False,
        is_restless: bool = False,
    ) -> None:
        """Record an answer; unless it is settled, the next fetch checks the partition again.

        `is_final`: an error, a divergence or another replica, which stays until the next judgement.
        `has_records`: the next fetch checks the partition after the others.
        `is_restless`: the fetch must be judged again periodically.
        """
        key, unsettled = partition.key, self.unsettled
        if is_restless:
            self.restless[key] = None
        elif self.restless:
            self.restless.pop(key, None)
        must_judge = unsettled.get(key, False) or is_final
        is_settled = is_settled and not must_judge
        if is_settled or (has_records and len(unsettled) > 1):
            unsettled.pop(key, None)
        if not is_settled:
            unsettled[key] = must_judge


class FetchSessions:
    """All sessions of a broker.

    Invariants: at most `slots_max` sessions with at most PARTITIONS_MAX partitions in all;
    `_sessions` is in the order of last use. `new_id` returns random numbers in [1, 2^31), so that
    a client of an earlier process does not get the session of another client. `on_closed` is
    called for each session that ends.
    """

    def __init__(self, slots_max: int, new_id: Callable[[], int]) -> None:
        self._slots_max: Final = slots_max
        self._new_id: Final = new_id
        self._sessions: dict[int, FetchSession] = {}
        self.watchers: Final[dict[TopicPartition, dict[FetchSession, SessionPartition]]] = {}
        self._partition_count = 0
        self.on_closed: Callable[[FetchSession], None] = lambda _session: None

    def __len__(self) -> int:
        """Return the number of open sessions."""
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """The number of partitions in all open sessions."""
        return self._partition_count

    def open(
        self,
        now_ms: int,
        partitions: Iterable[PartitionFetch],
        *,
        uses_topic_ids: bool,
        is_privileged: bool,
    ) -> FetchSession | None:
        """Begin a session with a full fetch; None: the cache has no room."""
        asked = {fetch.key: fetch for fetch in partitions}
        if not asked or len(asked) + self._partition_count > PARTITIONS_MAX:
            return None
        self._evict_idle(now_ms)
        if len(self._sessions) >= self._slots_max and not self._evict_for(is_privileged):
            return None
        session_id = self._new_id()
        while session_id in self._sessions:
            session_id = self._new_id()
        session = FetchSession(
            session_id=session_id, uses_topic_ids=uses_topic_ids, is_privileged=is_privileged
        )
        session.used_ms = session.swept_ms = now_ms
        self._sessions[session_id] = session
        for key, fetch in asked.items():
            self._put(session, key, fetch)
        return session

    def find(self, session_id: int) -> FetchSession | None:
        """Return an open session."""
        return self._sessions.get(session_id)

    def use(self, session: FetchSession, now_ms: int) -> None:
        """Count the next fetch of a session."""
        session.epoch = next_epoch(session.epoch)
        session.used_ms = now_ms
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)

    def resume(
        self, now_ms: int, session_id: int, epoch: int, *, uses_topic_ids: bool
    ) -> FetchSession | ErrorCode:
        """Return the session of an incremental fetch, or the error."""
        session = self._sessions.get(session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.uses_topic_ids != uses_topic_ids:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        self.use(session, now_ms)
        return session

    def change(
        self, session: FetchSession, asked: Iterable[PartitionFetch], forgotten: Iterable[Key]
    ) -> bool:
        """Apply the changes of an incremental fetch; False: the session was closed.

        A session is closed when it has no partitions left, or all sessions have too many.
        """
        for key in forgotten:
            self._drop(session, key)
        for fetch in asked:
            self._put(session, fetch.key, fetch)
        if session.partitions and self._partition_count <= PARTITIONS_MAX:
            return True
        self.close(session.session_id)
        return False

    def close(self, session_id: int) -> None:
        """End a session, if it exists."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            for key in [*session.partitions]:
                self._drop(session, key)
            self.on_closed(session)

    def note(self, topic_partition: TopicPartition, change: FetchWakeup) -> bool:
        """Record a change of a partition; return whether a fetch awaits this change."""
        awaited = 0
        must_judge = change is _CHANGED  # the other changes only advance offsets
        for session, partition in self.watchers.get(topic_partition, {}).items():
            if must_judge:
                session.unsettled[partition.key] = True
            else:
                session.unsettled.setdefault(partition.key, False)
            if session.waiting is not None:
                awaited |= session.waiting.awaited
        return bool(awaited & change)

    def _put(self, session: FetchSession, key: Key, fetch: PartitionFetch) -> None:
        partition = session.partitions.get(key)
        if partition is None:
            partition = session.partitions[key] = SessionPartition(key, fetch)
            self._partition_count += 1
            self._watch(session, partition)
        elif partition.fetch.topic_partition == fetch.topic_partition:
            partition.fetch = fetch
        else:  # its topic id has a name now
            self._unwatch(session, partition)
            partition.fetch = fetch
            self._watch(session, partition)
        session.unsettled[key] = True

    def _drop(self, session: FetchSession, key: Key) -> None:
        partition = session.partitions.pop(key, None)
        if partition is not None:
            self._partition_count -= 1
            session.unsettled.pop(key, None)
            session.restless.pop(key, None)
            self._unwatch(session, partition)

    def _watch(self, session: FetchSession, partition: SessionPartition) -> None:
        self.watchers.setdefault(partition.fetch.topic_partition, {})[session] = partition

    def _unwatch(self, session: FetchSession, partition: SessionPartition) -> None:
        at = partition.fetch.topic_partition
        watchers = self.watchers.get(at, {})
        if watchers.get(session) is not partition:
            return  # a re-created topic of the same name has replaced it
        del watchers[session]
        if not watchers:
            del self.watchers[at]

    def _evict_idle(self, now_ms: int) -> None:
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if now_ms - oldest.used_ms <= EVICTABLE_AFTER_MS:
                return
            self.close(oldest.session_id)

    def _evict_for(self, is_privileged: bool) -> bool:
        """Close a consumer's session to make room for a follower; False: not possible."""
        if not is_privileged:
            return False
        for session in self._sessions.values():
            if not session.is_privileged:
                self.close(session.session_id)
                return True
        return False
