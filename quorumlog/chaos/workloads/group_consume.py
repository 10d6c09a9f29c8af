"""group_consume: producers append, the members of one group consume and commit after processing.

It proves or refutes at-least-once: every acknowledged record is delivered to the group, through all
joins, leaves, stalls and faults; committed offsets are kept and never go back; a new owner
continues at the committed offset; a member of an old generation cannot commit. The checker is
`group_log`.

A member polls, then commits the processed offsets, synchronously. It lives for some polls; then it
leaves, and another takes its place. Some members stall first: they stop polling for so long that
the group continues without them, and then try to commit their processed offsets. Static members
(`static`) come back under their names. In the end, all members poll until the group has committed
the end of every partition.

A history holds, beside sends and final reads (`f`):

  join        the member subscribes; micro-operations of the consumer protocol: `joined` for each
              key (value: -1, as it has no generations).
  group_poll  micro-operations in the order in which they happened: `assigned`, `revoked` and `lost`
              (key; value: the generation, -1 if the driver does not report it), and `group_poll`
              for each record.
  commit      the next offset to read of each key; value: the generation of the member, if it was
              the same before and after the call.
  committed   the group's committed offsets, requested by a member; offset -1: no offset.
"""

import asyncio
import random
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from quorumlog.chaos.drivers.driver import (
    NO_GENERATION,
    CallTimedOut,
    DriverError,
    DriverProducer,
    GroupDriver,
    GroupMember,
    Membership,
    Rebalance,
)
from quorumlog.chaos.history import UNKNOWN_OFFSET, Message
from quorumlog.chaos.workloads.lanes import Lanes
from quorumlog.chaos.workloads.readers import key_of, message_of
from quorumlog.chaos.workloads.sends import keep_sending, send_one
from quorumlog.chaos.workloads.workload import (
    REOPEN_S,
    LaneOptions,
    Setup,
    Workload,
    before,
    opened,
    option,
    use_clients,
)

_POLL_MS: Final = 200
_COMMITTED_EVERY: Final = 8  # polls, on average
_SESSION_TIMEOUT_MS: Final = 6_000  # the least that a broker allows by default


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConsumeOptions(LaneOptions):
    """The number of clients, the rate of sends, and the lives of members."""

    rate: float = option(300.0, "sends a second of all producers, while brokers answer")
    producers: int = option(4, "clients that send, one record at a time each")
    consumers: int = option(3, "members of the group at a time")
    final_readers: int = option(1, "clients that read everything at the end, without the group")
    polls_per_life: float = option(25.0, "polls before a member leaves, on average", above=1)
    stalls: float = option(0.25, "the share of members that stall before they leave", above=-1)
    static: int = option(0, "static members (KIP-345)", above=-1)
    max_poll_interval_ms: int = option(3_000, "a member that polls less often loses its partitions")


