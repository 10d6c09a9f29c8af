"""Transactions on three real brokers: four client libraries, fencing, time-outs, and a kill."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count

import aiokafka
import confluent_kafka
import kafka
import pytest

from quorumlog import Admin, Consumer, LocalCluster, Producer
from quorumlog.client import (
    ConsumerRecord,
    ErrorCode,
    KafkaError,
    NewTopic,
    ProducerRecord,
    TopicPartition,
    transform,
)
from quorumlog.wire.codec.messages.describe_transactions import (
    DescribeTransactionsRequest,
    TransactionState,
)
from quorumlog.wire.codec.messages.find_coordinator import FindCoordinatorRequest

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("transactions")]
PARTITIONS = 10
WAIT_S = 60.0
EACH = 40  # records of one transaction of another library
Write = Callable[[str, str], None]
"""Writes to a topic: `first` and `second` committed, `gone` aborted in between."""
_numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3) as running:
        yield running


async def new_topic(cluster: LocalCluster) -> str:
    name = f"topic-{next(_numbers)}"
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topics([NewTopic(name, num_partitions=PARTITIONS, replication_factor=3)])
    return name


async def committed(cluster: LocalCluster, topic: str, wanted: int) -> Counter[str]:
    """Read what is committed, and what would come after it."""
    found: Counter[str] = Counter()
    deadline_s = time.monotonic() + WAIT_S
    async with Consumer(
        cluster.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([TopicPartition(topic, index) for index in range(PARTITIONS)])
        while found.total() < wanted and time.monotonic() < deadline_s:
            for records in (await consumer.poll(500)).values():
                found.update((record.value or b"").decode() for record in records)
        for records in (await consumer.poll(500)).values():
            found.update((record.value or b"").decode() for record in records)
    return found


async def coordinator_of(admin: Admin, name: str) -> int:
    request = FindCoordinatorRequest(key_type=1, key=name, coordinator_keys=[name])
    [found] = (await admin.request(request)).coordinators
    return int(found.node_id)


async def described(admin: Admin, name: str) -> TransactionState:
    """Ask the coordinator, wherever it is, until it knows."""
    while True:
        try:
            answer = await admin.request(
                DescribeTransactionsRequest(transactional_ids=[name]),
                broker_id=await coordinator_of(admin, name),
            )
        except KafkaError:
            continue
        [state] = answer.transaction_states
        if state.error_code == ErrorCode.NONE:
            return state


async def in_transaction(
    producer: Producer,
    topic: str,
    word: str,
    *,
    partitions: Iterable[int] = range(PARTITIONS),
    commits: bool = True,
) -> None:
    producer.begin_transaction()
    for index in partitions:
        await producer.send(topic, word.encode(), partition=index)
    await producer.flush()  # else an abort may have nothing to end
    await (producer.commit_transaction() if commits else producer.abort_transaction())


async def test_every_transaction_has_an_epoch_of_its_own(cluster: LocalCluster) -> None:
    topic = await new_topic(cluster)
    async with (
        Admin(cluster.bootstrap) as admin,
        Producer(cluster.bootstrap, transactional_id="epochs") as producer,
    ):
        assert (await admin.describe_features())["transaction.version"].level == 2
        await producer.init_transactions()
        first = (await described(admin, "epochs")).producer_epoch
        for _ in range(3):
            await in_transaction(producer, topic, "good", partitions=[0])
        await in_transaction(producer, topic, "bad", partitions=[0], commits=False)
        assert (await described(admin, "epochs")).producer_epoch == first + 4
    assert await committed(cluster, topic, 3) == {"good": 3}


async def test_a_second_producer_fences_the_first(cluster: LocalCluster) -> None:
    topic = await new_topic(cluster)
    async with (
        Producer(cluster.bootstrap, transactional_id="fenced") as first,
        Producer(cluster.bootstrap, transactional_id="fenced") as second,
    ):
        await first.init_transactions()
        first.begin_transaction()
        await first.send(topic, b"bad", partition=0)
        await first.flush()
        await second.init_transactions()
        with pytest.raises(KafkaError) as raised:
            await first.commit_transaction()
        assert raised.value.fatal
        await in_transaction(second, topic, "good")
    assert await committed(cluster, topic, PARTITIONS) == {"good": PARTITIONS}


async def test_a_transaction_that_lasts_too_long_holds_no_reader_up(cluster: LocalCluster) -> None:
    topic = await new_topic(cluster)
    async with (
        Admin(cluster.bootstrap) as admin,
        Producer(cluster.bootstrap, transactional_id="slow", transaction_timeout_ms=1_000) as slow,
        Producer(cluster.bootstrap) as plain,
    ):
        await slow.init_transactions()
        slow.begin_transaction()
        await slow.send(topic, b"bad", partition=0)
        await slow.flush()
        await plain.send(topic, b"good", partition=0)
        await plain.flush()
        assert await committed(cluster, topic, 1) == {"good": 1}
        assert (await described(admin, "slow")).transaction_state == "CompleteAbort"
        with pytest.raises(KafkaError):
            await slow.commit_transaction()
        await slow.stop()


async def test_what_was_committed_is_complete_though_its_coordinator_is_killed(
    cluster: LocalCluster,
) -> None:
    """The client is answered once the decision is written: the markers are on their way then."""
    topic = await new_topic(cluster)
    async with (
        Admin(cluster.bootstrap) as admin,
        Producer(cluster.bootstrap, transactional_id="survivor") as producer,
    ):
        await producer.init_transactions()
        for round_ in range(3):
            victim = await coordinator_of(admin, "survivor")
            await in_transaction(producer, topic, f"good-{round_}")
            cluster.kill(victim)
            found = await committed(cluster, topic, (round_ + 1) * PARTITIONS)
            assert found == {f"good-{index}": PARTITIONS for index in range(round_ + 1)}
            cluster.start_node(victim)
        assert (await described(admin, "survivor")).transaction_state == "CompleteCommit"


class Movers:
    """Workers of one group that move records by `transform`, and fail in many ways."""

    def __init__(self, cluster: LocalCluster, source: str, sink: str) -> None:
        self.cluster, self.source, self.sink = cluster, source, sink
        self.is_done = False
        self.calls = 0

    async def live(self, name: str, lives: int = 1_000) -> None:
        """Open a new consumer and a new producer of the same transactional id for each life."""
        while not self.is_done and lives:
            lives -= 1
            try:
                async with (
                    Consumer(
                        self.cluster.bootstrap,
                        group_id=self.source,
                        auto_offset_reset="earliest",
                        enable_auto_commit=False,
                        isolation_level="read_committed",
                        session_timeout_ms=6_000,
                        heartbeat_interval_ms=500,
                    ) as consumer,
                    Producer(
                        self.cluster.bootstrap, transactional_id=f"{self.source}-{name}"
                    ) as producer,
                ):
                    consumer.subscribe([self.source])
                    stop = partial(getattr, self, "is_done")
                    await transform(consumer, producer, self.moved, max_records=7, stop=stop)
            except (ZeroDivisionError, KafkaError):
                continue

    async def moved(self, record: ConsumerRecord) -> ProducerRecord | None:
        self.calls += 1
        if self.calls % 41 == 0:
            raise ZeroDivisionError
        await asyncio.sleep(0.001)
        return ProducerRecord(self.sink, record.value, record.value)

    async def until_moved(self, count: int) -> None:
        """Wait until the group has committed `count` records."""
        async with Admin(self.cluster.bootstrap) as admin:
            while True:
                try:
                    offsets = await admin.list_consumer_group_offsets(self.source)
                except KafkaError:
                    continue
                if sum(place.offset for place in offsets.values()) >= count:
                    return
                await asyncio.sleep(0.05)


async def test_transform_moves_each_record_once_whatever_dies(cluster: LocalCluster) -> None:
    """Members come and go, one is fenced in the middle, functions raise, a coordinator dies."""
    movers = Movers(cluster, await new_topic(cluster), await new_topic(cluster))
    values = [b"%d" % number for number in range(400)]
    async with Producer(cluster.bootstrap) as producer:
        await (await producer.send_many(movers.source, values, values))
    async with asyncio.timeout(2 * WAIT_S), asyncio.TaskGroup() as tasks:
        first = tasks.create_task(movers.live("one"))
        await movers.until_moved(50)
        tasks.create_task(movers.live("two"))  # a rebalance
        await movers.until_moved(120)
        first.cancel()  # in the middle of its work
        tasks.create_task(movers.live("two", lives=1))  # fences the other, which fences it in turn
        await movers.until_moved(200)
        async with Admin(cluster.bootstrap) as admin:
            victim = await coordinator_of(admin, f"{movers.source}-two")
        cluster.kill(victim)
        await movers.until_moved(280)
        cluster.start_node(victim)
        await movers.until_moved(len(values))
        movers.is_done = True
    found = await committed(cluster, movers.sink, len(values))
    assert found == {value.decode(): 1 for value in values}


# --- other libraries ---


def values(name: str) -> list[bytes]:
    return [b"%s-%d" % (name.encode(), index) for index in range(EACH)]


def confluent_writes(bootstrap: str, topic: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"confluent-{topic}"}
    )
    producer.init_transactions(WAIT_S)
    for name, commits in (("first", True), ("gone", False), ("second", True)):
        producer.begin_transaction()
        for number, value in enumerate(values(name)):
            producer.produce(topic, value, partition=number % PARTITIONS)
        producer.flush(WAIT_S)
        if commits:
            producer.commit_transaction(WAIT_S)
        else:
            producer.abort_transaction(WAIT_S)


def kafka_python_writes(bootstrap: str, topic: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=f"kafka-python-{topic}"
    )
    producer.init_transactions()
    for name, commits in (("first", True), ("gone", False), ("second", True)):
        producer.begin_transaction()
        for number, value in enumerate(values(name)):
            producer.send(topic, value, partition=number % PARTITIONS)
        producer.flush(WAIT_S)
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close(WAIT_S)


def aiokafka_writes(bootstrap: str, topic: str) -> None:
    async def write() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=f"aiokafka-{topic}"
        )
        await producer.start()
        for name, commits in (("first", True), ("gone", False), ("second", True)):
            await producer.begin_transaction()
            for number, value in enumerate(values(name)):
                await producer.send(topic, value, partition=number % PARTITIONS)
            await producer.flush()
            if commits:
                await producer.commit_transaction()
            else:
                await producer.abort_transaction()
        await producer.stop()

    asyncio.run(asyncio.wait_for(write(), WAIT_S))


def ours_writes(bootstrap: str, topic: str) -> None:
    async def write() -> None:
        async with Producer(bootstrap, transactional_id=f"ours-{topic}") as producer:
            await producer.init_transactions()
            for name, commits in (("first", True), ("gone", False), ("second", True)):
                producer.begin_transaction()
                for number, value in enumerate(values(name)):
                    await producer.send(topic, value, partition=number % PARTITIONS)
                await producer.flush()
                if commits:
                    await producer.commit_transaction()
                else:
                    await producer.abort_transaction()

    asyncio.run(asyncio.wait_for(write(), WAIT_S))


def confluent_reads(bootstrap: str, topic: str, isolation: str) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"g-{topic}-{isolation}",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    parts = [
        confluent_kafka.TopicPartition(topic, index, confluent_kafka.OFFSET_BEGINNING)
        for index in range(PARTITIONS)
    ]
    consumer.assign(parts)
    found: list[bytes] = []
    ended: set[int | None] = set()
    deadline_s = time.monotonic() + WAIT_S
    while len(ended) < PARTITIONS and time.monotonic() < deadline_s:
        message = consumer.poll(1)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found.append(message.value() or b"")
        elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
            ended.add(message.partition())
    consumer.close()
    assert len(ended) == PARTITIONS
    return sorted(found)


def aiokafka_reads(bootstrap: str, topic: str) -> list[bytes]:
    async def read() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        await consumer.start()
        parts = [aiokafka.TopicPartition(topic, index) for index in range(PARTITIONS)]
        consumer.assign(parts)
        await consumer.seek_to_beginning(*parts)
        ends = await consumer.end_offsets(parts)
        found: list[bytes] = []
        while any([await consumer.position(at) < ends[at] for at in parts]):
            for batch in (await consumer.getmany(timeout_ms=500)).values():
                found += [one.value for one in batch]
        await consumer.stop()
        return sorted(found)

    return asyncio.run(asyncio.wait_for(read(), WAIT_S))


@pytest.mark.parametrize(
    "write",
    [confluent_writes, kafka_python_writes, aiokafka_writes, ours_writes],
    ids=["confluent", "kafka_python", "aiokafka", "ours"],
)
def test_a_reader_of_what_is_committed_sees_no_aborted_record(
    cluster: LocalCluster, write: Write
) -> None:
    topic = asyncio.run(new_topic(cluster))
    write(cluster.bootstrap, topic)
    kept = sorted(values("first") + values("second"))
    assert confluent_reads(cluster.bootstrap, topic, "read_committed") == kept
    assert aiokafka_reads(cluster.bootstrap, topic) == kept
    by_ours = asyncio.run(committed(cluster, topic, len(kept)))
    assert sorted(by_ours.elements()) == [value.decode() for value in kept]
    everything = sorted([*kept, *values("gone")])
    assert confluent_reads(cluster.bootstrap, topic, "read_uncommitted") == everything


def test_an_open_transaction_is_not_seen_until_it_is_committed_by_another_leader(
    cluster: LocalCluster,
) -> None:
    topic = asyncio.run(new_topic(cluster))
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": "open"}
    )
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for number, value in enumerate(values("first")):
        producer.produce(topic, value, partition=number % PARTITIONS)
    producer.flush(WAIT_S)
    assert confluent_reads(cluster.bootstrap, topic, "read_committed") == []
    assert confluent_reads(cluster.bootstrap, topic, "read_uncommitted") == sorted(values("first"))
    for node in cluster.nodes:  # each partition gets another leader, with a log that it has read
        cluster.stop_node(node.id)
        cluster.start_node(node.id)
    assert confluent_reads(cluster.bootstrap, topic, "read_committed") == []
    producer.commit_transaction(WAIT_S)
    assert confluent_reads(cluster.bootstrap, topic, "read_committed") == sorted(values("first"))
