"""The program is killed before each step of `count`; the next one restores the counts, and goes on.

All lines are the same word: after step 7 its count is 7.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count as numbers

import pytest
from word_count import Counts, count, open_clients, restore

from quorumlog import LocalCluster
from quorumlog.client import ConsumerRecord, TopicPartition
from quorumlog.client.sync import SyncConsumer, SyncProducer
from quorumlog.testing import MakeTopic, ManualNemesis, killed_at, read_topic

WORD = b"again"

Count = Callable[
    [Sequence[ConsumerRecord], Counts, SyncConsumer, SyncProducer, TopicPartition], None
]
Restore = Callable[[str, TopicPartition], Counts]


def count_lines(
    bootstrap: str, lines: TopicPartition, changelog: TopicPartition, count: Count, restore: Restore
) -> Counts:
    """Count to the end of the lines."""
    with open_clients(bootstrap, lines) as (consumer, producer):
        counts = restore(bootstrap, changelog)
        end = consumer.end_offsets([lines])[lines]
        while consumer.position(lines) < end:
            for records in consumer.poll(1_000).values():
                count(records, counts, consumer, producer, changelog)
    return counts


class Crashes:
    """Crashes the program, and compares the counts with the lines."""

    def __init__(
        self, cluster: LocalCluster, make_topic: MakeTopic, nemesis: ManualNemesis
    ) -> None:
        self.cluster, self.nemesis = cluster, nemesis
        self.lines = TopicPartition(make_topic(), 0)
        self.changelog = TopicPartition(make_topic(configs={"cleanup.policy": "compact"}), 0)

    def check(self, count: Count, restore: Restore) -> None:
        """Fail unless the counts in memory and in the changelog are right after every crash."""
        bootstrap = self.cluster.bootstrap
        program = (bootstrap, self.lines, self.changelog, count, restore)
        with SyncProducer(bootstrap, linger_ms=0) as writer:
            for step in numbers(1):
                writer.send_and_wait(self.lines.topic, WORD)
                if step == 3:
                    self.nemesis.kill("partition-leader", topic=self.changelog.topic)
                crash = killed_at(step, count_lines, *program, within=[count])
                counts = count_lines(*program)
                changes = read_topic(self.cluster, self.changelog.topic)
                stored = {one.key or b"": int(one.value or b"") for one in changes}
                for place, found in (("memory", counts), ("the changelog", stored)):
                    wrong = f"the count in {place} is {found[WORD]} after {step} lines"
                    assert found[WORD] == step, f"{wrong}: {crash}"
                if crash is None:
                    break


@pytest.fixture
def crashes(
    quorumlog_cluster: LocalCluster, make_topic: MakeTopic, nemesis: ManualNemesis
) -> Crashes:
    return Crashes(quorumlog_cluster, make_topic, nemesis)


def test_each_word_counts_once(crashes: Crashes) -> None:
    crashes.check(count, restore)


# --- mistakes that this test finds ---

restore_what_was_aborted = partial(restore, isolation_level="read_uncommitted")


def restore_nothing(bootstrap: str, changelog: TopicPartition) -> Counts:
    del bootstrap, changelog
    return {}


def commit_beside_the_transaction(
    records: Sequence[ConsumerRecord],
    counts: Counts,
    consumer: SyncConsumer,
    producer: SyncProducer,
    changelog: TopicPartition,
) -> None:
    with producer.transaction():
        for record in records:
            for word in (record.value or b"").split():
                counts[word] = counts.get(word, 0) + 1
                value = b"%d" % counts[word]
                producer.send(changelog.topic, value, word, partition=changelog.partition)
    consumer.commit()


@pytest.mark.parametrize(
    ("count", "restore", "found"),
    [
        (
            count,
            restore_what_was_aborted,
            "the count in memory is [0-9]+ after [0-9]+ lines: kill -9",
        ),
        (count, restore_nothing, "the count in memory is 1 after 2 lines"),
        (
            commit_beside_the_transaction,
            restore,
            "the count in memory is [0-9]+ after [0-9]+ lines: kill -9",
        ),
    ],
    ids=["restores-aborted", "restores-nothing", "commits-beside"],
)
def test_a_mistake_is_found(count: Count, restore: Restore, found: str, crashes: Crashes) -> None:
    with pytest.raises(AssertionError, match=found):
        crashes.check(count, restore)
