"""The table is compacted, its leader dies, brokers refuse fetches; then a new process reads it."""

import pytest
from table import Apply, Read, Rows, Table, apply, read_to_the_end

from quorumlog import LocalCluster
from quorumlog.client import ConsumerRecord
from quorumlog.client.sync import SyncConsumer
from quorumlog.testing import MakeTopic, ManualNemesis, read_topic

KEYS = [b"key %d" % number for number in range(10)]


def check(
    cluster: LocalCluster,
    make_topic: MakeTopic,
    nemesis: ManualNemesis,
    read: Read = read_to_the_end,
    apply: Apply = apply,
    refusals: int = 8,
) -> None:
    """Fail unless a new reader finds the last value of each key, and no deleted one."""
    topic = make_topic(partitions=2, configs={"cleanup.policy": "compact"})
    wanted: Rows = {}
    with Table(cluster.bootstrap, topic) as table:
        for times in range(3):
            for key in KEYS:
                table.put(key, b"value %d" % times)
                wanted[key] = b"value %d" % times
        cluster.compact(topic)
        for key in KEYS[:3]:
            table.delete(key)
            del wanted[key]
        table.refresh()
        assert table.rows == wanted  # a reader that was there all the time
    nemesis.kill("partition-leader", topic=topic)
    nemesis.answer("Fetch", "NOT_LEADER_OR_FOLLOWER", topic=topic, times=refusals)
    with Table(cluster.bootstrap, topic, read, apply) as table:
        rows = table.rows
    for key in KEYS:
        found, right = rows.get(key), wanted.get(key)
        assert found == right, f"{key!r} is {found!r} in the table, not {right!r}"
    assert len(read_topic(cluster, topic)) == len(KEYS) + 3  # compaction has removed the others


def test_a_new_reader_has_the_table(
    quorumlog_cluster: LocalCluster, make_topic: MakeTopic, nemesis: ManualNemesis
) -> None:
    check(quorumlog_cluster, make_topic, nemesis)


# --- mistakes that this test finds ---


def ignore_tombstones(rows: Rows, record: ConsumerRecord) -> None:
    if record.key is not None and record.value is not None:
        rows[record.key] = record.value


def take_an_empty_poll_for_the_end(consumer: SyncConsumer, rows: Rows, apply: Apply) -> None:
    while batch := consumer.poll(100):
        for records in batch.values():
            for record in records:
                apply(rows, record)


@pytest.mark.parametrize(
    ("read", "apply", "refusals", "found"),
    [
        (read_to_the_end, ignore_tombstones, 8, "is b'value 2' in the table, not None"),
        (take_an_empty_poll_for_the_end, apply, 1_000, "is None in the table, not b'value 2'"),
    ],
    ids=["ignored-tombstones", "empty-poll"],
)
def test_a_mistake_is_found(
    read: Read,
    apply: Apply,
    refusals: int,
    found: str,
    quorumlog_cluster: LocalCluster,
    make_topic: MakeTopic,
    nemesis: ManualNemesis,
) -> None:
    with pytest.raises(AssertionError, match=found):
        check(quorumlog_cluster, make_topic, nemesis, read, apply, refusals)
