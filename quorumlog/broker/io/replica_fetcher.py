"""Following: one fetcher per leader asks it for all partitions that we follow there.

A fetch is a long poll. When the set of partitions changes while one is parked at the leader, a new
fetch starts at once on another connection; the old answer, when it comes, is used as far as it
still fits. Without fetch sessions (KIP-227). Sources: KIP-320, KIP-595, KIP-903.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from quorumlog.broker.core.settings import BrokerSettings
from quorumlog.broker.io.deadline_timer import monotonic_ms
from quorumlog.broker.io.fetch_answers import FIRST_BACKOFF_MS, Followed, take_answer
from quorumlog.broker.io.partition_driver import PartitionDriver
from quorumlog.wire.codec.identifiers import BrokerId
from quorumlog.wire.codec.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)
from quorumlog.wire.io.connection import (
    ConnectionLost,
    KafkaConnection,
    RequestTimedOut,
    UnsupportedVersion,
)

LOOPS_MAX: Final = 4  # fetches to one leader at a time: one that counts, the rest superseded
CONNECT_TIMEOUT_S: Final = 2.0  # a lost SYN is repeated less and less often: rather begin anew
_CONNECTION_ERRORS: Final = (ConnectionLost, RequestTimedOut, UnsupportedVersion, OSError)
_Key = tuple[bytes | str, int]
_Asked = dict[_Key, tuple[Followed, FetchPartition]]

logger = logging.getLogger(__name__)


class ReplicaFetcher:
    """Follows one leader at one address.

    `broker_epoch()`: nothing is fetched while it is -1. `took(now_ms, active)` is called after each
    answer with those that it brought records for.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        address: tuple[str, int],
        settings: BrokerSettings,
        *,
        broker_epoch: Callable[[], int],
        now_ms: Callable[[], int],
        failed: Callable[[BaseException], None],
        took: Callable[[int, Sequence[Followed]], None],
    ) -> None:
        self.address: Final = address
        self._broker_id: Final = broker_id
        self._settings: Final = settings
        self._broker_epoch: Final = broker_epoch
        self._wall_clock_ms: Final = now_ms
        self._followed: dict[PartitionDriver, Followed] = {}
        self._idle: list[KafkaConnection] = []
        self._loops: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._given_up: set[asyncio.Task[None]] = set()  # loops that close their connections
        self._serial = 0  # of the loop that counts
        self._is_at_leader = False  # a fetch of that loop is with the leader
        self._is_stopped = False
        self._changed: Final = asyncio.Event()
        self._failed: Final = failed
        self._took: Final = took

    def set_followed(self, followed: Iterable[Followed]) -> None:
        """Replace what is followed; a parked fetch does not delay what is new."""
        self._followed = {one.driver: one for one in followed}
        self.wake()

    def wake(self) -> None:
        """Fetch at once, unless it was stopped: the other lane may move something here then.

        A new fetch does not wait for one that is parked at the leader. If LOOPS_MAX are parked,
        the oldest gives way: its connection is closed, and what it would have brought is asked
        for by the new one.
        """
        if self._is_stopped:
            return
        self._changed.set()
        if self._is_at_leader or not self._loops:
            self._serial += 1
            self._is_at_leader = False
            if len(self._loops) >= LOOPS_MAX:
                oldest = next(iter(self._loops))
                del self._loops[oldest]
                self._given_up.add(oldest)
                oldest.cancel()
            loop = asyncio.create_task(self._run(self._serial))
            self._loops[loop] = None
            loop.add_done_callback(self._loop_ended)

    async def stop(self) -> None:
        """End every fetch, for good, and close the connections."""
        self._is_stopped = True
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, *self._given_up, return_exceptions=True)
        for connection in self._idle:
            await connection.close()
        self._idle.clear()

    async def _run(self, serial: int) -> None:
        connection: KafkaConnection | None = None
        failures = 0
        try:
            while serial == self._serial:
                if not self._is_due():
                    await self._wait_for_work()
                    continue
                try:
                    if connection is None:
                        connection = await self._connect()
                    # Built now: what there is to ask may have changed meanwhile.
                    request, asked = self._request()
                    if not asked:
                        continue
                    self._is_at_leader = serial == self._serial
                    response = await connection.send(request)
                except _CONNECTION_ERRORS as error:
                    await self._discard(connection)
                    connection = None
                    if serial == self._serial:
                        self._is_at_leader = False
                        failures += 1
                        await self._after_failure(failures, error)
                    continue
                if serial == self._serial:
                    self._is_at_leader = False
                failures = 0
                self._take(response, asked)
            if connection is not None and not connection.closed.done():
                self._idle.append(connection)
                connection = None
        finally:
            await self._discard(connection)

    async def _connect(self) -> KafkaConnection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed.done():
                return connection
            await connection.close()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            return await KafkaConnection.open(
                *self.address,
                client_id=f"broker-{self._broker_id}-fetcher",
                request_timeout_ms=self._settings.replica_socket_timeout_ms,
            )

    async def _discard(self, connection: KafkaConnection | None) -> None:
        if connection is not None:
            await connection.close()

    async def _after_failure(self, failures: int, error: Exception) -> None:
        """Try again: at once after the first failure, then less and less often."""
        logger.info("fetching from %s:%d: %s", *self.address, error)
        if failures > 1:
            doubled = FIRST_BACKOFF_MS * 2 ** min(failures, 10)
            await self._wait(min(doubled, self._settings.replica_fetch_backoff_ms))

    def _is_due(self) -> bool:
        """Whether there is anything to ask for."""
        now_ms = monotonic_ms()
        return self._broker_epoch() >= 0 and any(
            followed.not_before_ms <= now_ms for followed in self._followed.values()
        )

    async def _wait_for_work(self) -> None:
        """Wait for a change, or for the end of the first back-off."""
        now_ms = monotonic_ms()
        if not self._followed or self._broker_epoch() < 0:
            await self._changed.wait()
            self._changed.clear()
            return
        await self._wait(min(one.not_before_ms for one in self._followed.values()) - now_ms)

    async def _wait(self, duration_ms: int) -> None:
        try:
            async with asyncio.timeout(max(duration_ms, 1) / 1000):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()

    def _request(self) -> tuple[FetchRequest, _Asked]:
        """Ask for all that is not backing off, each from the end of our log."""
        self._changed.clear()
        asked: _Asked = {}
        topics: dict[str, FetchTopic] = {}
        broker_epoch = self._broker_epoch()
        now_ms = monotonic_ms()
        for driver, followed in self._followed.items():
            if followed.not_before_ms > now_ms:
                continue
            name, index = driver.topic_partition
            fetch = FetchPartition(
                partition=index,
                current_leader_epoch=followed.leader_epoch,
                fetch_offset=driver.partition.log_end_offset,
                last_fetched_epoch=driver.log.epochs.latest_epoch,
                log_start_offset=driver.partition.log_start_offset,
                partition_max_bytes=self._settings.replica_fetch_max_bytes,
            )
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = FetchTopic(topic=name, topic_id=driver.topic_id)
            topic.partitions.append(fetch)
            # The version decides which of the two names the answer bears.
            asked[driver.topic_id, index] = asked[name, index] = followed, fetch
        request = FetchRequest(
            replica_id=self._broker_id,
            replica_state=ReplicaState(replica_id=self._broker_id, replica_epoch=broker_epoch),
            max_wait_ms=self._settings.replica_fetch_wait_max_ms,
            min_bytes=self._settings.replica_fetch_min_bytes,
            max_bytes=self._settings.replica_fetch_response_max_bytes,
            topics=list(topics.values()),
        )
        return request, asked

    def _take(self, response: FetchResponse, asked: _Asked) -> None:
        now_ms = monotonic_ms()
        active: list[Followed] = []
        for topic in response.responses:
            for answer in topic.partitions:
                index = answer.partition_index
                found = asked.get((topic.topic_id, index)) or asked.get((topic.topic, index))
                if found is None:
                    continue
                followed, fetch = found
                if self._followed.get(followed.driver) is not followed:
                    continue
                take_answer(
                    followed,
                    fetch,
                    answer,
                    now_ms=now_ms,
                    wall_clock_ms=self._wall_clock_ms,
                    backoff_max_ms=self._settings.replica_fetch_backoff_ms,
                )
                if answer.records:
                    active.append(followed)
                    # Asked for last next time: a full answer leaves out whoever comes last.
                    self._followed[followed.driver] = self._followed.pop(followed.driver)
        self._took(now_ms, active)

    def _loop_ended(self, loop: asyncio.Task[None]) -> None:
        self._loops.pop(loop, None)
        self._given_up.discard(loop)
        error = None if loop.cancelled() else loop.exception()
        if error is not None:
            self._failed(error)
