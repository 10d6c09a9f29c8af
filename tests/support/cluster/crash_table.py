"""The crash table (docs/crash-table.md): its rows as stories for real and for simulated brokers.

A topic of one partition and three replicas, `min.insync.replicas` 2, no unclean elections. Replica
`out` is dead from the beginning of each row: the ISR is (`first`, `second`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from quorumlog.wire.codec.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from quorumlog.wire.codec.records import Record, decode_batches, encode_batch
from quorumlog.wire.io.connection import ConnectionLost, KafkaConnection, RequestTimedOut

TOPIC: Final = "kept"
NO_LEADER: Final = -1
BY_NAME: Final = 12  # the last version of Produce and Fetch that names topics
WITHIN_S: Final = 60.0
RECORDS: Final = 5


class Seen(NamedTuple):
    """The state of the partition in the controller's metadata."""

    leader: int
    isr: frozenset[int]
    elr: frozenset[int]

    def is_led(self, leader: int, isr: set[int], elr: set[int]) -> bool:
        """Whether the partition is in this state."""
        return self == (leader, frozenset(isr), frozenset(elr))


class Stage(Protocol):
    """The brokers of one story."""

    async def kill(self, *broker_ids: int) -> None:
        """Kill these brokers at once."""

    async def start(self, broker_id: int) -> None:
        """Start a broker, and return when it is ready."""

    def seen(self) -> Seen:
        """Return the state of the partition."""

    def address(self, broker_id: int) -> tuple[str, int]:
        """Return the address of a broker's Kafka listener."""


class Partition:
    """The partition with its clients. `sent`: all values; `acknowledged`: in their order."""

    def __init__(self, stage: Stage, replicas: tuple[int, int, int]) -> None:
        self.stage: Final = stage
        self.first, self.second, self.out = replicas
        self.acknowledged: Final[list[int]] = []
        self.sent = 0

    async def until(self, holds: Callable[[Seen], object]) -> None:
        """Wait until the state of the partition holds."""
        async with asyncio.timeout(WITHIN_S):
            while not holds(self.stage.seen()):
                await asyncio.sleep(0.05)

    async def until_isr(self, *broker_ids: int) -> None:
        await self.until(lambda seen: seen.isr == {*broker_ids})

    async def _connected(self, broker_id: int | None = None) -> KafkaConnection | None:
        """Connect to a broker, or to the leader; None: there is no leader."""
        if broker_id is None:
            broker_id = self.stage.seen().leader
        if broker_id == NO_LEADER:
            return None
        host, port = self.stage.address(broker_id)
        return await KafkaConnection.open(host, port, client_id="crash table")

    async def write(self) -> ErrorCode:
        """Send the next value with acks=all to the leader; return the outcome."""
        value, self.sent = self.sent, self.sent + 1
        try:
            connection = await self._connected()
            if connection is None:
                return ErrorCode.LEADER_NOT_AVAILABLE
            batch = encode_batch([Record(0, 1_000_000_000_000, None, b"%d" % value)])
            data = PartitionProduceData(index=0, records=batch)
            topic = TopicProduceData(name=TOPIC, partition_data=[data])
            request = ProduceRequest(acks=-1, timeout_ms=2_000, topic_data=[topic])
            answer = await connection.send(request, version=BY_NAME)
            await connection.close()
        except (ConnectionLost, RequestTimedOut):
            return ErrorCode.NETWORK_EXCEPTION
        code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        if code is ErrorCode.NONE:
            self.acknowledged.append(value)
        return code

    async def until_write(self, outcome: ErrorCode) -> None:
        """Send values until one has this outcome; the broker may lag behind the controller."""
        async with asyncio.timeout(WITHIN_S):
            while await self.write() is not outcome:
                await asyncio.sleep(0.05)

    async def read(self, broker_id: int | None = None) -> list[int]:
        """Return the values below the high watermark of a broker, or of the leader, if any."""
        try:
            connection = await self._connected(broker_id)
            if connection is None:
                return []
            place = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
            topic = FetchTopic(topic=TOPIC, partitions=[place])
            request = FetchRequest(
                replica_id=-1, session_epoch=-1, max_bytes=1 << 20, topics=[topic]
            )
            answer = await connection.send(request, version=BY_NAME)
            await connection.close()
        except (ConnectionLost, RequestTimedOut):
            return []
        records = answer.responses[0].partitions[0].records or b""
        return [
            int(record.value or b"")
            for _, batch in decode_batches(bytes(records))  # type: ignore[arg-type]
            for record in batch
        ]

    async def until_read(self, broker_id: int | None = None) -> None:
        """Wait until every acknowledged value can be read, in its order; require no other."""
        async with asyncio.timeout(WITHIN_S):
            while [one for one in await self.read(broker_id) if one in self.acknowledged] != (
                self.acknowledged
            ):
                await asyncio.sleep(0.05)
        found = await self.read(broker_id)
        assert sorted(found) == found
        assert {*found} <= {*range(self.sent)}

    async def set_min_isr(self, number: int) -> None:
        """Alter min.insync.replicas of the topic."""
        connection = await self._connected()
        assert connection is not None
        config = AlterableConfig(name="min.insync.replicas", config_operation=0, value=str(number))
        resource = AlterConfigsResource(resource_type=2, resource_name=TOPIC, configs=[config])
        request = IncrementalAlterConfigsRequest(resources=[resource])
        [answer] = (await connection.send(request)).responses
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        await connection.close()

    async def begin(self) -> None:
        """Bring the partition to the beginning of a row, with acknowledged and readable values."""
        await self.until_isr(self.first, self.second, self.out)
        await self.stage.kill(self.out)
        await self.until_isr(self.first, self.second)
        for _ in range(RECORDS):
            await self.until_write(ErrorCode.NONE)
        await self.until_read()
        await self.until_read(self.second)  # it has the high watermark: it reads no more alone

    async def end(self) -> None:
        """Start the last broker; everything acknowledged is there."""
        await self.stage.start(self.out)
        await self.until_isr(self.first, self.second, self.out)
        await self.until_write(ErrorCode.NONE)
        await self.until_read()


