"""An administrator who changes and moves topics all the time, and lets preferred replicas lead."""

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

from quorumlog.client import Admin, KafkaError, NewTopic, Producer, TopicPartition

_TOPICS_MAX: Final = 3  # at once
_CALL_TIMEOUT_S: Final = 5.0
_REFUSED: Final = (KafkaError, ConnectionError, TimeoutError)  # while other faults last
_DRAWN: Final = secrets.SystemRandom()
_RECORDS, _RECORD = 30, bytes(1_000)
_PARTITIONS: Final = (2, 5)  # when a topic is created, and when it has grown

Change = Callable[[Admin], Awaitable[object]]


class AdminChurner:
    """Works from `start` to `stop`. `changes`: how many the cluster has made.

    It changes no other topic than its own, but elects leaders for all, and moves partitions of all:
    to other brokers, to fewer, and in the end to as many as they had.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap: Final = bootstrap
        self._prefix: Final = f"churn-{secrets.token_hex(3)}"
        self._working: asyncio.Task[None] | None = None
        self._replicas: Final[dict[TopicPartition, int]] = {}  # of what was moved: how many it had
        self._moving_back: Final = asyncio.Lock()
        self.changes = 0

    def start(self, per_s: int) -> None:
        """Begin to change, if it has not begun."""
        if self._working is None:
            self._working = asyncio.create_task(self._work(1 / per_s))

    async def stop(self) -> None:
        """Change nothing more; move partitions back and remove the topics, if the cluster can.

        What cannot be moved back while brokers are down is moved when this is called again.
        """
        working, self._working = self._working, None
        if working is not None:
            working.cancel()
            await asyncio.wait([working])
            if not working.cancelled():
                working.result()  # it ends by an error alone
        elif not self._replicas:
            return
        with suppress(*_REFUSED):
            async with asyncio.timeout(_CALL_TIMEOUT_S), Admin(self._bootstrap) as admin:
                async with self._moving_back:  # the end of a run may stop it, too
                    await self._move_back(admin)
                there_are = await admin.list_topics()
                await admin.delete_topics(n for n in there_are if n.startswith(self._prefix))

    async def _work(self, pause_s: float) -> None:
        changes = self._endless()
        while True:
            with suppress(*_REFUSED):
                async with Admin(self._bootstrap) as admin:
                    await self._change(admin, changes, pause_s)
            await asyncio.sleep(pause_s)

    async def _change(self, admin: Admin, changes: Iterator[Change], pause_s: float) -> None:
        """Make changes until one is refused: then another broker may take the next one."""
        for change in changes:
            async with asyncio.timeout(_CALL_TIMEOUT_S):
                await change(admin)
            self.changes += 1
            await asyncio.sleep(pause_s)

    def _endless(self) -> Iterator[Change]:
        for number in itertools.count():
            name = f"{self._prefix}-{number}"
            for change in (_create, _grow, _configure):
                yield partial(change, name)
            yield partial(self._fill, name)
            yield self._move
            yield _elect
            if number >= _TOPICS_MAX:
                yield partial(_delete, f"{self._prefix}-{number - _TOPICS_MAX}")

    async def _fill(self, name: str, admin: Admin) -> None:
        """Write what retention removes soon."""
        del admin
        async with Producer(self._bootstrap, linger_ms=0) as producer:
            for _ in range(_RECORDS):
                await producer.send_and_wait(name, _RECORD)

    async def _move(self, admin: Admin) -> None:
        """Let a partition of any topic have other replicas: as many as before, or one less."""
        brokers = sorted((await admin.describe_cluster()).nodes)
        topic = _DRAWN.choice(sorted(await admin.list_topics()))
        found = (await admin.describe_topics([topic]))[topic].partitions
        at = TopicPartition(topic, _DRAWN.choice(sorted(found)))
        count = self._replicas.setdefault(at, len(found[at.partition].replicas))
        least = min(count, max(2, count - 1))
        if len(brokers) >= least:
            wanted = _DRAWN.randint(least, min(count, len(brokers)))
            replicas = tuple(_DRAWN.sample(brokers, wanted))
            await admin.alter_partition_reassignments({at: replicas})

    async def _move_back(self, admin: Admin) -> None:
        brokers = sorted((await admin.describe_cluster()).nodes)
        there_are = await admin.list_topics()
        for at, count in [*self._replicas.items()]:
            if at.topic in there_are and not at.topic.startswith(self._prefix):
                if len(brokers) < count:
                    continue  # else it would have fewer replicas for ever
                replicas = _DRAWN.sample(brokers, count)
                await admin.alter_partition_reassignments({at: tuple(replicas)})
            del self._replicas[at]


async def _create(name: str, admin: Admin) -> None:
    await admin.create_topics([NewTopic(name, _PARTITIONS[0])])


async def _grow(name: str, admin: Admin) -> None:
    await admin.create_partitions({name: _PARTITIONS[1]})


async def _configure(name: str, admin: Admin) -> None:
    await admin.alter_configs("topic", name, {"retention.ms": 500})


async def _elect(admin: Admin) -> None:
    await admin.elect_leaders()


async def _delete(name: str, admin: Admin) -> None:
    await admin.delete_topics([name])
