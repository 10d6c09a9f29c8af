"""Our transactional producer against the mock cluster inside librdkafka.

It speaks the versions before KIP-890, and stores no offsets of transactions. Its markers have wrong
checksums, so Confluent's consumer reads what is sent here. For fenced zombies and lost answers
there is a model in tests/property/test_client_transactions.py.
"""

from collections.abc import Iterator

import confluent_kafka
import pytest

from quorumlog.client import Consumer, Delivery, KafkaError, Producer, TopicPartition
from quorumlog.client.sync import SyncConsumer, SyncProducer
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.api_versions import ApiVersionsRequest

T = TopicPartition("t", 0)


@pytest.fixture
def bootstrap(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(ApiVersionsRequest, "VERSIONS", range(3))  # as in the file for the others
    mock = confluent_kafka.Producer(
        {"bootstrap.servers": "x", "test.mock.num.brokers": 3, "log_level": 0}
    )
    brokers = mock.list_topics(timeout=10).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    del mock


def read_committed(bootstrap: str, count: int) -> list[bytes | None]:
    options = {"group.id": "reader", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, **options})
    consumer.assign([confluent_kafka.TopicPartition(*T, 0)])
    records = consumer.consume(count, timeout=20)
    consumer.close()
    return [record.value() for record in records]


async def test_a_transaction_is_committed(bootstrap: str) -> None:
    async with Producer(bootstrap, transactional_id="tx") as producer:
        await producer.init_transactions()
        for expected in (0, 3):  # a marker stands between them
            async with producer.transaction():
                first = await producer.send("t", b"one", partition=0)
                second = await producer.send("t", b"two", partition=0)
            assert (first.result().offset, second.result().offset) == (expected, expected + 1)
    assert read_committed(bootstrap, 4) == [b"one", b"two", b"one", b"two"]


async def test_an_aborted_transaction_sends_nothing_that_waits(bootstrap: str) -> None:
    async with Producer(bootstrap, transactional_id="tx", linger_ms=60_000) as producer:
        await producer.init_transactions()
        deliveries: list[Delivery] = []

        async def fail() -> None:
            async with producer.transaction():
                deliveries.append(await producer.send("t", b"never", partition=0))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        error = deliveries[0].exception()
        assert error is not None
        assert (error.code, error.definite) == (ErrorCode.OPERATION_NOT_ATTEMPTED, True)
        async with producer.transaction():
            sent = await producer.send("t", b"one", partition=0)
    assert sent.result().offset == 0
    assert read_committed(bootstrap, 1) == [b"one"]


async def test_offsets_go_along(bootstrap: str) -> None:
    async with (
        Producer(bootstrap, transactional_id="tx") as producer,
        Consumer(bootstrap, group_id="g") as consumer,
    ):
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send("t", b"one", partition=0)
            await producer.send_offsets_to_transaction({T: 7}, consumer.group_metadata())
        with pytest.raises(TypeError, match=r"must be consumer\.group_metadata\(\), not 'g'"):
            await producer.send_offsets_to_transaction({T: 7}, "g")  # type: ignore[arg-type]


async def test_calls_that_do_not_fit_are_refused(bootstrap: str) -> None:
    async with Producer(bootstrap) as plain:
        with pytest.raises(ValueError, match="transactions need a transactional_id"):
            plain.begin_transaction()
    async with Producer(bootstrap, transactional_id="tx") as producer:
        with pytest.raises(RuntimeError, match="call init_transactions first"):
            producer.begin_transaction()
        with pytest.raises(RuntimeError, match="no transaction is open"):
            await producer.send("t", b"one")
        await producer.init_transactions()
        with pytest.raises(RuntimeError, match="no transaction is open"):
            await producer.commit_transaction()
        producer.begin_transaction()
        with pytest.raises(RuntimeError, match="a transaction is open"):
            producer.begin_transaction()
        await producer.abort_transaction()


async def test_an_open_transaction_is_aborted_at_the_end(bootstrap: str) -> None:
    async with Producer(bootstrap, transactional_id="tx", linger_ms=60_000) as producer:
        await producer.init_transactions()
        producer.begin_transaction()
        delivery = await producer.send("t", b"never", partition=0)
    with pytest.raises(KafkaError, match="aborted"):
        delivery.result()


def test_the_same_without_an_event_loop(bootstrap: str) -> None:
    with (
        SyncProducer(bootstrap, transactional_id="tx") as producer,
        SyncConsumer(bootstrap, group_id="g") as consumer,
    ):
        producer.init_transactions()
        with producer.transaction():
            sent = producer.send("t", b"one", partition=0)
            producer.send_offsets_to_transaction({T: 3}, consumer.group_metadata())
        assert sent.result().offset == 0
        with pytest.raises(ZeroDivisionError), producer.transaction():
            raise ZeroDivisionError
        producer.begin_transaction()
        producer.send("t", b"two", partition=0)
        producer.commit_transaction()
        producer.begin_transaction()
        producer.abort_transaction()