class _Member:
    """One life of a member: one process of the history.

    Invariant: it commits only offsets below which every record was delivered to it, of partitions
    that it owns.
    """

    def __init__(
        self, member: GroupMember, process: int, setup: Setup[GroupConsumeOptions]
    ) -> None:
        self._member: Final = member
        self._process: Final = process
        self._topic: Final = setup.topic
        self._history: Final = setup.history
        self._partitions: Final = range(setup.partitions)
        self._changes: list[Rebalance] = []  # seen, and not yet written
        self._processed: dict[int, int] = {}  # the next offset of each partition

    async def join(self, protocol: str) -> None:
        """Subscribe. Raises DriverError."""
        keys = [key_of(self._topic, index) for index in self._partitions]
        by_consumer = [Message(key, UNKNOWN_OFFSET, NO_GENERATION, f="joined") for key in keys]
        joined = by_consumer if protocol == "consumer" else []
        self._history.append(self._process, "invoke", "join", joined)
        try:
            await self._member.subscribe(self._topic)
        except DriverError as error:
            self._history.append(self._process, "info", "join", joined, error=str(error))
            raise
        self._history.append(self._process, "ok", "join", joined)

    async def poll(self) -> None:
        """Poll, and process the records. Raises CallTimedOut: discard this member."""
        self._history.append(self._process, "invoke", "group_poll")
        error_text, outcome = "", "ok"
        try:
            records = await self._member.poll(_POLL_MS)
        except CallTimedOut as error:
            self._history.append(self._process, "info", "group_poll", error=str(error))
            raise
        except DriverError as error:  # no records were returned, and no position has moved
            records, outcome, error_text = [], "fail", str(error)
        told = self._told_changes()
        for record in records:
            told.append(message_of(record)._replace(f="group_poll"))
            self._processed[record.partition] = record.offset + 1
        self._history.append(self._process, outcome, "group_poll", told, error=error_text)
        if outcome == "fail":
            await asyncio.sleep(REOPEN_S)

    def _told_changes(self) -> list[Message]:
        """Return the rebalances since the last poll; forget the offsets of changed partitions.

        Partitions that were added to the topic meanwhile stay empty: no reader reads them.
        """
        changes = [*self._changes, *self._member.rebalances()]
        self._changes = []
        told = []
        for change in changes:
            for partition in (one for one in change.partitions if one in self._partitions):
                key = key_of(self._topic, partition)
                told.append(Message(key, UNKNOWN_OFFSET, change.generation, f=change.change))
                self._processed.pop(partition, None)
        return told

    async def commit(self) -> None:
        """Commit the processed offsets, unless a rebalance has happened meanwhile."""
        self._changes += self._member.rebalances()
        if self._changes or not self._processed:
            return
        offsets, before = {**self._processed}, self._member.generation()
        self._history.append(self._process, "invoke", "commit", self._places(offsets, before))
        outcome, error_text = "ok", ""
        try:
            await self._member.commit(self._topic, offsets)
        except DriverError as error:
            outcome, error_text = "fail" if error.definite else "info", str(error)
        is_same = self._member.generation() == before
        places = self._places(offsets, before if is_same else NO_GENERATION)
        self._history.append(self._process, outcome, "commit", places, error=error_text)

    async def ask_committed(self) -> dict[int, int]:
        """Return the group's committed offsets; {} if the request failed."""
        asked = self._places(dict.fromkeys(self._partitions, UNKNOWN_OFFSET), 0)
        self._history.append(self._process, "invoke", "committed", asked)
        try:
            found = await self._member.committed(self._topic, self._partitions)
        except DriverError as error:
            self._history.append(self._process, "fail", "committed", asked, error=str(error))
            return {}
        known = {index: found.get(index, UNKNOWN_OFFSET) for index in self._partitions}
        self._history.append(self._process, "ok", "committed", self._places(known, 0))
        return found

    def _places(self, offsets: Mapping[int, int], value: int) -> list[Message]:
        return [
            Message(key_of(self._topic, index), offset, value) for index, offset in offsets.items()
        ]

    async def close(self) -> None:
        """Leave the group; a static member stays in it."""
        await self._member.close()


