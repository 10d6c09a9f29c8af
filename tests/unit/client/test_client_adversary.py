"""What a producer reports, held against the logs of brokers that fail in every way there is."""

import asyncio

import pytest

from quorumlog.client import Delivery, KafkaError, Producer
from quorumlog.client.io import stalled_requests
from quorumlog.wire.codec.identifiers import TopicPartition
from tests.support.client.adversary import Adversary, adversary
from tests.support.waiting import until

SENDS = 120


async def send_all(cluster: Adversary) -> list[tuple[int, int, Delivery | KafkaError]]:
    """Send, heal, close; return (partition, number, what became of it) in the order of sending."""
    sent: list[tuple[int, int, Delivery | KafkaError]] = []
    producer = Producer(
        cluster.bootstrap,
        linger_ms=1,
        batch_size=200,
        buffer_memory=2_000,
        max_block_ms=60,
        request_timeout_ms=80,
        delivery_timeout_ms=400,
        retry_backoff_ms=5,
    )
    await producer.start()
    for number in range(SENDS):
        partition = cluster.random.randrange(2)
        result: Delivery | KafkaError
        try:
            result = await producer.send("t", b"%d" % number, partition=partition)
        except KafkaError as error:
            result = error
        sent.append((partition, number, result))
        if cluster.random.random() < 0.2:
            await asyncio.sleep(cluster.random.uniform(0, 0.01))
    await producer.flush()
    cluster.faults = 0.0
    await producer.stop()
    await until(lambda: not cluster.held_back)
    return sent


def check(cluster: Adversary, sent: list[tuple[int, int, Delivery | KafkaError]]) -> None:
    logs = {
        index: [int(value) for value in cluster.values(TopicPartition("t", index))]
        for index in range(2)
    }
    for log in logs.values():
        assert len(log) == len(set(log)), "written twice"
        assert log == sorted(log), "out of order"
    for partition, number, result in sent:
        if isinstance(result, KafkaError):
            assert result.definite
            assert number not in logs[partition]
            continue
        places = [offset for offset, value in enumerate(logs[partition]) if value == number]
        try:
            offset = result.result().offset
        except KafkaError as error:
            is_true = not (error.definite and places)
        else:
            is_true = bool(places) and offset in {-1, *places}
        assert is_true, f"{number} at {places}: {result}"


async def play(seed: int, faults: float) -> None:
    async with asyncio.timeout(60), adversary(seed, faults=faults) as cluster:
        check(cluster, await send_all(cluster))


@pytest.mark.parametrize("faults", [0.2, 0.6])
async def test_what_is_reported_is_true(faults: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalled_requests, "OVERDUE_AFTER_MS", 30)
    monkeypatch.setattr(stalled_requests, "OVERDUE_CHECK_MS", 10)

    await asyncio.gather(*(play(seed, faults) for seed in range(4)))
