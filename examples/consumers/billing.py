"""The clients and the loop of the three programs: each reads orders, and sends an invoice for each.

python at_least_once.py localhost:9092 orders invoices
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quorumlog.client import ConsumerRecord, TopicPartition
from quorumlog.client.sync import SyncConsumer, SyncProducer

Batch = dict[TopicPartition, list[ConsumerRecord]]
Process = Callable[[Batch, SyncConsumer, SyncProducer, str], None]


@contextmanager
def open_clients(
    bootstrap: str, orders: str, transactional_id: str | None = None, linger_ms: float = 5
) -> Iterator[tuple[SyncConsumer, SyncProducer]]:
    """Yield a consumer in the group of these orders, and a producer.

    A record that is sent waits in memory for others of its batch, for `linger_ms`.
    """
    with (
        SyncProducer(bootstrap, transactional_id=transactional_id, linger_ms=linger_ms) as producer,
        SyncConsumer(
            bootstrap,
            group_id=f"billing-{orders}",
            group_instance_id="billing-1",  # after a crash, the new process need not wait
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer,
    ):
        if transactional_id is not None:
            producer.init_transactions()  # aborts the open transaction of a dead process
        consumer.subscribe([orders])
        yield consumer, producer


def batches(consumer: SyncConsumer) -> Iterator[Batch]:
    """Yield the records of each poll, for ever."""
    while True:
        if batch := consumer.poll(1_000):
            yield batch


def run(process: Process, transactional_id: str | None = None) -> None:
    """Process the orders of the command line."""
    bootstrap, orders, invoices = sys.argv[1:]
    with open_clients(bootstrap, orders, transactional_id) as (consumer, producer):
        for batch in batches(consumer):
            process(batch, consumer, producer, invoices)
