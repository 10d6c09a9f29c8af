"""The administrator of a run: moves replicas, adds partitions, changes settings and quotas.

It is a client of the cluster, so its requests are late, lost or refused as any other. A request
without a response may still take effect: for `_IN_DOUBT_S`, replicas may be moving.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from quorumlog import chance
from quorumlog.chaos.back_ends.admin_churner import REFUSED, AdminChurner, drawn, drawn_replicas
from quorumlog.chaos.back_ends.back_end import NodeUnavailable
from quorumlog.chaos.drivers.security import NO_PROTECTION
from quorumlog.client import Admin, NewTopic, Producer, TopicPartition

OPERATIONS: Final = frozenset(
    {"churn", "calm", "reassign", "grow", "throttle", "release", "limit", "unlimit"}
    | {"delete_records"}
)
WITH_DIRECTORIES: Final = OPERATIONS | {"alter_log_dirs"}
"""Where brokers may have several log directories."""
PARTITIONS_MAX: Final = 6  # of a topic that grows
REPLICAS: Final = 3  # of a partition, at most
_LEAST: Final = 2  # replicas of a partition, if there are enough brokers
_CALL_TIMEOUT_S: Final = 5.0
_IN_DOUBT_S: Final = 30.0  # the longest delay of a request without a response
_SETTLE_TIMEOUT_S: Final = 20.0
_SETTLE_PAUSE_S: Final = 0.5
_OURS_SHARE: Final = 0.6  # of the moves, for the topic of the workload
_CANCELLED_SHARE: Final = 0.3  # of the requests for a partition that is moving
DELETED_TOPIC: Final = "deleted-records"
_BATCHES, _TOGETHER = 3, 5  # batches written before each deletion, and the records of each
_LINGER_MS: Final = 50  # so that records sent together are one batch
_SIDES: Final = ("leader", "follower")
_RATES: Final = tuple(f"{side}.replication.throttled.rate" for side in _SIDES)
_THROTTLED: Final = tuple(f"{side}.replication.throttled.replicas" for side in _SIDES)
_ALL: Final = "*"
_LIMITED: Final[tuple[Mapping[str, str | None], ...]] = (
    {"user": "ANONYMOUS"},
    {"user": None},
    {"client-id": "quorumlog"},  # of our own client, without another one in its settings
    {"client-id": None},
    {"user": None, "client-id": None},
)
"""The clients that may get a quota; None: the default, for all that have none of their own."""
_BYTE_RATES: Final = ("producer_byte_rate", "consumer_byte_rate")
_REQUESTS: Final = {"request_percentage": 5.0}

Say = Callable[[str], None]
"""Called with the drawn request before it is sent to the cluster."""


class Administrator:
    """One administrator per run, on `brokers` brokers.

    fewer: how many replicas below the maximum a moved partition may have.
    why_not_move: returns why a copy must not be given up now, or "".
    """

    def __init__(
        self,
        bootstrap: str,
        protection: Mapping[str, Any] = NO_PROTECTION,
        *,
        topic: str,
        brokers: int,
        fewer: int,
        why_not_move: Callable[[], str] = lambda: "",
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bootstrap: Final = bootstrap
        self._protection: Final = protection  # of clients of quorumlog
        self._topic: Final = topic
        self._most: Final = min(REPLICAS, brokers)
        self._least: Final = min(self._most, max(_LEAST, self._most - fewer))
        self._gives_up_copies: Final = fewer > 0 or brokers > REPLICAS
        self._why_not_move: Final = why_not_move
        self._now_s: Final = now_s
        self._asking = 0  # requests under way that give up copies
        self._in_doubt_until_s = 0.0
        self._throttled: Final[set[str]] = set()  # topics
        self._limited: Final[list[Mapping[str, str | None]]] = []  # clients, perhaps some twice
        self._undoing: Final = asyncio.Lock()  # each released node calls the release
        self._churner: Final = AdminChurner(
            bootstrap,
            protection,
            may_move=self._churner_may_move,
            may_forget=lambda: fewer > 0,
            fewer=fewer,
        )

    @property
    def changes(self) -> int:
        """The number of changes that the churner has made."""
        return self._churner.changes

    @property
    def is_moving(self) -> bool:
        """Whether a request that gives up copies may be on its way."""
        return self._asking > 0 or self._now_s() < self._in_doubt_until_s

    async def perform(self, operation: str, amount: int = 0) -> str | None:
        """Do one of WITH_DIRECTORIES. Raises NodeUnavailable if the cluster does not do it.

        Returns the request, if it was drawn; the error's text has it, too.
        """
        match operation:
            case "churn":
                self._churner.start(per_s=amount)
            case "calm":
                await self._churner.stop()
            case "reassign":
                return await self._ask(self._reassign)
            case "alter_log_dirs":
                return await self._ask(self._alter_log_dirs)
            case "grow":
                return await self._ask(self._grow)
            case "delete_records":
                return await self._ask(self._delete_records)
            case "throttle" | "limit":
                change = self._throttle if operation == "throttle" else self._limit
                return await self._ask(partial(change, amount))
            case "unlimit":
                await self._remove_limits()
            case _:
                await self._release()
        return None

    async def stop(self) -> None:
        """Stop the churner; its changes may stay."""
        await self._churner.stop()

    async def settle(self) -> None:
        """Undo all remaining changes after the last fault has ended."""
        deadline_s = self._now_s() + _SETTLE_TIMEOUT_S
        await self.stop()
        while (self._throttled or self._limited) and self._now_s() < deadline_s:
            try:
                await self._release()
                await self._remove_limits()
            except NodeUnavailable:
                await asyncio.sleep(_SETTLE_PAUSE_S)

    async def elect_uncleanly(self, partitions: Sequence[TopicPartition]) -> None:
        """Elect any living replica as leader of these partitions, where there is one."""
        with suppress(*REFUSED):
            async with (
                asyncio.timeout(_CALL_TIMEOUT_S),
                Admin(self._bootstrap, **self._protection) as admin,
            ):
                await admin.elect_leaders(partitions, "unclean")

    async def _ask(self, change: Callable[[Admin, Say], Awaitable[None]]) -> str:
        said: list[str] = []
        try:
            async with (
                asyncio.timeout(_CALL_TIMEOUT_S),
                Admin(self._bootstrap, **self._protection) as admin,
            ):
                await change(admin, said.append)
        except REFUSED as error:
            why = str(error) or type(error).__name__
            raise NodeUnavailable(
                ": ".join([*said, f"the cluster does not do it: {why}"])
            ) from error
        return ", ".join(said)

    # --- replicas that move ---

    async def _reassign(self, admin: Admin, say: Say) -> None:
        """Reassign a partition, or cancel its reassignment (KIP-455)."""
        brokers = {*(await admin.describe_cluster()).nodes}
        topics = await admin.list_topics(include_internal=True)
        is_ours = self._topic in topics and chance.random_fraction() < _OURS_SHARE
        topic = self._topic if is_ours else drawn(sorted(topics))
        found = (await admin.describe_topics([topic]))[topic].partitions
        at = TopicPartition(topic, drawn(sorted(found)))
        is_moving = at in await admin.list_partition_reassignments()
        replicas: tuple[int, ...] | None = None
        if not is_moving or chance.random_fraction() >= _CANCELLED_SHARE:
            if len(brokers) < self._least:
                raise NodeUnavailable(f"{len(brokers)} brokers are too few to move a partition")
            count = drawn(range(self._least, min(self._most, len(brokers)) + 1))
            replicas = drawn_replicas(brokers, count)
        if why := self._why_not():
            raise NodeUnavailable(why)
        say(f"{at} to {replicas}" if replicas else f"{at} stays where it was")
        self._asking += 1
        is_answered = False
        try:
            await admin.alter_partition_reassignments({at: replicas})
            is_answered = True
        finally:
            self._asking -= 1
            if not is_answered:
                self._note_doubt()

    def _why_not(self) -> str:
        return self._why_not_move() if self._gives_up_copies else ""

    def _churner_may_move(self) -> bool:
        """Return whether the churner may move a replica; its requests are then in doubt."""
        if self._why_not():
            return False
        self._note_doubt()
        return True

    def _note_doubt(self) -> None:
        if self._gives_up_copies:
            self._in_doubt_until_s = self._now_s() + _IN_DOUBT_S

    async def _alter_log_dirs(self, admin: Admin, say: Say) -> None:
        """Move a replica of a broker to a random one of its log directories (KIP-113)."""
        broker = drawn(sorted((await admin.describe_cluster()).nodes))
        found = (await admin.describe_log_dirs([broker]))[broker]
        there_are = sorted({at for one in found.values() for at in one.replicas})
        ours = [at for at in there_are if at.topic == self._topic]
        is_ours = ours and chance.random_fraction() < _OURS_SHARE
        if not there_are:
            raise NodeUnavailable(f"broker {broker} has no replica")
        at, path = drawn(ours if is_ours else there_are), drawn(sorted(found))
        say(f"{at} of broker {broker} to {path}")
        await admin.alter_replica_log_dirs(broker, {at: path})

    # --- partitions and settings ---

    async def _grow(self, admin: Admin, say: Say) -> None:
        """Add a partition to the topic of the workload (KIP-195)."""
        there_are = len((await admin.describe_topics([self._topic]))[self._topic].partitions)
        if there_are >= PARTITIONS_MAX:
            raise NodeUnavailable(f"{self._topic} has {there_are} partitions")
        say(f"{self._topic} to {there_are + 1} partitions")
        await admin.create_partitions({self._topic: there_are + 1})

    async def _delete_records(self, admin: Admin, say: Say) -> None:
        """Write batches to a topic, then delete the records below a random offset (KIP-107)."""
        if DELETED_TOPIC not in await admin.list_topics():
            await admin.create_topics([NewTopic(DELETED_TOPIC, 1)])
        async with Producer(self._bootstrap, **self._protection, linger_ms=_LINGER_MS) as producer:
            for _ in range(_BATCHES):
                sends = (producer.send_and_wait(DELETED_TOPIC, b"") for _ in range(_TOGETHER))
                await asyncio.gather(*sends)
        at = TopicPartition(DELETED_TOPIC, 0)
        start = (await admin.list_offsets({at: "earliest"}))[at].offset
        end = (await admin.list_offsets({at: "latest"}))[at].offset
        if end <= start:  # a new leader's high watermark may lag
            raise NodeUnavailable(f"{DELETED_TOPIC} has no committed record yet")
        before_offset = start + 1 + chance.random_number(end - start)
        say(f"{at} below offset {before_offset}")
        await admin.delete_records({at: before_offset})

    async def _throttle(self, bytes_per_s: int, admin: Admin, say: Say) -> None:
        """Limit each broker's traffic to and from replicas that are out of sync (KIP-73)."""
        topics = await admin.list_topics(include_internal=True)
        say(f"{', '.join(sorted(topics))} to {bytes_per_s} bytes/s")
        self._throttled.update(topics)
        for topic in topics:
            await admin.alter_configs("topic", topic, dict.fromkeys(_THROTTLED, _ALL))
        await admin.alter_configs("broker", "", dict.fromkeys(_RATES, bytes_per_s))

    async def _release(self) -> None:
        async with self._undoing:
            if self._throttled:
                await self._ask(self._unthrottle)

    async def _unthrottle(self, admin: Admin, _say: Say) -> None:
        await admin.alter_configs("broker", "", delete=_RATES)
        there_are = {*await admin.list_topics(include_internal=True)}
        for topic in sorted(self._throttled & there_are):
            await admin.alter_configs("topic", topic, delete=_THROTTLED)
        self._throttled.clear()

    # --- quotas ---

    async def _limit(self, bytes_per_s: int, admin: Admin, say: Say) -> None:
        """Give some clients a quota of bytes and of request time (KIP-13, KIP-124)."""
        clients = drawn(_LIMITED)
        names = ", ".join(f"{kind} {name or '(default)'}" for kind, name in clients.items())
        say(f"{names} to {bytes_per_s} bytes/s")
        self._limited.append(clients)
        quotas = dict.fromkeys(_BYTE_RATES, float(bytes_per_s))
        await admin.alter_client_quotas(clients, quotas | _REQUESTS)

    async def _remove_limits(self) -> None:
        async with self._undoing:
            if self._limited:
                await self._ask(self._unlimit)

    async def _unlimit(self, admin: Admin, _say: Say) -> None:
        while self._limited:
            await admin.alter_client_quotas(self._limited[-1], delete=(*_BYTE_RATES, *_REQUESTS))
            self._limited.pop()
