"""A compacted topic as a table: the last record of a key is its row.

python table.py localhost:9092 prices cup=350 plate=499 cup=

Whoever reads the topic from the beginning has the table; compaction only removes records that later
ones replace. A record without a value, a tombstone, deletes its row. It is removed itself after
`delete.retention.ms`: a reader that is away for longer must begin with an empty table.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from quorumlog.client import ConsumerRecord, TopicPartition
from quorumlog.client.sync import SyncConsumer, SyncProducer

Rows = dict[bytes, bytes]
Apply = Callable[[Rows, ConsumerRecord], None]
Read = Callable[[SyncConsumer, Rows, Apply], None]


def apply(rows: Rows, record: ConsumerRecord) -> None:
    """Apply a record to the rows."""
    if record.key is None:
        raise ValueError(f"record {record.offset} has no key: this topic is no table")
    if record.value is None:
        rows.pop(record.key, None)
    else:
        rows[record.key] = record.value


def read_to_the_end(consumer: SyncConsumer, rows: Rows, apply: Apply) -> None:
    """Apply the records up to the current ends of the partitions.

    Positions are compared, since a poll may be empty before the end, and since the number of the
    records is unknown: compaction leaves gaps in the offsets.
    """
    ends = consumer.end_offsets(consumer.assignment())
    while any(consumer.position(partition) < end for partition, end in ends.items()):
        for records in consumer.poll(1_000).values():
            for record in records:
                apply(rows, record)


class Table:
    """A copy of the table in memory. `refresh` makes it as new as the topic."""

    def __init__(
        self, bootstrap: str, topic: str, read: Read = read_to_the_end, apply: Apply = apply
    ) -> None:
        self.rows: Rows = {}
        self._bootstrap, self._topic = bootstrap, topic
        self._read, self._apply = read, apply
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Open the clients, and read the table."""
        with ExitStack() as stack:
            self._producer = stack.enter_context(SyncProducer(self._bootstrap, linger_ms=0))
            self._consumer = stack.enter_context(SyncConsumer(self._bootstrap))
            numbers = self._consumer.partitions_for(self._topic)
            self._consumer.assign([TopicPartition(self._topic, number) for number in numbers])
            self._consumer.seek_to_beginning()
            self.refresh()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the clients."""
        self._stack.close()

    def refresh(self) -> None:
        """Read the changes so far, those of other processes included."""
        self._read(self._consumer, self.rows, self._apply)

    def put(self, key: bytes, value: bytes) -> None:
        """Set a row. Returns when the change is acknowledged."""
        self._producer.send_and_wait(self._topic, value, key)

    def delete(self, key: bytes) -> None:
        """Delete a row. Returns when the tombstone is acknowledged."""
        self._producer.send_and_wait(self._topic, None, key)


def main(bootstrap: str, topic: str, *changes: str) -> None:
    """Make the changes of the command line, and print the table."""
    with Table(bootstrap, topic) as table:
        for change in changes:
            key, _, value = change.partition("=")
            if value:
                table.put(key.encode(), value.encode())
            else:
                table.delete(key.encode())
        table.refresh()
        for row in sorted(table.rows):
            print(row.decode(), table.rows[row].decode())  # noqa: T201 - an example prints


if __name__ == "__main__":
    main(*sys.argv[1:])
