"""Exactly once: the invoices and the position in the orders are committed together, or not at all.

It holds between topics: a transaction contains records and offsets, but no e-mail and no row of a
database. Readers of the invoices need isolation_level="read_committed".
"""

from billing import Batch, run

from quorumlog.client.sync import SyncConsumer, SyncProducer

TRANSACTIONAL_ID = "billing-1"  # a second process of this name ends the first


def process(batch: Batch, consumer: SyncConsumer, producer: SyncProducer, invoices: str) -> None:
    """Send an invoice for each order.

    An error aborts the transaction and ends the program: the next start reads the batch again.
    """
    with producer.transaction():
        for orders in batch.values():
            for order in orders:
                producer.send(invoices, order.value)
        positions = {partition: orders[-1].offset + 1 for partition, orders in batch.items()}
        producer.send_offsets_to_transaction(positions, consumer.group_metadata())


if __name__ == "__main__":
    run(process, TRANSACTIONAL_ID)
