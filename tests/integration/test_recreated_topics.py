"""Clients that live on while a topic is deleted and created again under its name."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Literal

import pytest

from quorumlog import Admin, Consumer, LocalCluster, Producer
from quorumlog.client import KafkaError, NewTopic, TopicPartition
from quorumlog.client.rebalance_listener import Partitions, RebalanceListener
from quorumlog.wire.codec.error_codes import ErrorCode

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("recreated_topics")]
TOPIC, X = "x", TopicPartition("x", 0)
Start = Callable[[Consumer], None]
LIVES = 3
SOON = {  # members of the consumer protocol learn of a new topic by their heartbeats
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(nodes=1, config=SOON) as running:
        yield running


class Life:
    """The topic `x` of a cluster, with its administrator and its producer."""

    def __init__(self, admin: Admin, producer: Producer) -> None:
        self.admin = admin
        self.producer = producer

    async def create(self) -> None:
        """Delete the topic, if it is there, and create it at once."""
        if TOPIC in await self.admin.list_topics():
            await self.admin.delete_topics([TOPIC])
        await self.admin.create_topics([NewTopic(TOPIC, num_partitions=1, replication_factor=1)])

    async def send(self, *values: bytes) -> None:
        for value in values:
            await self.producer.send_and_wait(TOPIC, value, partition=0)


@asynccontextmanager
async def living(cluster: LocalCluster) -> AsyncIterator[Life]:
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        life = Life(admin, producer)
        await life.create()
        yield life


async def read(consumer: Consumer, until: bytes) -> list[bytes]:
    got: list[bytes] = []
    async with asyncio.timeout(20):
        while until not in got:
            for records in (await consumer.poll(200)).values():
                got += [record.value or b"" for record in records]
    return got


def alone(consumer: Consumer) -> None:
    consumer.assign([X])


def subscribed(consumer: Consumer) -> None:
    consumer.subscribe([TOPIC])


@pytest.mark.parametrize(
    ("start", "protocol"), [(alone, "classic"), (subscribed, "classic"), (subscribed, "consumer")]
)
def test_every_life_of_a_topic_is_read_from_its_begin(
    cluster: LocalCluster,
    start: Start,
    protocol: Literal["classic", "consumer"],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with (
            living(cluster) as life,
            Consumer(
                cluster.bootstrap,
                group_id=f"{start.__name__}-{protocol}",
                group_protocol=protocol,
                auto_offset_reset="earliest",
                auto_commit_interval_ms=100,
            ) as consumer,
        ):
            start(consumer)
            for number in range(LIVES):
                values = [b"%d-%d" % (number, index) for index in range(4)]
                await life.send(*values[:3])
                first = await read(consumer, values[2])
                await life.send(values[3])
                assert first + await read(consumer, values[3]) == values
                if number < LIVES - 1:
                    await life.create()

    asyncio.run(main())
    moved = [record for record in caplog.records if "created again" in record.getMessage()]
    assert len(moved) == (0 if protocol == "consumer" else LIVES - 1)


def test_an_offset_of_a_deleted_topic_is_not_committed_for_its_successor(
    cluster: LocalCluster,
) -> None:
    async def main() -> None:
        async with (
            living(cluster) as life,
            Consumer(
                cluster.bootstrap,
                group_id="late",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
            ) as consumer,
        ):
            consumer.assign([X])
            await life.send(b"a", b"b")
            await read(consumer, b"b")
            await life.create()
            await life.send(b"c")
            with pytest.raises(KafkaError) as refused:
                await consumer.commit({X: 2})
            assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_ID
            assert await consumer.committed([X]) == {}
            assert await read(consumer, b"c") == [b"c"]
            await consumer.commit()
            assert (await consumer.committed([X]))[X].offset == 1

    asyncio.run(main())


def test_without_a_policy_a_recreated_topic_is_an_error(cluster: LocalCluster) -> None:
    async def main() -> None:
        async with (
            living(cluster) as life,
            Consumer(cluster.bootstrap, auto_offset_reset="none") as consumer,
        ):
            consumer.assign([X])
            consumer.seek(X, 0)
            await life.send(b"a")
            await read(consumer, b"a")
            await life.create()
            await life.send(b"b")
            with pytest.raises(KafkaError, match="created again"):
                await read(consumer, b"b")
            consumer.seek_to_beginning(X)
            assert await read(consumer, b"b") == [b"b"]

    asyncio.run(main())


def test_a_position_below_the_log_start_moves_with_one_line_of_the_log(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with (
            living(cluster) as life,
            Consumer(cluster.bootstrap, client_id="late", auto_offset_reset="earliest") as consumer,
        ):
            await life.send(b"a", b"b", b"c", b"d")
            await life.admin.delete_records({X: 3})
            consumer.assign([X])
            consumer.seek(X, 1)
            assert await read(consumer, b"d") == [b"d"]

    asyncio.run(main())
    moved = [one.getMessage() for one in caplog.records if "moves from" in one.getMessage()]
    why = "offset 1 is out of range (auto_offset_reset=earliest)"
    assert moved == [f"late: x-0: the position moves from 1 to 3: {why}"]


class Listening(RebalanceListener):
    """Notes the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Partitions]] = []

    async def on_partitions_assigned(self, partitions: Partitions) -> None:
        self.calls.append(("assigned", partitions))

    async def on_partitions_revoked(self, partitions: Partitions) -> None:
        self.calls.append(("revoked", partitions))

    async def on_partitions_lost(self, partitions: Partitions) -> None:
        self.calls.append(("lost", partitions))


def test_a_member_gives_up_the_deleted_topic_and_gets_the_new_one(cluster: LocalCluster) -> None:
    listener = Listening()

    async def main() -> None:
        async with (
            living(cluster) as life,
            Consumer(
                cluster.bootstrap,
                group_id="listening",
                group_protocol="consumer",
                auto_offset_reset="earliest",
            ) as consumer,
        ):
            consumer.subscribe([TOPIC], listener)
            await life.send(b"a")
            await read(consumer, b"a")
            await life.create()
            await life.send(b"b")
            assert await read(consumer, b"b") == [b"b"]

    asyncio.run(main())
    both = frozenset({X})
    calls = [call for call in listener.calls if call[1]]
    assert calls[:3] == [("assigned", both), ("revoked", both), ("assigned", both)]


def test_a_producer_goes_on_in_the_new_topic(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Its numbers go on: the new log takes any number from a producer that it does not know."""
    caplog.set_level(logging.DEBUG, "quorumlog.client")

    async def main() -> None:
        async with (
            living(cluster) as life,
            Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer,
        ):
            await life.send(b"old")
            await life.create()
            values = [b"%d" % index for index in range(50)]
            deliveries = [await life.producer.send(TOPIC, one, partition=0) for one in values]
            places = [await delivery for delivery in deliveries]
            assert [place.offset for place in places] == [*range(50)]
            consumer.assign([X])
            assert await read(consumer, values[-1]) == values

    asyncio.run(main())
