"""An administrator that changes, moves and re-elects topics all the time."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from quorumlog import chance
from quorumlog.chaos.drivers.security import NO_PROTECTION
from quorumlog.client import Admin, KafkaError, NewTopic, Producer, TopicPartition
from quorumlog.wire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from quorumlog.wire.codec.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

_TOPICS_MAX: Final = 3  # at once
_CALL_TIMEOUT_S: Final = 5.0
REFUSED: Final = (KafkaError, ConnectionError, TimeoutError)  # while other faults last
_RECORDS, _RECORD = 30, bytes(1_000)
TOPIC_PREFIX: Final = "churn-"
CREATED: Final = 2  # partitions of a new topic; a write to a missing topic creates one with 1
GROWN: Final = 5  # partitions after the topic has grown
_TUNED: Final = "log.index.interval.bytes"  # of all brokers: any value is safe
_TUNED_BYTES: Final = (0, 500, 4_096)

Change = Callable[[Admin], Awaitable[object]]
"""Returns False if there was no change to make."""
T = TypeVar("T")


def drawn(items: Collection[T]) -> T:
    """Return one of the items."""
    return [*items][chance.random_number(len(items))]


def drawn_replicas(brokers: Collection[int], count: int) -> tuple[int, ...]:
    """Return `count` different brokers in a random order."""
    order = sorted(brokers)
    chance.shuffle(order)
    return tuple(order[:count])


class AdminChurner:
    """Works from `start` to `stop`. `changes`: the number of changes that the cluster has made.

    It creates and changes topics of its own, but elects leaders for all, and moves partitions of
    all: to other brokers, to fewer, and in the end back to the former number. For all brokers it
    changes one log setting, and the levels of features; it raises lowered levels again in the end.
    It unregisters dead brokers.
    """

    def __init__(
        self,
        bootstrap: str,
        protection: Mapping[str, Any] = NO_PROTECTION,
        *,
        may_move: Callable[[], bool] = lambda: True,
        may_forget: Callable[[], bool] = lambda: True,
        fewer: int = 1,
    ) -> None:
        """`may_move`, `may_forget`: called before each move, and before a broker is unregistered.

        `fewer`: how many replicas a partition may lose for a while.
        """
        self._bootstrap: Final = bootstrap
        self._protection: Final = protection  # of clients of quorumlog
        self._prefix = ""
        self._may_move: Final = may_move
        self._may_forget: Final = may_forget
        self.fewer = fewer
        self._working: asyncio.Task[None] | None = None
        self._replicas: Final[dict[TopicPartition, int]] = {}  # moved partition -> former number
        self._seen: Final[set[int]] = set()  # every broker seen so far
        self._is_tuned = False
        self._levels: Final = FeatureLevels()
        self._changes: Final = self._endless()  # continues where `stop` left it
        self._taking_back: Final = asyncio.Lock()
        self.changes = 0

    def start(self, per_s: int) -> None:
        """Begin to change the cluster, unless it has begun."""
        self._prefix = self._prefix or f"{TOPIC_PREFIX}{chance.random_bytes(3).hex()}"
        if self._working is None:
            self._working = asyncio.create_task(self._work(1 / per_s))

    async def stop(self) -> None:
        """Stop all changes; undo reversible ones and delete the topics, if the cluster can.

        A change that cannot be undone while brokers are down is undone by the next call.
        """
        working, self._working = self._working, None
        if working is not None:
            working.cancel()
            await asyncio.wait([working])
            if not working.cancelled():
                working.result()  # it ends only by an error
        elif not (self._replicas or self._is_tuned or self._levels.are_lowered):
            return
        with suppress(*REFUSED):
            async with (
                asyncio.timeout(_CALL_TIMEOUT_S),
                Admin(self._bootstrap, **self._protection) as admin,
            ):
                async with self._taking_back:  # the end of a run may call `stop`, too
                    await self._move_back(admin)
                    await self._levels.raise_again(admin)
                if self._is_tuned:
                    await admin.alter_configs("broker", "", delete=[_TUNED])
                    self._is_tuned = False
                there_are = await admin.list_topics()
                await admin.delete_topics(n for n in there_are if n.startswith(self._prefix))

    async def _work(self, pause_s: float) -> None:
        while True:
            with suppress(*REFUSED):
                async with Admin(self._bootstrap, **self._protection) as admin:
                    await self._change(admin, pause_s)
            await asyncio.sleep(pause_s)

    async def _change(self, admin: Admin, pause_s: float) -> None:
        """Make changes until one is refused: then another broker may receive the next one."""
        for change in self._changes:
            async with asyncio.timeout(_CALL_TIMEOUT_S):
                is_made = await change(admin) is not False
            self.changes += is_made
            await asyncio.sleep(pause_s)

    def _endless(self) -> Iterator[Change]:
        for number in itertools.count():
            name = f"{self._prefix}-{number}"
            for change in (_create, _grow, _configure):
                yield partial(change, name)
            yield partial(self._fill, name)
            yield self._move
            yield _elect
            yield self._forget
            yield self._levels.change_one
            yield self._tune
            if number >= _TOPICS_MAX:
                yield partial(_delete, f"{self._prefix}-{number - _TOPICS_MAX}")

    async def _fill(self, name: str, admin: Admin) -> None:
        """Write records that retention deletes soon."""
        del admin
        async with Producer(self._bootstrap, **self._protection, linger_ms=0) as producer:
            for _ in range(_RECORDS):
                await producer.send_and_wait(name, _RECORD)

    async def _tune(self, admin: Admin) -> None:
        self._is_tuned = True
        await admin.alter_configs("broker", "", {_TUNED: drawn(_TUNED_BYTES)})

    async def _forget(self, admin: Admin) -> bool:
        """Unregister a dead broker; it may come back."""
        there_are = {*(await admin.describe_cluster()).nodes}
        self._seen.update(there_are)
        gone = self._seen - there_are
        if not gone or not self._may_forget():
            return False
        await admin.unregister_broker(drawn(sorted(gone)))
        return True

    async def _move(self, admin: Admin) -> bool:
        """Reassign a partition of any topic, to at most as many replicas as before."""
        brokers = {*(await admin.describe_cluster()).nodes}
        self._seen.update(brokers)
        topic = drawn(sorted(await admin.list_topics()))
        found = (await admin.describe_topics([topic]))[topic].partitions
        at = TopicPartition(topic, drawn(sorted(found)))
        count = self._replicas.setdefault(at, len(found[at.partition].replicas))
        least = min(count, max(2, count - self.fewer))
        if len(brokers) < least or not self._may_move():
            return False
        wanted = drawn(range(least, min(count, len(brokers)) + 1))
        await admin.alter_partition_reassignments({at: drawn_replicas(brokers, wanted)})
        return True

    async def _move_back(self, admin: Admin) -> None:
        brokers = {*(await admin.describe_cluster()).nodes}
        there_are = await admin.list_topics()
        for at, count in [*self._replicas.items()]:
            if at.topic in there_are and not at.topic.startswith(self._prefix):
                if len(brokers) < count or not self._may_move():
                    continue  # a later call moves it back
                await admin.alter_partition_reassignments({at: drawn_replicas(brokers, count)})
            del self._replicas[at]


async def _create(name: str, admin: Admin) -> None:
    await admin.create_topics([NewTopic(name, CREATED)])


async def _grow(name: str, admin: Admin) -> None:
    await admin.create_partitions({name: GROWN})


async def _configure(name: str, admin: Admin) -> None:
    await admin.alter_configs("topic", name, {"retention.ms": 500})


async def _elect(admin: Admin) -> None:
    await admin.elect_leaders()


async def _delete(name: str, admin: Admin) -> None:
    await admin.delete_topics([name])


_UPGRADE: Final = 1
_SAFE_DOWNGRADE: Final = 2
_TIMEOUT_MS: Final = 5_000


class FeatureLevels:
    """Changes levels, and in the end raises the lowered ones again.

    Raised levels stay: some of them cannot be lowered (kraft.version).
    """

    def __init__(self) -> None:
        self._lowered: Final[dict[str, int]] = {}  # the highest former level of a feature

    @property
    def are_lowered(self) -> bool:
        """Whether a feature may have a lower level than before."""
        return bool(self._lowered)

    async def change_one(self, admin: Admin) -> bool:
        """Set one feature to another level; False: there is no other, or the cluster refuses."""
        known = await _ask_levels(admin)
        now = _finalized(known)
        others = [
            (one.name, level)
            for one in known.supported_features
            for level in range(one.min_version, one.max_version + 1)
            if level != now.get(one.name)
        ]
        if not others:
            return False
        name, level = others[chance.random_number(len(others))]
        is_lower = level < now.get(name, level)
        if is_lower:
            self._lowered[name] = max(now[name], self._lowered.get(name, 0))
        return await _set(admin, name, level, _SAFE_DOWNGRADE if is_lower else _UPGRADE)

    async def raise_again(self, admin: Admin) -> None:
        """Restore the highest level of each feature. Raises the errors of `Admin.request`."""
        now = _finalized(await _ask_levels(admin))
        for name, level in [*self._lowered.items()]:
            if now.get(name, 0) >= level or await _set(admin, name, level, _UPGRADE):
                del self._lowered[name]


async def _ask_levels(admin: Admin) -> ApiVersionsResponse:
    asked = ApiVersionsRequest(client_software_name="chaos", client_software_version="1")
    return await admin.request(asked)


def _finalized(known: ApiVersionsResponse) -> Mapping[str, int]:
    return {one.name: one.max_version_level for one in known.finalized_features}


async def _set(admin: Admin, name: str, level: int, kind: int) -> bool:
    update = FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
    request = UpdateFeaturesRequest(timeout_ms=_TIMEOUT_MS, feature_updates=[update])
    return (await admin.request(request)).error_code == 0
