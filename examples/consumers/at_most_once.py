"""At most once: commit, then work. No order has two invoices; a crash leaves orders without one.

For records that are worth nothing a second later, such as positions on a map.
"""

from billing import Batch, run

from quorumlog.client.sync import SyncConsumer, SyncProducer


def process(batch: Batch, consumer: SyncConsumer, producer: SyncProducer, invoices: str) -> None:
    """Send an invoice for each order."""
    consumer.commit()
    for orders in batch.values():
        for order in orders:
            producer.send_and_wait(invoices, order.value)


if __name__ == "__main__":
    run(process)