async def row_a(at: Partition) -> None:
    """`first` dies: reads work, writes fail until it is back, or until one replica suffices."""
    await at.stage.kill(at.first)
    await at.until_isr(at.second)
    assert at.stage.seen().is_led(at.second, {at.second}, {at.first})
    await at.until_read()
    await at.until_write(ErrorCode.NOT_ENOUGH_REPLICAS)
    await at.stage.start(at.first)
    await at.until_isr(at.first, at.second)
    await at.until_write(ErrorCode.NONE)
    await at.stage.kill(at.first)
    await at.until_isr(at.second)
    await at.until_write(ErrorCode.NOT_ENOUGH_REPLICAS)
    await at.set_min_isr(1)
    await at.until_write(ErrorCode.NONE)
    await at.until_read()
    await at.set_min_isr(2)
    await at.until_write(ErrorCode.NOT_ENOUGH_REPLICAS)
    await at.stage.start(at.first)
    await at.until_isr(at.first, at.second)


async def both_die_in_turn(at: Partition) -> None:
    """`first` dies, then `second`: no leader."""
    await at.stage.kill(at.first)
    await at.until_isr(at.second)
    await at.stage.kill(at.second)
    await at.until(lambda seen: seen.is_led(NO_LEADER, set(), {at.first, at.second}))


async def row_b(at: Partition) -> None:
    """Both die in turn. Replica `out` never leads; `first` does, as a member of the ELR."""
    await both_die_in_turn(at)
    await at.stage.start(at.out)
    assert at.stage.seen().is_led(NO_LEADER, set(), {at.first, at.second})
    await at.stage.kill(at.out)
    await at.stage.start(at.first)  # without the ELR, only `second` could lead
    await at.until(lambda seen: seen.is_led(at.first, {at.first}, {at.second}))
    await at.until_write(ErrorCode.NOT_ENOUGH_REPLICAS)
    await at.set_min_isr(1)
    await at.until_write(ErrorCode.NONE)
    await at.until_read()
    await at.set_min_isr(2)
    await at.stage.start(at.second)
    await at.until_isr(at.first, at.second)


async def row_c(at: Partition) -> None:
    """Both die in turn, and both come back: all is well."""
    await both_die_in_turn(at)
    await at.stage.start(at.second)
    await at.until(lambda seen: seen.is_led(at.second, {at.second}, {at.first}))
    await at.stage.start(at.first)
    await at.until_isr(at.first, at.second)
    await at.until_write(ErrorCode.NONE)
    await at.until_read()


async def row_d(at: Partition) -> None:
    """Both die at once: either leads when it is back; with both, writes work."""
    await at.stage.kill(at.first, at.second)
    await at.until(lambda seen: seen.leader == NO_LEADER)
    assert at.stage.seen().isr | at.stage.seen().elr == {at.first, at.second}
    await at.stage.start(at.first)
    await at.until(lambda seen: seen.leader == at.first)
    await at.until_write(ErrorCode.NOT_ENOUGH_REPLICAS)
    await at.stage.start(at.second)
    await at.until_isr(at.first, at.second)
    await at.until_write(ErrorCode.NONE)
    await at.until_read()


ROWS: Final[tuple[Callable[[Partition], Awaitable[None]], ...]] = (row_a, row_b, row_c, row_d)


async def tell(at: Partition) -> None:
    """All rows, one after the other, on the same brokers."""
    for row in ROWS:
        await at.begin()
        await row(at)
        await at.end()
