"""Thousands of members over few connections: they join, accept their assignments, and beat.

A member is a task without a client around it: the coordinator is under test. Beside
them: many consumers of our client that join one group.
"""

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from quorumlog import Admin, Consumer
from quorumlog.client import NewTopic
from quorumlog.client.settings import GroupProtocol
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    RequestTopicPartitions,
)
from quorumlog.wire.codec.messages.find_coordinator import FindCoordinatorRequest
from quorumlog.wire.codec.messages.heartbeat import HeartbeatRequest
from quorumlog.wire.codec.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from quorumlog.wire.codec.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from quorumlog.wire.io.connection import KafkaConnection

ONE_COORDINATOR: Final = {"offsets.topic.num.partitions": "1"}  # of all groups
SHARED: Final = "shared"  # the topic of each of many groups
WIDE: Final = "wide"  # the topic of one group with many members
SESSION_TIMEOUT_MS: Final = 45_000
REBALANCE_TIMEOUT_MS: Final = 60_000
_AGAIN_S: Final = 0.2
_UNREADY: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)


@dataclass
class Told:
    """The responses of the coordinator: the count of each error, and the latencies."""

    errors: Counter[str] = field(default_factory=Counter)
    waits_ms: list[float] = field(default_factory=list)

    def beat(self, error_code: ErrorCode, started_s: float) -> None:
        self.waits_ms.append((time.perf_counter() - started_s) * 1000)
        if error_code is not ErrorCode.NONE:
            self.errors[error_code.name] += 1


class Member(Protocol):
    """One member: its partitions, and their generation or epoch (0: none)."""

    generation: int
    held: frozenset[object]

    async def run(self, interval_s: float) -> None:
        """Join, and beat until cancelled."""


class ClassicMember:
    def __init__(self, connection: KafkaConnection, group_id: str, told: Told) -> None:
        self._connection, self._group_id, self._told = connection, group_id, told
        self._member_id = ""
        self.generation = 0
        self.held: frozenset[object] = frozenset()

    async def run(self, interval_s: float) -> None:
        while True:
            if self.generation == 0 and not await self._join():
                await asyncio.sleep(_AGAIN_S)
                continue
            await asyncio.sleep(interval_s)
            started_s = time.perf_counter()
            request = HeartbeatRequest(
                group_id=self._group_id, generation_id=self.generation, member_id=self._member_id
            )
            error_code = ErrorCode((await self._connection.send(request)).error_code)
            self._told.beat(error_code, started_s)
            if error_code is not ErrorCode.NONE:
                self.generation = 0

    async def _join(self) -> bool:
        request = JoinGroupRequest(
            group_id=self._group_id,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="raw", metadata=b"m")],
        )
        joined = await self._connection.send(request)
        self._member_id = joined.member_id
        if joined.error_code != ErrorCode.NONE:
            return False  # MEMBER_ID_REQUIRED, or not ready
        synced = await self._connection.send(
            SyncGroupRequest(
                group_id=self._group_id,
                generation_id=joined.generation_id,
                member_id=self._member_id,
                protocol_type="consumer",
                protocol_name="raw",
                assignments=[
                    SyncGroupRequestAssignment(member_id=one.member_id, assignment=b"%d" % index)
                    for index, one in enumerate(joined.members)
                ],
            )
        )
        if synced.error_code != ErrorCode.NONE:
            return False
        self.held = frozenset({synced.assignment})
        self.generation = joined.generation_id
        return True