class GroupConsume(Lanes[GroupConsumeOptions]):
    """The lanes of one run. Process numbers: producers, members, final readers, then again."""

    protocol = "classic"

    def __init__(self, setup: Setup[GroupConsumeOptions]) -> None:
        super().__init__(setup)
        options = setup.options
        self._processes = {lane: options.producers + lane for lane in range(options.consumers)}

    def consumers(self, working: asyncio.Event) -> Iterable[Coroutine[Any, Any, None]]:
        """Return the work of the members."""
        rng = self._setup.rng
        return [self._consume(lane, rng(f"member {lane}"), working) for lane in self._processes]

    async def produce(self, lane: int, rng: random.Random, working: asyncio.Event) -> None:
        """Send one value after the other."""
        setup, options = self._setup, self._setup.options
        gap_s = options.producers / options.rate

        async def send(producer: DriverProducer, process: int) -> bool:
            value, self._next_value = self._next_value, self._next_value + 1
            return await send_one(setup, producer, process, rng.randrange(setup.partitions), value)

        processes = self.processes(lane)
        await keep_sending(setup, processes, working, send, rng=rng, gap_s=gap_s)

    def _protocol(self, rng: random.Random) -> str:
        del rng
        return self.protocol

    async def _open(self, lane: int, rng: random.Random) -> tuple[int, _Member | None]:
        """Join the group as the next member of a lane; None if no broker answers."""
        setup, options = self._setup, self._setup.options
        membership = Membership(
            group_id=f"{setup.topic}-group",
            protocol=self._protocol(rng),
            instance_id=f"member-{lane}" if lane < options.static else None,
            session_timeout_ms=_SESSION_TIMEOUT_MS,
            max_poll_interval_ms=options.max_poll_interval_ms,
        )
        process = self._processes[lane]
        driver = cast(GroupDriver, setup.driver)
        client = await opened(driver.member(setup.bootstrap, f"m{process}", membership))
        if client is None:
            return process, None
        self._processes[lane] = self.next_process(process)
        member = _Member(client, process, setup)
        try:
            await member.join(membership.protocol)
        except DriverError:
            await member.close()
            return process, None
        return process, member

    async def _consume(self, lane: int, rng: random.Random, working: asyncio.Event) -> None:

        async def live(member: _Member, _: int) -> bool:
            await self._live(member, rng, working)
            return False

        await use_clients(working.is_set, lambda: self._open(lane, rng), live)

    async def _live(self, member: _Member, rng: random.Random, working: asyncio.Event) -> None:
        options = self._setup.options
        while working.is_set():
            await member.poll()
            if rng.random() < 1 / options.polls_per_life:
                break
            await member.commit()
            if rng.random() < 1 / _COMMITTED_EVERY:
                await member.ask_committed()
        else:
            await member.commit()
            return
        # Its last poll is not committed: the next owner gets the records again.
        if rng.random() < options.stalls:
            stalled_ms = options.max_poll_interval_ms * (1 + rng.random())
            for _ in range(round(stalled_ms / _POLL_MS)):
                if working.is_set():
                    await asyncio.sleep(_POLL_MS / 1000)
            await member.commit()  # refused if the group has removed the member

    async def final_reads(self, timeout_s: float) -> bool:
        """Read every log to its end, and let the group commit the end of every partition."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        if not await super().final_reads(timeout_s):
            return False
        ends = await self._ends(deadline_s)
        lanes = range(self._setup.options.consumers)
        drains = (self._drain(lane, ends, deadline_s) for lane in lanes)
        return bool(ends) and all(await asyncio.gather(*drains))

    async def _ends(self, deadline_s: float) -> dict[int, int]:
        """Return the end offsets after the producers have stopped; {} if no broker answers."""
        setup = self._setup
        while before(deadline_s):
            consumer = await opened(setup.driver.consumer(setup.bootstrap, "c-ends"))
            if consumer is None:
                continue
            try:
                return await consumer.end_offsets(setup.topic, range(setup.partitions))
            except ConnectionError:
                await asyncio.sleep(REOPEN_S)
            finally:
                await consumer.close()
        return {}

    async def _drain(self, lane: int, ends: Mapping[int, int], deadline_s: float) -> bool:
        """Poll and commit until the group has committed `ends`; return whether it has."""
        rng, is_done = self._setup.rng(f"drain {lane}"), False

        async def drain(member: _Member, _: int) -> bool:
            nonlocal is_done
            await member.poll()
            await member.commit()
            committed = await member.ask_committed()
            is_done = all(committed.get(index, 0) >= end for index, end in ends.items())
            return True

        await use_clients(
            lambda: not is_done and before(deadline_s), lambda: self._open(lane, rng), drain
        )
        return is_done


WORKLOAD: Final = Workload(
    name="group_consume",
    text="a group consumes and commits while members join and leave; all records are delivered",
    options=GroupConsumeOptions,
    clients=GroupConsume,
    model="group_log",
    dense=True,
    requires=frozenset({"groups"}),
)
