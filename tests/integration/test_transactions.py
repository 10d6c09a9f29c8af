"""Transactions on three real brokers: four client libraries, fencing, time-outs, and a kill."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count

import aiokafka
import confluent_kafka
import kafka
import pytest

from quorumlog import Admin, Consumer, LocalCluster, Producer
from quorumlog.client import ErrorCode, KafkaError, NewTopic, TopicPartition
from quorumlog.wire.codec.messages.describe_transactions import (
    DescribeTransactionsRequest,
    TransactionState,
)
from quorumlog.wire.codec.messages.find_coordinator import FindCoordinatorRequest

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("transactions")]
PARTITIONS = 10
WAIT_S = 60.0
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


def commit_and_abort_by_confluent(bootstrap: str, topic: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"confluent-{topic}"}
    )
    producer.init_transactions(WAIT_S)
    for word in ("good", "bad", "good"):
        producer.begin_transaction()
        for index in range(PARTITIONS):
            producer.produce(topic, word.encode(), partition=index)
        if word == "good":
            producer.commit_transaction(WAIT_S)
        else:
            producer.flush(WAIT_S)
            producer.abort_transaction(WAIT_S)


def commit_and_abort_by_kafka_python(bootstrap: str, topic: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"kp-{topic}")
    producer.init_transactions()
    for word in ("good", "bad", "good"):
        producer.begin_transaction()
        for index in range(PARTITIONS):
            producer.send(topic, word.encode(), partition=index)
        if word == "good":
            producer.commit_transaction()
        else:
            producer.flush()
            producer.abort_transaction()
    producer.close()


@pytest.mark.parametrize("client", ["ours", "confluent", "kafka-python", "aiokafka"])
async def test_what_a_client_commits_is_read_and_what_it_aborts_is_not(
    cluster: LocalCluster, client: str
) -> None:
    topic, bootstrap = await new_topic(cluster), cluster.bootstrap
    if client == "confluent":
        commit_and_abort_by_confluent(bootstrap, topic)
    elif client == "kafka-python":
        commit_and_abort_by_kafka_python(bootstrap, topic)
    elif client == "aiokafka":
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=f"aiokafka-{topic}"
        ) as theirs:
            for word in ("good", "bad", "good"):
                await theirs.begin_transaction()
                for index in range(PARTITIONS):
                    await theirs.send_and_wait(topic, word.encode(), partition=index)
                await (
                    theirs.commit_transaction() if word == "good" else theirs.abort_transaction()
                )
    else:
        async with Producer(bootstrap, transactional_id=f"ours-{topic}") as producer:
            await producer.init_transactions()
            for word in ("good", "bad", "good"):
                await in_transaction(producer, topic, word, commits=word == "good")
    assert await committed(cluster, topic, 2 * PARTITIONS) == {"good": 2 * PARTITIONS}


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