class ConsumerMember:
    """Of the protocol of KIP-848. It beats at once after a change, as clients do."""

    def __init__(
        self, connection: KafkaConnection, group_id: str, told: Told, topics: Sequence[str]
    ) -> None:
        self._connection, self._group_id, self._told = connection, group_id, told
        self._topics = [*topics]
        self._member_id = str(uuid.uuid4())
        self.generation = 0
        self.held: frozenset[object] = frozenset()

    async def run(self, interval_s: float) -> None:
        owned: list[RequestTopicPartitions] = []
        has_changed = True
        while True:
            request = ConsumerGroupHeartbeatRequest(
                group_id=self._group_id,
                member_id=self._member_id,
                member_epoch=self.generation,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if self.generation == 0 else -1,
                subscribed_topic_names=self._topics if self.generation == 0 else None,
                topic_partitions=owned if has_changed else None,
            )
            started_s = time.perf_counter()
            answer = await self._connection.send(request)
            error_code = ErrorCode(answer.error_code)
            self._told.beat(error_code, started_s)
            has_changed = False
            if error_code is ErrorCode.NONE:
                self.generation = answer.member_epoch
                if answer.assignment is not None:
                    owned = [
                        RequestTopicPartitions(topic_id=one.topic_id, partitions=one.partitions)
                        for one in answer.assignment.topic_partitions
                    ]
                    self.held = frozenset(
                        (one.topic_id, index) for one in owned for index in one.partitions
                    )
                    has_changed = True
                    continue
            elif error_code not in _UNREADY:
                self.generation, owned, self.held, has_changed = 0, [], frozenset(), True
            await asyncio.sleep(interval_s)


def grouped(
    protocol: GroupProtocol,
    names: Sequence[str],
    size: int,
    opened: Sequence[KafkaConnection],
    told: Told,
) -> list[list[Member]]:
    """Return the members of each group, `size` of them, which take the connections in turn."""

    def member(number: int) -> Member:
        connection, name = opened[number % len(opened)], names[number // size]
        if protocol == "classic":
            return ClassicMember(connection, name, told)
        return ConsumerMember(connection, name, told, [SHARED])

    members = [member(number) for number in range(len(names) * size)]
    return [members[at : at + size] for at in range(0, len(members), size)]


def is_settled(members: Sequence[Member], count: int) -> bool:
    """Whether the members agree on a generation, and hold `count` things in all, each one of it."""
    held = [one for member in members for one in member.held]
    is_shared = len(held) == len({*held}) == count
    generations = {member.generation for member in members}
    return is_shared and len(generations) == 1 and 0 not in generations


async def coordinator_of(bootstrap: str, group_ids: Sequence[str]) -> tuple[str, int]:
    """Return where the one coordinator of these groups is, once there is one."""
    host, _, port = bootstrap.split(",", maxsplit=1)[0].rpartition(":")
    connection = await KafkaConnection.open(host, int(port), client_id="members")
    try:
        while True:
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=[*group_ids])
            found = (await connection.send(request)).coordinators
            if all(one.error_code == ErrorCode.NONE for one in found):
                [place] = {(one.host, one.port) for one in found}
                return place
            await asyncio.sleep(_AGAIN_S)
    finally:
        await connection.close()


@asynccontextmanager
async def connections(place: tuple[str, int], count: int) -> AsyncIterator[list[KafkaConnection]]:
    """Open some connections to a broker."""
    opened = [await KafkaConnection.open(*place, client_id="members") for _ in range(count)]
    try:
        yield opened
    finally:
        for connection in opened:
            await connection.close()


@asynccontextmanager
async def running(members: Sequence[Member], interval_s: float) -> AsyncIterator[None]:
    """Let the members live; an error of one of them is raised at the end."""
    tasks = [asyncio.ensure_future(member.run(interval_s)) for member in members]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


async def create_topics(bootstrap: str, *, shared: int, wide: int) -> None:
    """Create SHARED and WIDE with so many partitions."""
    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic(SHARED, shared, 3), NewTopic(WIDE, wide, 3)])


@asynccontextmanager
async def polling(
    bootstrap: str, protocol: GroupProtocol, count: int
) -> AsyncIterator[list[Consumer]]:
    """Let consumers join one group of WIDE at once, and poll."""
    async with AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(
                Consumer(bootstrap, group_id=f"{WIDE}-{protocol}", group_protocol=protocol)
            )
            for _ in range(count)
        ]

        async def poll(consumer: Consumer) -> None:
            consumer.subscribe([WIDE])
            while True:
                await consumer.poll(200)

        tasks = [asyncio.ensure_future(poll(consumer)) for consumer in consumers]
        try:
            yield consumers
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
