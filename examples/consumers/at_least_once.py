"""At least once: work, then commit. Each order has an invoice; after a crash, some have two.

For work that may be repeated, such as setting a price or a search index. `send_and_wait` matters: a
commit after a mere `send` would cover invoices that may still be lost.
"""

from billing import Batch, run

from quorumlog.client.sync import SyncConsumer, SyncProducer


def process(batch: Batch, consumer: SyncConsumer, producer: SyncProducer, invoices: str) -> None:
    """Send an invoice for each order."""
    for orders in batch.values():
        for order in orders:
            producer.send_and_wait(invoices, order.value)
    consumer.commit()


if __name__ == "__main__":
    run(process)
