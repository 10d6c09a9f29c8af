"""Record the requests of real clients, for tests/property/test_hostile_requests.py to mutate.

    python -m tools.record_client_frames    rewrites tests/data/client_frames/<client>.bin

Each client writes in transactions and reads in a group, with one broker in this process; the client
of librdkafka uses the protocol of KIP-848. A file has frames as on the wire, with their lengths: of
each API and version the first two frames of different size.
"""

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import aiokafka
import confluent_kafka
import kafka

from quorumlog.broker.server.connection import Connection
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.groups.asking import coordinator_is_ready, create
from tests.support.groups.single_broker import TestController, single_broker

DIRECTORY: Final = Path(__file__).parents[1] / "tests/data/client_frames"
EACH_MAX: Final = 2
FEATURES: Final = {"group.version": 1, "transaction.version": 2}
TOPIC: Final = "t"
WAIT_S: Final = 30


def _confluent(bootstrap: str) -> None:
    servers = {"bootstrap.servers": bootstrap}
    producer = confluent_kafka.Producer({**servers, "transactional.id": "confluent"})
    producer.init_transactions(WAIT_S)
    reading = {"group.id": "confluent", "group.protocol": "consumer"}
    consumer = confluent_kafka.Consumer({**servers, **reading, "auto.offset.reset": "earliest"})
    consumer.subscribe(["^t.*"])
    _write(producer)
    producer.commit_transaction(WAIT_S)
    [message] = consumer.consume(1, WAIT_S)
    _write(producer)
    place = confluent_kafka.TopicPartition(TOPIC, 0, 1)
    producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), WAIT_S)
    producer.commit_transaction(WAIT_S)
    _write(producer)
    producer.abort_transaction(WAIT_S)
    consumer.commit(message=message, asynchronous=False)
    consumer.close()


def _write(producer: Any) -> None:
    producer.begin_transaction()
    producer.produce(TOPIC, b"value", b"key", headers={"h": b"v"})
    producer.flush(WAIT_S)


def _kafka_python(bootstrap: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id="kafka-python")
    producer.init_transactions()
    consumer = kafka.KafkaConsumer(
        TOPIC,
        bootstrap_servers=bootstrap,
        group_id="kafka-python",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    for is_committed in (True, False):
        producer.begin_transaction()
        producer.send(TOPIC, b"value", b"key", headers=[("h", b"v")])
        if is_committed:
            place = kafka.TopicPartition(TOPIC, 0)
            offsets = {place: kafka.OffsetAndMetadata(1, "", -1)}
            producer.send_offsets_to_transaction(offsets, "kafka-python")
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    consumer.poll(timeout_ms=1000 * WAIT_S, max_records=1)
    consumer.commit()
    consumer.close()
    producer.close()


async def _aiokafka(bootstrap: str) -> None:
    place = aiokafka.TopicPartition(TOPIC, 0)
    async with (
        aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="aio") as producer,
        aiokafka.AIOKafkaConsumer(
            TOPIC, bootstrap_servers=bootstrap, group_id="aio", auto_offset_reset="earliest"
        ) as consumer,
    ):
        async with producer.transaction():
            await producer.send_and_wait(TOPIC, b"value", b"key")
            await producer.send_offsets_to_transaction({place: 1}, "aio")
        await producer.begin_transaction()
        await producer.send_and_wait(TOPIC, b"value")
        await producer.abort_transaction()
        await consumer.getone()
        await consumer.commit()


def _in_thread(run: Callable[[str], None]) -> Callable[[str], Awaitable[None]]:
    return lambda bootstrap: asyncio.to_thread(run, bootstrap)


CLIENTS: Final[dict[str, Callable[[str], Awaitable[None]]]] = {
    "aiokafka": _aiokafka,
    "confluent": _in_thread(_confluent),
    "kafka_python": _in_thread(_kafka_python),
}


async def record(client: Callable[[str], Awaitable[None]]) -> list[bytes]:
    """Return the frames that a client sends."""
    frames: list[bytes] = []
    received = Connection.frame_received

    def note(self: Connection, frame: memoryview) -> None:
        frames.append(bytes(frame))
        received(self, frame)

    controller = TestController()
    controller.image = replace(controller.image, features=FEATURES)
    with tempfile.TemporaryDirectory() as directory:
        async with single_broker(
            Path(directory), controller=controller, has_real_verifier=True
        ) as broker:
            own = await KafkaConnection.open("127.0.0.1", broker.port, client_id="prepares")
            await create(own, TOPIC)
            await coordinator_is_ready(own)
            await own.close()
            Connection.frame_received = note  # type: ignore[method-assign]
            try:
                await client(broker.bootstrap)
            finally:
                Connection.frame_received = received  # type: ignore[method-assign]
    return frames


def chosen(frames: list[bytes]) -> list[bytes]:
    """Return a few frames of each API and version, in order."""
    kinds: Counter[bytes] = Counter()
    sizes: set[tuple[bytes, int]] = set()
    kept = []
    for frame in frames:
        kind = frame[:4]  # the API key and the version
        if kinds[kind] < EACH_MAX and (kind, len(frame)) not in sizes:
            kinds[kind] += 1
            sizes.add((kind, len(frame)))
            kept.append(frame)
    return kept


def main() -> int:
    """Record all clients; print the number of frames."""
    DIRECTORY.mkdir(exist_ok=True)
    for name, client in CLIENTS.items():
        frames = chosen(asyncio.run(record(client)))
        data: Any = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
        (DIRECTORY / f"{name}.bin").write_bytes(data)
        print(f"{name}: {len(frames)} frames, {len(data)} bytes")  # noqa: T201 - a tool
    return 0


if __name__ == "__main__":
    sys.exit(main())
