"""A driver whose broker has a log per partition and one group, with faults of a coordinator."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from quorumlog.chaos.drivers.driver import DriverError, Membership, Rebalance, Record
from tests.support.chaos.log_in_memory import TOPIC, LogInMemory

POLL_RECORDS = 7


class GroupInMemory(LogInMemory):
    """A driver with groups. A test replaces the hooks below by faulty ones."""

    capabilities = frozenset({"groups"})

    def __init__(self, partitions: int = 2) -> None:
        super().__init__(partitions)
        self.members: list[Member] = []
        self.protocols: set[str] = set()  # by which members have joined
        self.generation = 0
        self.committed: dict[int, int] = {}
        self.commits = 0
        self.take_commit: Callable[[Mapping[int, int]], None] = self.keep
        self.answer: Callable[[dict[int, int]], dict[int, int]] = dict
        self.resume: Callable[[int], int] = lambda offset: offset
        self.deliver: Callable[[list[Record]], list[Record]] = list
        self.owners: Callable[[int, int], int] = lambda partition, count: partition % count
        self.next_generation: Callable[[int], int] = lambda generation: generation + 1
        self.refuses_zombies = True

    def keep(self, offsets: Mapping[int, int]) -> None:
        """Commit, as a coordinator should."""
        self.commits += 1
        self.committed |= offsets

    async def member(self, bootstrap: str, client_id: str, membership: Membership) -> "Member":
        assert (bootstrap, client_id[0]) == ("b", "m")
        assert membership.group_id
        self.protocols.add(membership.protocol)
        self.open += 1
        return Member(self)

    def rebalance(self) -> None:
        """Give each partition to a member."""
        self.generation = self.next_generation(self.generation)
        for place, member in enumerate(self.members):
            member.next = [
                partition
                for partition in range(len(self.logs))
                if self.owners(partition, len(self.members)) == place
            ]
            member.joins = True


class Member:
    """A member. It learns of a rebalance when it polls, as real ones do."""

    def __init__(self, group: GroupInMemory) -> None:
        self._group = group
        self._positions: dict[int, int] = {}
        self._changes: list[Rebalance] = []
        self._generation = -1
        self.next: list[int] = []
        self.joins = False

    async def subscribe(self, topic: str) -> None:
        assert topic == TOPIC
        self._group.members.append(self)
        self._group.rebalance()

    async def poll(self, timeout_ms: int) -> list[Record]:
        assert timeout_ms
        await asyncio.sleep(0.005)
        group = self._group
        if self.joins:
            self._rejoin()
        records = [
            group.record(partition, offset, value)
            for partition, position in self._positions.items()
            for offset, value in enumerate(group.logs[partition])
            if position <= offset < position + POLL_RECORDS
        ]
        self._positions |= {record.partition: record.offset + 1 for record in records}
        return group.deliver(records)

    def _rejoin(self) -> None:
        group, self.joins = self._group, False
        self._note("revoked", [*self._positions])
        self._generation = group.generation
        self._positions = {
            partition: group.resume(group.committed.get(partition, 0)) for partition in self.next
        }
        self._note("assigned", self.next)

    def _note(self, change: str, partitions: Sequence[int]) -> None:
        self._changes.append(Rebalance(change, tuple(partitions), self._generation))

    def rebalances(self) -> list[Rebalance]:
        changes, self._changes = self._changes, []
        return changes

    def generation(self) -> int:
        return self._generation

    async def commit(self, topic: str, offsets: Mapping[int, int]) -> None:
        assert topic == TOPIC
        await asyncio.sleep(0)
        group = self._group
        if group.refuses_zombies and self._generation != group.generation:
            raise DriverError("ILLEGAL_GENERATION", definite=True)
        group.take_commit(offsets)

    async def committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        assert topic == TOPIC
        await asyncio.sleep(0)
        return self._group.answer(
            {
                index: self._group.committed[index]
                for index in partitions
                if index in self._group.committed
            }
        )

    async def close(self) -> None:
        self._group.open -= 1
        if self in self._group.members:
            self._group.members.remove(self)
            self._group.rebalance()
