"""The project's own client: it puts orders into a topic, and reads them back.

Its name is that of a package inside quorumlog; neither is taken for the other.
"""

from types import TracebackType
from typing import Self

from quorumlog.client import TopicPartition
from quorumlog.client.sync import SyncConsumer, SyncProducer


class OrderDesk:
    """Orders are whole numbers; each is one record of one partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._producer = SyncProducer(bootstrap, linger_ms=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._producer.close()

    def place(self, order: int) -> int:
        """Put an order in; return its offset once it is acknowledged."""
        text = str(order).encode()
        return self._producer.send_and_wait(self._topic, text, partition=0).offset

    def orders(self, count: int) -> list[int]:
        """Read the first `count` orders."""
        orders: list[int] = []
        partition = TopicPartition(self._topic, 0)
        with SyncConsumer(self._bootstrap) as consumer:
            consumer.assign([partition])
            consumer.seek_to_beginning(partition)
            while len(orders) < count:
                for records in consumer.poll(timeout_ms=500).values():
                    orders += [int(record.value or b"") for record in records]
        return orders
