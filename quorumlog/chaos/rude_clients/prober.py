"""A raw client of lookups: versions, ends, leader epochs, far offsets, offsets of a group."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from quorumlog.chaos.history import Message
from quorumlog.chaos.history import exchanges as wire
from quorumlog.chaos.history.exchanges import FAR_AHEAD, FAR_OFFSET
from quorumlog.chaos.rude_clients.cluster_view import Leader
from quorumlog.chaos.rude_clients.connection import RawConnection
from quorumlog.chaos.rude_clients.group_requests import (
    commit_fact,
    commit_request,
    coordinator_of,
    coordinator_request,
    group_fact,
    group_offset_request,
    group_version,
)
from quorumlog.chaos.rude_clients.raw_client import RawClient
from quorumlog.chaos.rude_clients.read_requests import (
    FETCH_EPOCHS_SINCE,
    LOOKUP_EPOCHS_SINCE,
    OneFetch,
    fetch_fact,
    fetch_request,
    fetch_version,
    look_at_the_end,
    lookup_fact,
    lookup_request,
    lookup_version,
)

_EARLIEST: Final = -2
_FIRST_TIME: Final = 0  # a timestamp before that of each record
_SHARE_OF_GHOSTS: Final = 0.4
_GHOST_OFFSET: Final = 1_000_000
Facts = list[Message]
Probe = Callable[[int, Leader, RawConnection], Coroutine[Any, Any, Facts]]


class Prober(RawClient):
    """Sends one kind of question after the other, each to the leader of a drawn partition."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._group: Final = f"rude-{next(self.numbers.pairs)}"
        self._committed = 0

    async def run(self, working: asyncio.Event, gap_s: float) -> None:
        """Send a question every `gap_s` on average, until `working` is cleared."""
        probes: list[tuple[str, Probe]] = [
            ("wire_lookup", self._lookups),
            ("wire_fetch", self._fetches),
            ("wire_lookup", self._end),
            ("wire_lookup", self._epochs),
            ("wire_fetch", self._far),
            ("wire_group", self._group_offsets),
        ]
        try:
            while working.is_set():
                await asyncio.sleep(self.rng.expovariate(1 / gap_s))
                f, probe = self.rng.choice(probes)
                if not await self._probe(f, probe):
                    await self.pause()
        finally:
            await self.view.close()

    async def _probe(self, f: str, probe: Probe) -> bool:
        """Send a question; return whether the leader answered without an error."""
        partition = self.rng.randrange(self.partitions)
        leader = self.view.leaders.get(partition)
        if leader is None:
            return False
        connection = await self.view.connection(leader.node)
        if connection is None:
            return False
        self.begin(f)
        facts = await probe(partition, leader, connection)
        self.end(f, facts)
        return not connection.is_closed and self.rng.random() > 0.05

    def _known(self, partition: int) -> int:
        """Return the offset of a committed record, or 0."""
        furthest = max(0, self.history.furthest.get(self.key(partition), 0))
        return self.rng.randrange(furthest + 1)

    async def _lookups(self, partition: int, leader: Leader, connection: RawConnection) -> Facts:
        """Look up the first offset, and the first at or after a time, in two versions each."""
        del leader
        timestamp, pair = self.rng.choice((_EARLIEST, _FIRST_TIME)), next(self.numbers.pairs)
        versions = [lookup_version(self, connection) for _ in range(2)]
        request = lookup_request(self, partition, timestamp)
        pending = [connection.send(request, version) for version in versions]
        return [
            lookup_fact(self, partition, timestamp, await connection.within(one), pair=pair)
            for one in pending
        ]

    async def _fetches(self, partition: int, leader: Leader, connection: RawConnection) -> Facts:
        offset, pair = self._known(partition), next(self.numbers.pairs)
        fetches = [
            OneFetch(partition, offset, leader.epoch, fetch_version(self, connection), pair=pair)
            for _ in range(2)
        ]
        return await self._fetch_all(connection, fetches)

    async def _fetch_all(self, connection: RawConnection, fetches: Sequence[OneFetch]) -> Facts:
        pending = [connection.send(fetch_request(self, one), one.version) for one in fetches]
        return [
            fetch_fact(self, one, await connection.within(future))
            for one, future in zip(fetches, pending, strict=True)
        ]

    async def _end(self, partition: int, leader: Leader, connection: RawConnection) -> Facts:
        """Look up the end, and fetch behind it."""
        return await look_at_the_end(
            self, connection, partition, self._known(partition), epoch=leader.epoch
        )

    async def _epochs(self, partition: int, leader: Leader, connection: RawConnection) -> Facts:
        """Send the leader's epoch, then an older one and one that does not exist."""
        if leader.epoch < 0:
            return []
        epochs = [leader.epoch, leader.epoch + FAR_AHEAD]
        epochs += [self.rng.randrange(leader.epoch)] if leader.epoch > 0 else []
        lookup = self.rng.random() < 0.5
        if lookup:
            version = lookup_version(self, connection, least=LOOKUP_EPOCHS_SINCE)
            requests = [
                lookup_request(self, partition, wire.LATEST, leader_epoch=one) for one in epochs
            ]
            pending = [connection.send(one, version) for one in requests]
            return [
                lookup_fact(
                    self, partition, wire.LATEST, await connection.within(one), leader_epoch=epoch
                )
                for epoch, one in zip(epochs, pending, strict=True)
            ]
        version = fetch_version(self, connection, least=FETCH_EPOCHS_SINCE)
        fetches = [OneFetch(partition, self._known(partition), one, version) for one in epochs]
        return await self._fetch_all(connection, fetches)

    async def _far(self, partition: int, leader: Leader, connection: RawConnection) -> Facts:
        offset = FAR_OFFSET + self.rng.randrange(1 << 20)
        one = OneFetch(partition, offset, leader.epoch, fetch_version(self, connection))
        return await self._fetch_all(connection, [one])

    async def _group_offsets(
        self, partition: int, leader: Leader, connection: RawConnection
    ) -> Facts:
        """Commit an offset for a group of its own, and request it in two versions.

        At times a member that does not exist commits another offset in between.
        """
        del leader
        answered = await connection.exchange(*coordinator_request(self, connection, self._group))
        node = -1 if answered.response is None else coordinator_of(answered.response)
        coordinator = None if node < 0 else await self.view.connection(node)
        if coordinator is None:
            return []
        self._committed += 1
        facts = [await self._commit(coordinator, partition, self._committed)]
        if self.rng.random() < _SHARE_OF_GHOSTS:
            offset = self._committed + _GHOST_OFFSET
            facts.append(await self._commit(coordinator, partition, offset, is_ghost=True))
        pair = next(self.numbers.pairs)
        versions = [group_version(self, coordinator) for _ in range(2)]
        pending = [
            coordinator.send(group_offset_request(self, self._group, partition, one), one)
            for one in versions
        ]
        for one in pending:
            answered = await coordinator.within(one)
            facts.append(group_fact(self, self._group, partition, answered, pair))
        return facts

    async def _commit(
        self, coordinator: RawConnection, partition: int, offset: int, *, is_ghost: bool = False
    ) -> Message:
        request = commit_request(
            self, coordinator, self._group, partition, offset, is_ghost=is_ghost
        )
        answered = await coordinator.exchange(*request)
        return commit_fact(self, self._group, partition, offset, answered, is_ghost=is_ghost)
