"""Counts the words of a topic, exactly once; the counts survive the process that holds them.

python word_count.py localhost:9092 lines counts 0

One process counts the words of one partition. Its counts are in memory. Each change is a record of
the same partition of a changelog, a compacted topic whose last record of a word is its count. A
transaction contains the changes and the position in the lines, so that the changelog always is the
sum of the lines before that position. A new process reads it first.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from quorumlog.client import ConsumerRecord, TopicPartition
from quorumlog.client.settings import IsolationLevel
from quorumlog.client.sync import SyncConsumer, SyncProducer

Counts = dict[bytes, int]


@contextmanager
def open_clients(
    bootstrap: str, lines: TopicPartition
) -> Iterator[tuple[SyncConsumer, SyncProducer]]:
    """Yield a consumer of the partition and a transactional producer.

    `init_transactions` ends an earlier process of this partition, and its transaction, before the
    changelog is read.
    """
    name = f"count-{lines.topic}-{lines.partition}"
    with (
        SyncProducer(bootstrap, transactional_id=name, linger_ms=0) as producer,
        SyncConsumer(
            bootstrap,
            group_id=f"count-{lines.topic}",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        ) as consumer,
    ):
        producer.init_transactions()
        consumer.assign([lines])
        yield consumer, producer


def restore(
    bootstrap: str, changelog: TopicPartition, isolation_level: IsolationLevel = "read_committed"
) -> Counts:
    """Return the counts that the changelog ends with."""
    counts: Counts = {}
    with SyncConsumer(bootstrap, isolation_level=isolation_level) as consumer:
        consumer.assign([changelog])
        consumer.seek_to_beginning(changelog)
        end = consumer.end_offsets([changelog])[changelog]
        while consumer.position(changelog) < end:
            for change in consumer.poll(1_000).get(changelog, []):
                counts[change.key or b""] = int(change.value or b"")
    return counts


def count(
    records: Sequence[ConsumerRecord],
    counts: Counts,
    consumer: SyncConsumer,
    producer: SyncProducer,
    changelog: TopicPartition,
) -> None:
    """Count the words of a poll's records, all of one partition.

    The counts in memory change after the commit: an aborted transaction has no effect on them.
    """
    last = records[-1]
    changes: Counts = {}
    for record in records:
        for word in (record.value or b"").split():
            changes[word] = changes.get(word, counts.get(word, 0)) + 1
    with producer.transaction():
        totals = [b"%d" % total for total in changes.values()]
        sent = producer.send_many(
            changelog.topic, totals, [*changes], partition=changelog.partition
        )
        sent.result()
        position = {TopicPartition(last.topic, last.partition): last.offset + 1}
        producer.send_offsets_to_transaction(position, consumer.group_metadata())
    counts.update(changes)


def main(bootstrap: str, lines: str, counts_topic: str, partition: str) -> None:
    """Count, for ever. The two topics have the same number of partitions."""
    changelog = TopicPartition(counts_topic, int(partition))
    source = TopicPartition(lines, int(partition))
    with open_clients(bootstrap, source) as (consumer, producer):
        counts = restore(bootstrap, changelog)
        while True:
            for records in consumer.poll(1_000).values():
                count(records, counts, consumer, producer, changelog)


if __name__ == "__main__":
    main(*sys.argv[1:])
