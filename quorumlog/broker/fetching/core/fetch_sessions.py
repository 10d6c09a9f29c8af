"""Fetch sessions, the leader's half: the question of each client, and its last answer.

A fetch in a session names only what has changed in it, and the answer holds only what has changed
here. A client whose session is unknown, or that has missed a step of it, gets an error and begins
a new session with a full fetch. Sources: KIP-227, KIP-516 (topic ids), KAFKA-9338, KAFKA-13111.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from quorumlog.broker.partitions.core.data_path import (
    NO_REPLICA,
    FetchedPartition,
    PartitionFetch,
)
from quorumlog.broker.partitions.core.fetch_wakeup import FetchWakeup
from quorumlog.broker.partitions.core.purgatory import WaitingFetch
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import UNKNOWN_OFFSET, TopicPartition

NO_SESSION: Final = 0  # a session id
FULL_EPOCH: Final = 0  # the epoch of a fetch that begins a session
FINAL_EPOCH: Final = -1  # the epoch of a fetch without a session, or that ends one
EPOCH_MAX: Final = 2**31 - 1
EVICTABLE_AFTER_MS: Final = 120_000
SWEEP_INTERVAL_MS: Final = 500
SWEEP_PARTITIONS: Final = 10  # that a sweep looks at, so that a large session costs no more
RESTLESS_PARTITIONS: Final = 100  # beside them, of those whose follower is not in sync
# DEVIATION: Kafka bounds the number of sessions, not that of the partitions in them.
# docs/decisions/0027-fetch-sessions-between-brokers-and-for-clients.md
PARTITIONS_MAX: Final = 500_000

Key = tuple[bytes | str, int]
"""A topic's id (Fetch v13 and later) or its name, and the partition's index."""


def key_of(fetch: PartitionFetch) -> Key:
    """Return how a session tells this partition from others."""
    topic, index = fetch.topic_partition
    return (topic if fetch.topic_id is None else fetch.topic_id), index


def next_epoch(epoch: int) -> int:
    """Return the epoch of the next fetch, which is never 0 again."""
    return 1 if epoch == EPOCH_MAX else epoch + 1


class SessionPartition:
    """A partition in a session: its question, and its last answer."""

    __slots__ = ("fetch", "high_watermark", "key", "log_start_offset")

    def __init__(self, key: Key, fetch: PartitionFetch) -> None:
        self.key = key
        self.fetch = fetch
        self.high_watermark = self.log_start_offset = UNKNOWN_OFFSET

    def tell(self, found: FetchedPartition) -> bool:
        """Note the answer about to be sent; False: there is nothing new in it."""
        if (
            found.error_code is not ErrorCode.NONE
            or found.diverging is not None
            or found.preferred_replica != NO_REPLICA
        ):
            self.high_watermark = UNKNOWN_OFFSET  # so that the next good answer tells it
            return True
        is_news = bool(found.records) or not self.was_told(
            found.high_watermark, found.log_start_offset
        )
        self.high_watermark, self.log_start_offset = found.high_watermark, found.log_start_offset
        return is_news

    def was_told(self, high_watermark: int, log_start_offset: int) -> bool:
        """Whether the last answer had these offsets."""
        told = (self.high_watermark, self.log_start_offset)
        return told == (high_watermark, log_start_offset)


class FetchSession:
    """One client's session.

    Invariants:
    1. A partition that is not in `unsettled` was answered without an error, its records have all
       been read up to where the client may read, and nothing that is told of it has changed since.
    2. At most one fetch of a session waits (`waiting`).

    `unsettled` says of each partition whether its question must be judged (again): one that was,
    and whose leader is the same since, is only read on. Those told records last come last.
    `restless` are the partitions whose judgement may have another outcome without any news of them.
    """

    __slots__ = (
        "by_partition",
        "epoch",
        "is_privileged",
        "partitions",
        "restless",
        "session_id",
        "swept_ms",
        "to_sweep",
        "unsettled",
        "used_ms",
        "uses_topic_ids",
        "waiting",
    )

    def __init__(self, session_id: int, *, uses_topic_ids: bool, is_privileged: bool) -> None:
        self.session_id = session_id
        self.epoch = next_epoch(FULL_EPOCH)  # of the fetch that comes next
        self.uses_topic_ids = uses_topic_ids
        self.is_privileged = is_privileged
        self.partitions: dict[Key, SessionPartition] = {}
        self.by_partition: dict[TopicPartition, SessionPartition] = {}
        self.unsettled: dict[Key, bool] = {}
        self.restless: dict[Key, None] = {}
        self.to_sweep: list[Key] = []  # what the sweep that is under way has not looked at
        self.used_ms = self.swept_ms = 0
        self.waiting: WaitingFetch | None = None

    def candidates(self, now_ms: int) -> list[SessionPartition]:
        """Return the partitions that a fetch must look at, in the order in which to read.

        From time to time some of the restless ones are among them, in turn, and fewer of the
        others: what a change was not noted for is found so.
        """
        if now_ms - self.swept_ms >= SWEEP_INTERVAL_MS:
            self.swept_ms = now_ms
            self.to_sweep = self.to_sweep or list(self.partitions)
            restless = [*islice(self.restless, RESTLESS_PARTITIONS)]
            for key in restless:  # the next sweep begins behind them
                self.restless[key] = self.restless.pop(key)
            for key in (*restless, *self.to_sweep[:SWEEP_PARTITIONS]):
                if key in self.partitions:
                    self.unsettled[key] = True
            del self.to_sweep[:SWEEP_PARTITIONS]
        return [self.partitions[key] for key in self.unsettled]

    def judged(self) -> list[SessionPartition]:
        """Return the partitions that may have something to tell and need no judgement."""
        return [
            self.partitions[key] for key, must_judge in self.unsettled.items() if not must_judge
        ]

    def partition_of(self, fetch: PartitionFetch) -> SessionPartition | None:
        """Return the partition of `fetch`; None: the session no longer has it."""
        partition = self.partitions.get(key_of(fetch))
        return None if partition is None or partition.fetch is not fetch else partition

    def take_to_judge(self, fetch: PartitionFetch) -> bool:
        """Whether the question itself must be judged; the caller must do so now."""
        key = key_of(fetch)
        must_judge = self.unsettled.get(key, False)
        if must_judge:
            self.unsettled[key] = False
        return must_judge

    def settle(
        self,
        partition: SessionPartition,
        *,
        is_settled: bool,
        is_final: bool = False,
        has_records: bool = False,
        is_restless: bool = False,
    ) -> None:
        """Note an answer; a partition that is not settled is looked at again.

        `is_final`: the answer was an error or the like, which stays until the next judgement.
        `has_records`: the next fetch looks at the partition after the others.
        `is_restless`: the judgement may have another outcome without any news of the partition.
        """
        key = partition.key
        if is_restless:
            self.restless[key] = None
        else:
            self.restless.pop(key, None)
        must_judge = self.unsettled.get(key, False) or is_final
        is_settled = is_settled and not must_judge
        if is_settled or has_records:
            self.unsettled.pop(key, None)
        if not is_settled:
            self.unsettled[key] = must_judge


class FetchSessions:
    """All sessions of a broker.

    Invariants: at most `slots_max` sessions with at most PARTITIONS_MAX partitions in all;
    `_sessions` is in the order of last use. `new_id` gives random numbers in [1, 2^31), so that
    a client of a former process is not mistaken for another client. `on_closed` is called for each
    session that ends.
    """

    def __init__(self, slots_max: int, new_id: Callable[[], int]) -> None:
        self._slots_max: Final = slots_max
        self._new_id: Final = new_id
        self._sessions: dict[int, FetchSession] = {}
        self.watchers: Final[dict[TopicPartition, dict[FetchSession, None]]] = {}
        self._partition_count = 0
        self.on_closed: Callable[[FetchSession], None] = _nothing

    def __len__(self) -> int:
        """Return the number of open sessions."""
        return len(self._sessions)

    def open(
        self,
        now_ms: int,
        partitions: Iterable[PartitionFetch],
        *,
        uses_topic_ids: bool,
        is_privileged: bool,
    ) -> FetchSession | None:
        """Begin a session with a full fetch; None: there is no room for a session."""
        asked = {key_of(fetch): fetch for fetch in partitions}
        if not asked or len(asked) + self._partition_count > PARTITIONS_MAX:
            return None
        self._evict_idle(now_ms)
        if len(self._sessions) >= self._slots_max and not self._evict_for(is_privileged):
            return None
        session_id = self._new_id()
        while session_id in self._sessions:
            session_id = self._new_id()
        session = FetchSession(
            session_id, uses_topic_ids=uses_topic_ids, is_privileged=is_privileged
        )
        session.used_ms = session.swept_ms = now_ms
        self._sessions[session_id] = session
        for key, fetch in asked.items():
            self._put(session, key, fetch)
        return session

    def resume(
        self, now_ms: int, session_id: int, epoch: int, *, uses_topic_ids: bool
    ) -> FetchSession | ErrorCode:
        """Return the session that an incremental fetch continues, or why there is none."""
        session = self._sessions.get(session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.uses_topic_ids != uses_topic_ids:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        session.epoch = next_epoch(epoch)
        session.used_ms = now_ms
        self._sessions[session_id] = self._sessions.pop(session_id)
        return session

    def change(
        self,
        session: FetchSession,
        asked: Iterable[PartitionFetch],
        forgotten: Iterable[Key],
    ) -> bool:
        """Apply the changes that an incremental fetch names; False: nothing is left, or too much.

        The session is closed then.
        """
        for key in forgotten:
            self._drop(session, key)
        for fetch in asked:
            self._put(session, key_of(fetch), fetch)
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
        """Note a change of a partition; True: a fetch waits for such a change of it."""
        is_awaited = False
        must_judge = change is FetchWakeup.CHANGED  # the others: it has grown, or more is committed
        for session in self.watchers.get(topic_partition, ()):
            key = session.by_partition[topic_partition].key
            if must_judge:
                session.unsettled[key] = True
            else:
                session.unsettled.setdefault(key, False)
            waiting = session.waiting
            is_awaited = is_awaited or (waiting is not None and bool(waiting.awaited & change))
        return is_awaited

    def watching(self, topic_partition: TopicPartition) -> list[FetchSession]:
        """Return the sessions with this partition, the oldest first."""
        return list(self.watchers.get(topic_partition, ()))

    def _put(self, session: FetchSession, key: Key, fetch: PartitionFetch) -> None:
        partition = session.partitions.get(key)
        if partition is None:
            partition = session.partitions[key] = SessionPartition(key, fetch)
            self._partition_count += 1
            self._watch(session, partition)
        elif partition.fetch.topic_partition == fetch.topic_partition:
            partition.fetch = fetch
        else:  # the name of its topic has become known
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
        at = partition.fetch.topic_partition
        session.by_partition[at] = partition
        self.watchers.setdefault(at, {})[session] = None

    def _unwatch(self, session: FetchSession, partition: SessionPartition) -> None:
        at = partition.fetch.topic_partition
        if session.by_partition.get(at) is not partition:
            return  # a topic of the same name has taken its place
        del session.by_partition[at]
        watchers = self.watchers[at]
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
        """Make room for a follower at the cost of a consumer; False: there is none."""
        if not is_privileged:
            return False
        for session in self._sessions.values():
            if not session.is_privileged:
                self.close(session.session_id)
                return True
        return False


def _nothing(_session: FetchSession) -> None:
    pass
