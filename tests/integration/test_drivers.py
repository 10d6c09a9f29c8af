"""Every driver keeps the protocol of drivers/driver.py, against one real cluster."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from quorumlog.chaos.drivers.driver import (
    CAPABILITIES,
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    NO_GENERATION,
    AnyDriver,
    Batching,
    DriverError,
    Membership,
    OffsetAt,
    Record,
    SendFailed,
)
from quorumlog.chaos.drivers.registry import DRIVERS, DriverUnavailable, load_driver
from quorumlog.chaos.history import UNKNOWN_OFFSET
from quorumlog.cluster import LocalCluster
from tests.support.groups.raw_members import ONE_COORDINATOR, coordinator_of

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("drivers")]

CLOCK_MS = 1_000_000_000_000  # of records: topics that keep them for ever
NEVER_DELETED = {"retention.ms": "-1"}
WAIT_S = 60.0
POLL_PAUSE_S = 0.1
ClientT = TypeVar("ClientT")


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with LocalCluster(nodes=1) as cluster:
        yield cluster.bootstrap


@pytest.fixture(params=sorted(DRIVERS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def driver(name: str) -> AnyDriver:
    try:
        return load_driver(name)
    except DriverUnavailable as error:
        pytest.skip(str(error))


@asynccontextmanager
async def closing(client: Any) -> AsyncIterator[Any]:
    try:
        yield client
    finally:
        await client.close()


async def polled(poll: Callable[[int], Any], count: int) -> list[Record]:
    records: list[Record] = []
    async with asyncio.timeout(WAIT_S):
        while len(records) < count:
            records += await poll(200)
    return records


async def create_and_fill(
    driver: AnyDriver, bootstrap: str, topic: str, *, replication_factor: int = 1
) -> None:
    """Make a topic with five records in each of two partitions, offset n at CLOCK_MS + n."""
    await driver.create_topic(
        bootstrap, topic, partitions=2, replication_factor=replication_factor, config=NEVER_DELETED
    )
    batching = Batching(linger_ms=5, compression="lz4")
    async with closing(await driver.producer(bootstrap, "p", batching)) as producer:
        pending = [
            await producer.send(
                topic,
                partition,
                b"%d" % offset,
                key=b"k",
                headers=(("h", b"v"),),
                timestamp_ms=CLOCK_MS + offset,
            )
            for offset in range(5)
            for partition in range(2)
        ]
        assert [await one for one in pending] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


async def test_what_is_sent_is_read_with_key_headers_and_time(
    name: str, driver: AnyDriver, bootstrap: str
) -> None:
    topic = f"sent-{name}"
    await create_and_fill(driver, bootstrap, topic)
    async with closing(await driver.consumer(bootstrap, "c")) as consumer:
        await consumer.assign(topic, [0, 1])
        records = await polled(consumer.poll, 10)
        assert await consumer.poll(50) == []
        assert await consumer.end_offsets(topic, [0, 1]) == {0: 5, 1: 5}
        await consumer.assign(topic, [1])  # from the beginning, again
        again = await polled(consumer.poll, 5)
    for partition in range(2):
        assert [record for record in records if record.partition == partition] == [
            Record(topic, partition, n, b"%d" % n, b"k", (("h", b"v"),), CLOCK_MS + n)
            for n in range(5)
        ]
    assert {(record.partition, record.offset) for record in again} == {(1, n) for n in range(5)}


async def test_a_producer_of_kafka_python_ends_with_a_record_in_flight(bootstrap: str) -> None:
    """Its library closes nothing while a record is in flight, and would send it later."""
    driver = load_driver("kafka-python")
    await driver.create_topic(bootstrap, "closed", partitions=1, replication_factor=1)
    before = {*threading.enumerate()}
    producer = await driver.producer(bootstrap, "p", Batching(linger_ms=2_000))
    pending = await producer.send("closed", 0, b"1")
    await producer.close()
    with contextlib.suppress(SendFailed):  # it may have been sent, but is not sent any more
        await pending
    for thread in {*threading.enumerate()} - before:
        await asyncio.to_thread(thread.join, WAIT_S)
        assert not thread.is_alive()


async def test_offsets_are_asked_for_by_time(name: str, driver: AnyDriver, bootstrap: str) -> None:
    assert driver.capabilities <= CAPABILITIES.keys()
    if "offsets" not in driver.capabilities:
        pytest.skip("the driver does not ask for offsets")
    topic = f"times-{name}"
    await create_and_fill(driver, bootstrap, topic)
    expected = {
        EARLIEST: OffsetAt(0, -1),
        LATEST: OffsetAt(5, -1),
        CLOCK_MS + 3: OffsetAt(3, CLOCK_MS + 3),
        CLOCK_MS + 5: OffsetAt(-1, -1),
    }
    if "max-timestamp" in driver.capabilities:
        expected[MAX_TIMESTAMP] = OffsetAt(4, CLOCK_MS + 4)
    async with closing(await driver.offsets(bootstrap, "o")) as lookup:
        for asked, answer in expected.items():
            assert await lookup.ask(topic, {0: asked, 1: asked}) == {0: answer, 1: answer}


async def test_a_member_goes_on_where_its_group_has_committed(
    name: str, driver: AnyDriver, bootstrap: str
) -> None:
    if "groups" not in driver.capabilities:
        pytest.skip("the driver joins no groups")
    topic = f"groups-{name}"
    await create_and_fill(driver, bootstrap, topic)
    membership = Membership(group_id=topic)
    async with closing(await driver.member(bootstrap, "m", membership)) as member:
        await member.subscribe(topic)
        assert len(await polled(member.poll, 10)) == 10
        last = [one for one in member.rebalances() if one.change == "assigned"][-1]
        assert last.partitions == (0, 1)
        assert last.generation == member.generation()
        assert member.generation() == NO_GENERATION or member.generation() > 0
        assert await member.committed(topic, [0, 1]) == {}
        await member.commit(topic, {0: 5, 1: 3})
        assert await member.committed(topic, [0, 1]) == {0: 5, 1: 3}
    async with closing(await driver.member(bootstrap, "m", membership)) as member:
        await member.subscribe(topic)
        places = {(record.partition, record.offset) for record in await polled(member.poll, 2)}
    assert places == {(1, 3), (1, 4)}


async def test_a_record_acknowledged_without_an_offset_has_an_unknown_offset() -> None:
    """The library of aiokafka counts offsets from the -1 of the response: 0, 1, ..."""
    with LocalCluster(nodes=1, node_module="tests.support.node.repeated_batches") as cluster:
        for name in sorted(DRIVERS):
            with contextlib.suppress(DriverUnavailable):
                driver = load_driver(name)
                topic = f"repeated-{name}"
                await driver.create_topic(
                    cluster.bootstrap, topic, partitions=1, replication_factor=1
                )
                batching = Batching(linger_ms=50, compression="none")
                producer = await driver.producer(cluster.bootstrap, "p", batching)
                async with closing(producer):
                    pending = [await producer.send(topic, 0, b"%d" % one) for one in range(3)]
                    assert [await one for one in pending] == [UNKNOWN_OFFSET] * 3, name


async def commit_by_a_member(driver: AnyDriver, bootstrap: str, group_id: str) -> None:
    topic = group_id
    await create_and_fill(driver, bootstrap, topic, replication_factor=3)
    async with closing(
        await driver.member(bootstrap, "m", Membership(group_id=group_id))
    ) as member:
        await member.subscribe(topic)
        await polled(member.poll, 10)
        await member.commit(topic, {0: 5, 1: 3})


async def test_a_stale_coordinator_is_no_group_without_offsets() -> None:
    """The clients still ask the killed coordinator, which returns as a follower (KIP-88)."""
    drivers = {}
    for name in sorted(DRIVERS):
        with contextlib.suppress(DriverUnavailable):
            drivers[f"stale-{name}"] = load_driver(name)
    async with contextlib.AsyncExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(nodes=3, config=ONE_COORDINATOR))
        bootstrap = cluster.bootstrap
        for group_id, driver in drivers.items():
            await commit_by_a_member(driver, bootstrap, group_id)
        readers = {
            group_id: await stack.enter_async_context(
                closing(await driver.reader(bootstrap, "r", group_id))
            )
            for group_id, driver in drivers.items()
        }
        for group_id, reader in readers.items():
            assert await reader.committed(group_id, [0, 1]) == {0: 5, 1: 3}
        host, port = await coordinator_of(bootstrap, [*drivers])
        [stale] = [node.id for node in cluster.nodes if node.kafka == f"{host}:{port}"]
        others = ",".join(node.kafka for node in cluster.nodes if node.id != stale)
        cluster.kill(stale)
        while await coordinator_of(others, [*drivers]) == (host, port):
            await asyncio.sleep(POLL_PAUSE_S)
        await asyncio.to_thread(cluster.start)
        for group_id, reader in readers.items():
            for _ in range(3):
                assert await reader.committed(group_id, [0, 1]) == {0: 5, 1: 3}


async def test_a_transaction_is_seen_whole_or_not_at_all_and_its_successor_fences(
    name: str, driver: AnyDriver, bootstrap: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "transactions" in driver.capabilities
    topic = f"transactions-{name}"
    await driver.create_topic(bootstrap, topic, partitions=1, replication_factor=1)
    async with (
        closing(await driver.transactional(bootstrap, "p", topic)) as producer,
        closing(await driver.reader(bootstrap, "r", topic)) as reader,
    ):
        await reader.assign(topic, [0])
        for value, ends in ((b"aborted", producer.abort), (b"committed", producer.commit)):
            await producer.begin()
            await (await producer.send(topic, 0, value))
            await producer.send_offsets(topic, topic, {0: 1 if value == b"committed" else 7})
            await ends()
        assert [record.value for record in await polled(reader.poll, 1)] == [b"committed"]
        assert await reader.committed(topic, [0]) == {0: 1}
        await reader.seek(topic, {0: 0})
        assert [record.value for record in await polled(reader.poll, 1)] == [b"committed"]
        await producer.begin()
        await (await producer.send(topic, 0, b"fenced"))
        async with closing(await driver.transactional(bootstrap, "s", topic)):
            with pytest.raises(DriverError):
                await producer.commit()
    assert "fenced" not in capfd.readouterr().err  # librdkafka writes there without a logger


async def test_errors_of_administration_have_the_brokers_code(
    driver: AnyDriver, bootstrap: str
) -> None:
    if "topics" not in driver.capabilities:
        pytest.skip("the driver does not administer topics")
    async with closing(await driver.admin(bootstrap, "a")) as admin:
        assert not await admin.exists("made")
        await admin.create("made", partitions=1, replication_factor=1)
        with pytest.raises(DriverError, match=r"^TOPIC_ALREADY_EXISTS: "):
            await admin.create("made", partitions=1, replication_factor=1)
        assert await admin.exists("made")
        await admin.delete("made")
        with pytest.raises(DriverError, match=r"^UNKNOWN_TOPIC_OR_PARTITION: "):
            await admin.delete("made")
        assert not await admin.exists("made")


async def test_a_broker_that_is_not_there_is_a_connection_error_or_an_indefinite_send(
    name: str, driver: AnyDriver
) -> None:
    if name == "kafka-python":
        pytest.skip("the library leaves the sockets of a client that found no broker open")
    nowhere = "127.0.0.1:9"
    try:
        producer = await driver.producer(nowhere, "p")
    except ConnectionError:
        return
    async with closing(producer):  # librdkafka connects later
        with pytest.raises(Exception, match=r"^_MSG_TIMED_OUT: ") as raised:
            await (await producer.send("t", 0, b"1"))
        assert not raised.value.definite  # type: ignore[attr-defined]  # SendFailed
