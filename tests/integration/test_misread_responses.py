"""Errors of responses that libraries drop: each driver reports them, and invents no value."""

import asyncio
import contextlib
import gc
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import pytest
from aiokafka.errors import NotCoordinatorForGroupError

from quorumlog.chaos.drivers.driver import (
    EARLIEST,
    LATEST,
    AnyDriver,
    DriverError,
    Membership,
    Record,
    SendFailed,
)
from quorumlog.chaos.drivers.registry import DRIVERS, DriverUnavailable, load_driver
from quorumlog.cluster import LocalCluster
from quorumlog.cluster.ports import free_ports

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("misread_responses")]

VALUES = [b"%d" % value for value in range(5)]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with LocalCluster(nodes=1, node_module="tests.support.node.odd_responses") as cluster:
        yield cluster.bootstrap
    # kafka-python closes a connection with unsent bytes later, in a loop that has ended by then.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="unclosed <socket", category=ResourceWarning)
        gc.collect()


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


async def fill(
    driver: AnyDriver,
    bootstrap: str,
    topic: str,
    *,
    partitions: int = 2,
    config: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Make a topic with the five values in each partition."""
    await driver.create_topic(
        bootstrap, topic, partitions=partitions, replication_factor=1, config=config
    )
    async with closing(await driver.producer(bootstrap, "p")) as producer:
        for value in VALUES:
            sent = [await producer.send(topic, index, value) for index in range(partitions)]
            await asyncio.gather(*sent)


async def test_an_error_of_a_partition_is_not_a_group_without_an_offset(
    name: str, driver: AnyDriver, bootstrap: str
) -> None:
    topic = f"hidden-{name}"
    await fill(driver, bootstrap, topic)
    async with closing(await driver.member(bootstrap, "m", Membership(group_id=topic))) as member:
        await member.subscribe(topic)
        count = 0
        while count < 10:
            count += len(await member.poll(500))
        await member.commit(topic, {0: 5, 1: 3})
    async with closing(await driver.reader(bootstrap, topic, topic)) as reader:
        found = None
        while found is None:
            with contextlib.suppress(DriverError):
                found = await reader.committed(topic, [0, 1])
    assert found == {0: 5, 1: 3}
    membership = Membership(group_id=topic)
    async with closing(await driver.member(bootstrap, f"{topic}-m", membership)) as member:
        await member.subscribe(topic)
        records: list[Record] = []
        codes: list[str] = []
        while not (records or codes):
            try:
                records = await member.poll(500)
            except DriverError as error:  # librdkafka reports it, and reads nothing
                codes.append(error.code)
    places = [(record.partition, record.offset) for record in records]
    assert (places, codes) in (([(1, 3), (1, 4)], []), ([], ["UNKNOWN_TOPIC_OR_PARTITION"]))


async def test_a_commit_is_not_repeated_in_the_generation_of_a_later_join(bootstrap: str) -> None:
    """aiokafka joins again in the background, while it repeats a commit."""
    driver, topic = load_driver("aiokafka"), "later-aiokafka"
    await fill(driver, bootstrap, topic)
    membership = Membership(group_id=topic)
    async with (
        closing(await driver.member(bootstrap, "m1", membership)) as first,
        closing(await driver.member(bootstrap, "m2", membership)) as second,
    ):
        await first.subscribe(topic)
        count = 0
        while count < 10:
            count += len(await first.poll(500))
        coordinator = first._object._client._coordinator
        generation, send = coordinator.generation, coordinator._client.send

        async def refused_until_joined(node: int, request: Any, **options: Any) -> Any:
            if type(request).__name__ == "OffsetCommitRequest":
                coordinator._client.send = send
                await second.subscribe(topic)
                while coordinator.generation == generation:
                    await second.poll(100)
                raise NotCoordinatorForGroupError
            return await send(node, request, **options)

        coordinator._client.send = refused_until_joined
        with pytest.raises(DriverError):
            await first.commit(topic, {0: 5, 1: 5})
        async with closing(await driver.reader(bootstrap, "r", topic)) as reader:
            assert await reader.committed(topic, [0, 1]) == {}


async def test_an_error_of_a_lookup_is_not_a_log_without_records(
    name: str, driver: AnyDriver, bootstrap: str
) -> None:
    topic = f"old-format-{name}"
    await fill(driver, bootstrap, topic)
    async with closing(await driver.offsets(bootstrap, topic)) as lookup:
        for asked in (EARLIEST, LATEST, 1):
            with pytest.raises(DriverError):
                await lookup.ask(topic, {0: asked, 1: asked})
    async with closing(await driver.consumer(bootstrap, topic)) as consumer:
        with pytest.raises(DriverError):
            await consumer.end_offsets(topic, [0, 1])


async def test_a_corrupt_batch_costs_no_record_of_any_partition(
    name: str, driver: AnyDriver, bootstrap: str
) -> None:
    topic = f"corrupt-{name}"
    await fill(driver, bootstrap, topic, partitions=6)
    errors: list[str] = []
    received: dict[int, list[bytes]] = {index: [] for index in range(6)}
    async with closing(await driver.consumer(bootstrap, topic)) as consumer:
        await consumer.assign(topic, [*received])
        while sum(map(len, received.values())) < 30:
            try:
                for record in await consumer.poll(500):
                    received[record.partition].append(record.value)
            except DriverError as error:
                errors.append(error.code)
                assert "NO_ANSWER" not in errors
    assert received == dict.fromkeys(range(6), VALUES)
    assert set(errors) <= {"CORRUPT_MESSAGE"}
    assert errors


async def test_a_transaction_without_one_of_its_records_is_not_committed(
    name: str, driver: AnyDriver, bootstrap: str
) -> None:
    topic = f"small-{name}"
    await fill(driver, bootstrap, topic, config={"max.message.bytes": "1000"})
    async with closing(await driver.transactional(bootstrap, "p", topic)) as producer:
        await producer.begin()
        with contextlib.suppress(SendFailed):
            sent = [await producer.send(topic, 0, value) for value in (b"small", b"x" * 5_000)]
            await asyncio.gather(*sent, return_exceptions=True)
        with pytest.raises(DriverError):
            await producer.commit()


@pytest.mark.parametrize(
    ("name", "client_id"), [("aiokafka", "no-controller"), ("kafka-python", "refused")]
)
async def test_a_cluster_without_a_controller_is_an_error_of_the_call(
    name: str, client_id: str, bootstrap: str
) -> None:
    """The libraries raise AttributeError and RuntimeError."""
    async with closing(await load_driver(name).admin(bootstrap, client_id)) as admin:
        with pytest.raises(DriverError, match="NOT_CONTROLLER"):
            await admin.create("t", partitions=1, replication_factor=1)
        with pytest.raises(DriverError, match="NOT_CONTROLLER"):
            await admin.delete("t")


def test_a_refused_connection_leaves_no_socket_open() -> None:
    """kafka-python leaves it to the garbage collector."""
    [port] = free_ports("127.0.0.1", 1)
    program = f"""
import asyncio, gc
from quorumlog.chaos.drivers.driver import DriverError
from quorumlog.chaos.drivers.registry import load_driver
try:
    asyncio.run(load_driver("kafka-python").admin("127.0.0.1:{port}", "c"))
except DriverError as error:
    print(error.code)
gc.collect()
"""
    command = [sys.executable, "-W", "default::ResourceWarning", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout
    assert "unclosed" not in ended.stderr
