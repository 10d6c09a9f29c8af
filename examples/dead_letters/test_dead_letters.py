"""The worker is killed before each step of `process`, and started again. No order may be missing.

Orders are numbers, `junk` is none. The warehouse is closed when a worker begins: two attempts fail.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
import worker
from worker import Batch, Handle, Retriable, handle_with_retries

from quorumlog import LocalCluster
from quorumlog.client import ConsumerRecord, TopicPartition
from quorumlog.client.sync import SyncConsumer, SyncProducer
from quorumlog.testing import MakeTopic, ManualNemesis, ProgramFailed, killed_at, read_topic

Process = Callable[[Batch, SyncConsumer, SyncProducer, str, Handle], None]


@dataclass
class Warehouse:
    """Ships orders: appends their numbers to a file."""

    file: Path
    attempts: Iterator[int] = field(default_factory=count)

    def ship(self, order: ConsumerRecord) -> None:
        """Raise Retriable twice, and ValueError for an order that is no number."""
        number = int(order.value or b"")
        if next(self.attempts) < 2:
            raise Retriable("the warehouse is closed")
        with self.file.open("a") as file:
            print(number, file=file)


@contextmanager
def open_clients(
    bootstrap: str, orders: str, linger_ms: float
) -> Iterator[tuple[SyncConsumer, SyncProducer]]:
    with (
        SyncProducer(bootstrap, linger_ms=linger_ms) as producer,
        SyncConsumer(
            bootstrap,
            group_id=f"worker-{orders}",
            group_instance_id="worker-1",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer,
    ):
        consumer.subscribe([orders])
        yield consumer, producer


def process_without_waits(
    batch: Batch, consumer: SyncConsumer, producer: SyncProducer, dead: str, handle: Handle
) -> None:
    worker.process(batch, consumer, producer, dead, handle, waits_s=(0, 0, 0))


def work(
    bootstrap: str, orders: str, dead: str, file: Path, process: Process, linger_ms: float
) -> None:
    partition, warehouse = TopicPartition(orders, 0), Warehouse(file)
    with open_clients(bootstrap, orders, linger_ms) as (consumer, producer):
        end = consumer.end_offsets([partition])[partition]
        while not (done := consumer.committed([partition])) or done[partition].offset < end:
            if batch := consumer.poll(1_000):
                process(batch, consumer, producer, dead, warehouse.ship)


class Crashes:
    """Crashes a worker, and looks for the orders."""

    def __init__(
        self, cluster: LocalCluster, make_topic: MakeTopic, nemesis: ManualNemesis, file: Path
    ) -> None:
        self.cluster, self.nemesis, self.file = cluster, nemesis, file
        self.orders, self.dead = make_topic(), make_topic()
        file.touch()

    def check(self, process: Process, linger_ms: float = 5) -> None:
        """Fail unless, after every crash, the numbers are shipped and the junk is a dead letter."""
        place = (self.cluster.bootstrap, self.orders, self.dead, self.file, process, linger_ms)
        is_right = process is process_without_waits
        steps = [worker.process if is_right else process]
        with SyncProducer(self.cluster.bootstrap, linger_ms=0) as shop:
            for step in count(1):
                values = [b"junk %d" % step, b"%d" % step]
                shop.send_many(self.orders, values).result(30)
                if is_right:  # a mistake may be found before it sends a dead letter
                    self.nemesis.answer("Produce", "NOT_ENOUGH_REPLICAS", topic=self.dead, times=1)
                try:
                    crash = killed_at(step, work, *place, within=steps)
                    work(*place)
                except (ProgramFailed, ValueError) as error:
                    raise AssertionError(f"'junk {step}' blocks the orders behind it") from error
                shipped = self.file.read_text().split()
                dead = [(one.value or b"").decode() for one in read_topic(self.cluster, self.dead)]
                assert str(step) not in dead, f"order {step} is a dead letter, and not at fault"
                assert str(step) in shipped, f"order {step} is lost: {crash}"
                assert f"junk {step}" in dead, f"'junk {step}' is lost: {crash}"
                if crash is None:
                    break


@pytest.fixture
def crashes(
    quorumlog_cluster: LocalCluster, make_topic: MakeTopic, nemesis: ManualNemesis, tmp_path: Path
) -> Crashes:
    return Crashes(quorumlog_cluster, make_topic, nemesis, tmp_path / "shipped")


def test_no_order_is_lost_and_none_blocks(crashes: Crashes) -> None:
    crashes.check(process_without_waits)
    letter = read_topic(crashes.cluster, crashes.dead)[0]
    headers = dict(letter.headers)
    assert headers["dead-letter-of"] == f"{crashes.orders}-0@0".encode()
    assert b"ValueError" in (headers["dead-letter-error"] or b"")


# --- mistakes that this test finds ---


def bury_every_error(
    batch: Batch, consumer: SyncConsumer, producer: SyncProducer, dead: str, handle: Handle
) -> None:
    for orders in batch.values():
        for order in orders:
            try:
                handle(order)
            except Exception:  # noqa: BLE001 - the mistake
                producer.send_and_wait(dead, order.value)
    consumer.commit()


def retry_every_error(
    batch: Batch, consumer: SyncConsumer, producer: SyncProducer, dead: str, handle: Handle
) -> None:
    for orders in batch.values():
        for order in orders:
            handle_with_retries(order, handle, (0, 0, 0))
    consumer.commit()


def commit_before_the_acknowledgement(
    batch: Batch, consumer: SyncConsumer, producer: SyncProducer, dead: str, handle: Handle
) -> None:
    for orders in batch.values():
        for order in orders:
            try:
                handle_with_retries(order, handle, (0, 0, 0))
            except ValueError:
                producer.send(dead, order.value)
    consumer.commit()


@pytest.mark.parametrize(
    ("mistake", "linger_ms", "found"),
    [
        (bury_every_error, 5, "order 1 is a dead letter, and not at fault"),
        (retry_every_error, 5, "'junk 1' blocks the orders behind it"),
        (commit_before_the_acknowledgement, 10_000, "'junk [0-9]+' is lost: kill -9"),
    ],
    ids=["buried", "retried", "committed-before"],
)
def test_a_mistake_is_found(
    mistake: Process, linger_ms: float, found: str, crashes: Crashes
) -> None:
    with pytest.raises(AssertionError, match=found):
        crashes.check(mistake, linger_ms)
