"""The time limits of every call of every driver: a library that hangs never hangs a run.

A call that does not return within its limit is cancelled and abandoned: its caller gets
CallTimedOut (or SendFailed, indefinite), and must discard the client. The limits are far above the
timeouts in the library's own settings: a call that exceeds one has hung.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from quorumlog.chaos.drivers.driver import (
    AT_ONCE,
    Batching,
    CallTimedOut,
    CommittedReader,
    Driver,
    DriverConsumer,
    DriverError,
    DriverProducer,
    GroupDriver,
    GroupMember,
    Headers,
    Membership,
    OffsetAt,
    OffsetLookup,
    OffsetsDriver,
    Rebalance,
    Record,
    SendFailed,
    TopicAdmin,
    TopicDriver,
    TransactionalProducer,
    TransactionsDriver,
)

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most time that calls may take. `poll_s` is added to the timeout of a poll."""

    open_s: float = 15.0
    send_s: float = 10.0
    poll_s: float = 10.0
    call_s: float = 15.0
    close_s: float = 10.0
    create_topic_s: float = 45.0


DEFAULT: Final = Limits()
_abandoned: Final[set[asyncio.Future[Any]]] = set()  # a task without a reference may be collected


async def within(limit_s: float, call: str, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Await `work`; raise CallTimedOut after `limit_s`, also if `work` ignores its cancellation."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,), timeout=limit_s)
    except asyncio.CancelledError:
        _abandon(task)
        raise
    if not task.done():
        _abandon(task)
        raise CallTimedOut(call, limit_s)
    return task.result()


def _abandon(task: asyncio.Future[Any]) -> None:
    """Cancel a task that has no waiter any more, and ignore its result."""
    _abandoned.add(task)
    task.add_done_callback(_forget)
    task.cancel()


def _forget(task: asyncio.Future[Any]) -> None:
    _abandoned.discard(task)
    # Retrieve the exception, also of a begun delivery: asyncio logs an unretrieved one as a bug.
    if not task.cancelled() and task.exception() is None:
        result = task.result()
        if isinstance(result, asyncio.Future):
            result.add_done_callback(_forget)


async def _close(limit_s: float, work: Coroutine[Any, Any, None]) -> None:
    """Close a client; abandon it if that fails or takes too long."""
    with contextlib.suppress(DriverError):
        await within(limit_s, "close", work)


class LimitedProducer:
    """A producer with limits on its calls and its deliveries."""

    def __init__(self, producer: DriverProducer, limits: Limits) -> None:
        self._producer: Final = producer
        self._limits: Final = limits

    async def send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[int]:
        """See DriverProducer."""
        sent = self._producer.send(
            topic, partition, value, key=key, headers=headers, timestamp_ms=timestamp_ms
        )
        try:
            pending = await within(self._limits.send_s, "send", sent)
        except CallTimedOut as error:
            raise SendFailed(str(error), definite=False) from error
        pending.add_done_callback(_forget)  # its caller may be cancelled before it awaits it
        return asyncio.ensure_future(self._delivery(pending))

    async def _delivery(self, pending: asyncio.Future[int]) -> int:
        try:
            await asyncio.wait((pending,), timeout=self._limits.send_s)
        except asyncio.CancelledError:
            _abandon(pending)
            raise
        if not pending.done():
            _abandon(pending)
            late = f"NO_ANSWER: no acknowledgement within {self._limits.send_s:g} s"
            raise SendFailed(late, definite=False)
        return pending.result()

    async def close(self) -> None:
        """See DriverProducer."""
        await _close(self._limits.close_s, self._producer.close())


class LimitedConsumer:
    """A consumer with limits on its calls."""

    def __init__(self, consumer: DriverConsumer, limits: Limits) -> None:
        self._consumer: Final = consumer
        self._limits: Final = limits

    async def assign(self, topic: str, partitions: Sequence[int]) -> None:
        """See DriverConsumer."""
        assigned = self._consumer.assign(topic, partitions)
        await within(self._limits.call_s, "assign", assigned)

    async def poll(self, timeout_ms: int) -> list[Record]:
        """See DriverConsumer."""
        limit_s = self._limits.poll_s + timeout_ms / 1000
        return await within(limit_s, "poll", self._consumer.poll(timeout_ms))

    async def end_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """See DriverConsumer."""
        asked = self._consumer.end_offsets(topic, partitions)
        return await within(self._limits.call_s, "end_offsets", asked)

    async def close(self) -> None:
        """See DriverConsumer."""
        await _close(self._limits.close_s, self._consumer.close())


class LimitedTransactions(LimitedProducer):
    """A transactional producer with limits on its calls."""

    def __init__(self, producer: TransactionalProducer, limits: Limits) -> None:
        super().__init__(producer, limits)
        self._transactions: Final = producer

    async def begin(self) -> None:
        """See TransactionalProducer."""
        await within(self._limits.call_s, "begin", self._transactions.begin())

    async def send_offsets(self, group_id: str, topic: str, offsets: Mapping[int, int]) -> None:
        """See TransactionalProducer."""
        sent = self._transactions.send_offsets(group_id, topic, offsets)
        await within(self._limits.call_s, "send_offsets", sent)

    async def commit(self) -> None:
        """See TransactionalProducer."""
        await within(self._limits.call_s, "commit", self._transactions.commit())

    async def abort(self) -> None:
        """See TransactionalProducer."""
        await within(self._limits.call_s, "abort", self._transactions.abort())


class LimitedReader(LimitedConsumer):
    """A read_committed reader with limits on its calls."""

    def __init__(self, reader: CommittedReader, limits: Limits) -> None:
        super().__init__(reader, limits)
        self._reader: Final = reader

    async def seek(self, topic: str, offsets: Mapping[int, int]) -> None:
        """See CommittedReader."""
        await within(self._limits.call_s, "seek", self._reader.seek(topic, offsets))

    async def committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """See CommittedReader."""
        asked = self._reader.committed(topic, partitions)
        return await within(self._limits.call_s, "committed", asked)


class LimitedMember:
    """A member of a group with limits on its calls."""

    def __init__(self, member: GroupMember, limits: Limits) -> None:
        self._member: Final = member
        self._limits: Final = limits

    async def subscribe(self, topic: str) -> None:
        """See GroupMember."""
        await within(self._limits.call_s, "subscribe", self._member.subscribe(topic))

    async def poll(self, timeout_ms: int) -> list[Record]:
        """See GroupMember."""
        limit_s = self._limits.poll_s + timeout_ms / 1000
        return await within(limit_s, "poll", self._member.poll(timeout_ms))

    def rebalances(self) -> list[Rebalance]:
        """See GroupMember."""
        return self._member.rebalances()

    def generation(self) -> int:
        """See GroupMember."""
        return self._member.generation()

    async def commit(self, topic: str, offsets: Mapping[int, int]) -> None:
        """See GroupMember."""
        await within(self._limits.call_s, "commit", self._member.commit(topic, offsets))

    async def committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """See GroupMember."""
        asked = self._member.committed(topic, partitions)
        return await within(self._limits.call_s, "committed", asked)

    async def close(self) -> None:
        """See GroupMember."""
        await _close(self._limits.close_s, self._member.close())


class LimitedLookup:
    """A client that looks up offsets, with limits on its calls."""

    def __init__(self, lookup: OffsetLookup, limits: Limits) -> None:
        self._lookup: Final = lookup
        self._limits: Final = limits

    async def ask(self, topic: str, timestamps: Mapping[int, int]) -> dict[int, OffsetAt]:
        """See OffsetLookup."""
        return await within(self._limits.call_s, "ask", self._lookup.ask(topic, timestamps))

    async def close(self) -> None:
        """See OffsetLookup."""
        await _close(self._limits.close_s, self._lookup.close())


class LimitedAdmin:
    """An administrator with limits on its calls."""

    def __init__(self, admin: TopicAdmin, limits: Limits) -> None:
        self._admin: Final = admin
        self._limits: Final = limits

    async def create(self, topic: str, *, partitions: int, replication_factor: int) -> None:
        """See TopicAdmin."""
        made = self._admin.create(
            topic, partitions=partitions, replication_factor=replication_factor
        )
        await within(self._limits.call_s, "create", made)

    async def delete(self, topic: str) -> None:
        """See TopicAdmin."""
        await within(self._limits.call_s, "delete", self._admin.delete(topic))

    async def exists(self, topic: str) -> bool:
        """See TopicAdmin."""
        return await within(self._limits.call_s, "exists", self._admin.exists(topic))

    async def close(self) -> None:
        """See TopicAdmin."""
        await _close(self._limits.close_s, self._admin.close())


class LimitedDriver:
    """A driver with limits on its calls. Call only the methods that `capabilities` allows."""

    def __init__(self, driver: Driver, limits: Limits) -> None:
        self._driver: Final = driver
        self._limits: Final = limits

    @property
    def capabilities(self) -> frozenset[str]:
        """See Driver."""
        return self._driver.capabilities

    async def producer(
        self, bootstrap: str, client_id: str, batching: Batching = AT_ONCE
    ) -> LimitedProducer:
        """See Driver."""
        made = self._driver.producer(bootstrap, client_id, batching)
        return LimitedProducer(await within(self._limits.open_s, "open", made), self._limits)

    async def consumer(self, bootstrap: str, client_id: str) -> LimitedConsumer:
        """See Driver."""
        made = self._driver.consumer(bootstrap, client_id)
        return LimitedConsumer(await within(self._limits.open_s, "open", made), self._limits)

    async def create_topic(
        self,
        bootstrap: str,
        topic: str,
        *,
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """See Driver."""
        made = self._driver.create_topic(
            bootstrap,
            topic,
            partitions=partitions,
            replication_factor=replication_factor,
            config=config,
        )
        await within(self._limits.create_topic_s, "create_topic", made)

    async def member(self, bootstrap: str, client_id: str, membership: Membership) -> LimitedMember:
        """See GroupDriver."""
        made = cast(GroupDriver, self._driver).member(bootstrap, client_id, membership)
        return LimitedMember(await within(self._limits.open_s, "open", made), self._limits)

    async def transactional(
        self, bootstrap: str, client_id: str, transactional_id: str
    ) -> LimitedTransactions:
        """See TransactionsDriver."""
        driver = cast(TransactionsDriver, self._driver)
        made = driver.transactional(bootstrap, client_id, transactional_id)
        return LimitedTransactions(await within(self._limits.open_s, "open", made), self._limits)

    async def reader(self, bootstrap: str, client_id: str, group_id: str) -> LimitedReader:
        """See TransactionsDriver."""
        made = cast(TransactionsDriver, self._driver).reader(bootstrap, client_id, group_id)
        return LimitedReader(await within(self._limits.open_s, "open", made), self._limits)

    async def offsets(self, bootstrap: str, client_id: str) -> LimitedLookup:
        """See OffsetsDriver."""
        made = cast(OffsetsDriver, self._driver).offsets(bootstrap, client_id)
        return LimitedLookup(await within(self._limits.open_s, "open", made), self._limits)

    async def admin(self, bootstrap: str, client_id: str) -> LimitedAdmin:
        """See TopicDriver."""
        made = cast(TopicDriver, self._driver).admin(bootstrap, client_id)
        return LimitedAdmin(await within(self._limits.open_s, "open", made), self._limits)


def limited(driver: Driver, limits: Limits = DEFAULT) -> LimitedDriver:
    """Return the driver with time limits on all of its calls; a LimitedDriver stays as it is."""
    return driver if isinstance(driver, LimitedDriver) else LimitedDriver(driver, limits)
