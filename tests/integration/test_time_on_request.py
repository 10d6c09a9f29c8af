"""Time on request, with real processes: days pass in a call, and no session ends by them."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from quorumlog import LocalCluster
from quorumlog.chaos.mutants import mutant_module
from quorumlog.cluster import InvalidArgument

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("time_on_request")]
WAIT_S = 30.0
DAY_MS = 86_400_000
SETTINGS = {"offsets.retention.minutes": "1440", "min.insync.replicas": "2"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("time"), nodes=3, config=SETTINGS) as cluster:
        yield cluster


def create(cluster: LocalCluster, topic: str, **config: str) -> str:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    replicas = min(3, len(cluster.nodes))
    admin.create_topics([NewTopic(topic, 1, replicas, config=settings)])[topic].result(WAIT_S)
    return topic


def produce(cluster: LocalCluster, topic: str, *pairs: tuple[str, str | None]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for key, value in pairs:
        producer.produce(topic, value, key=key)
    assert producer.flush(WAIT_S) == 0


def consumer_of(cluster: LocalCluster, group: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "session.timeout.ms": 10_000,
        }
    )


def values(cluster: LocalCluster, topic: str) -> list[str | None]:
    """Return the committed values of partition 0, up to the end at the call."""
    consumer = consumer_of(cluster, "reader")
    found: list[str | None] = []
    start = confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)
    try:
        consumer.assign([start])
        while True:
            message = consumer.poll(WAIT_S)
            assert message is not None, f"neither a record nor the end of {topic} in {WAIT_S} s"
            error = message.error()
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                return found
            value = message.value()
            found.append(None if value is None else value.decode())
    finally:
        consumer.close()


def committed(cluster: LocalCluster, group: str, topic: str) -> int:
    """Return the committed offset of partition 0; -1001: there is none."""
    consumer = consumer_of(cluster, group)
    try:
        [found] = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], WAIT_S)
        return int(found.offset)
    finally:
        consumer.close()


def commit(cluster: LocalCluster, group: str, topic: str, offset: int) -> None:
    consumer = consumer_of(cluster, group)
    try:
        at = confluent_kafka.TopicPartition(topic, 0, offset)
        consumer.commit(offsets=[at], asynchronous=False)
    finally:
        consumer.close()


def view(cluster: LocalCluster, node_id: int) -> dict[str, Any]:
    found = cluster.node_status(node_id)
    assert found is not None, f"node {node_id} does not answer"
    return found


def clocks(cluster: LocalCluster) -> set[int]:
    return {view(cluster, node.id)["clock_ahead_ms"] for node in cluster.nodes}


def test_records_age_by_the_advances_after_their_write(cluster: LocalCluster) -> None:
    orders = create(cluster, "orders")
    produce(cluster, orders, ("k", "old"))
    assert "orders-0" not in cluster.advance(days=6)["removed"]
    produce(cluster, orders, ("k", "young"))  # by a client whose clock was not advanced
    removed = cluster.advance(days=2)["removed"]["orders-0"]
    assert removed["records"] == removed["segments"] == 1
    assert values(cluster, orders) == ["young"]
    assert cluster.apply_retention(orders)["removed"] == {}
    assert values(cluster, orders) == ["young"]
    cluster.advance(days=6)
    assert values(cluster, orders) == []


def test_the_brokers_own_times_are_advanced_too(cluster: LocalCluster) -> None:
    stamped = create(cluster, "stamped", message_timestamp_type="LogAppendTime")
    cluster.advance(days=6)
    produce(cluster, stamped, ("k", "first"))
    cluster.advance(days=6)
    produce(cluster, stamped, ("k", "second"))
    cluster.advance(days=2)
    assert values(cluster, stamped) == ["second"]


def test_clients_whose_clocks_stay_behind_are_not_refused(cluster: LocalCluster) -> None:
    limited = create(cluster, "limited", message_timestamp_before_max_ms="60000")
    cluster.advance(days=1)
    produce(cluster, limited, ("k", "value"))
    assert values(cluster, limited) == ["value"]


def test_compaction_on_request_removes_old_values_and_in_time_tombstones(
    cluster: LocalCluster,
) -> None:
    states = create(cluster, "states", cleanup_policy="compact")
    produce(cluster, states, ("a", "1"), ("b", "1"), ("a", "2"), ("b", None))
    assert cluster.compact(states)["removed"]["states-0"]["records"] == 2
    assert values(cluster, states) == ["2", None]
    cluster.advance(days=2)  # delete.retention.ms is a day
    cluster.compact(states)
    assert values(cluster, states) == ["2"]


def test_young_records_are_compacted_once_their_lag_has_passed(cluster: LocalCluster) -> None:
    week_ms = str(7 * DAY_MS)
    lagging = create(cluster, "lagging", cleanup_policy="compact", min_compaction_lag_ms=week_ms)
    produce(cluster, lagging, ("a", "1"), ("a", "2"))
    cluster.compact(lagging)
    assert values(cluster, lagging) == ["1", "2"]
    cluster.advance(days=8)
    cluster.compact(lagging)
    assert values(cluster, lagging) == ["2"]


def test_a_log_is_compacted_by_itself_after_its_longest_lag(cluster: LocalCluster) -> None:
    settings = {"max_compaction_lag_ms": str(DAY_MS), "min_cleanable_dirty_ratio": "1.0"}
    overdue = create(cluster, "overdue", cleanup_policy="compact", **settings)
    produce(cluster, overdue, ("a", "0"), ("b", "0"))
    cluster.compact(overdue)
    produce(cluster, overdue, ("a", "1"), ("a", "2"))
    cluster.advance(days=2)
    assert values(cluster, overdue) == ["0", "2"]


def test_offsets_of_an_empty_group_expire_and_those_committed_later_stay(
    cluster: LocalCluster,
) -> None:
    read = create(cluster, "read")
    commit(cluster, "leavers", read, 3)
    assert cluster.expire_groups()["offsets"] == {}
    assert committed(cluster, "leavers", read) == 3
    cluster.advance(days=2)
    cluster.expire_groups()  # the advance has begun it
    assert committed(cluster, "leavers", read) == confluent_kafka.OFFSET_INVALID
    commit(cluster, "leavers", read, 4)
    assert cluster.expire_groups()["offsets"] == {}
    assert committed(cluster, "leavers", read) == 4


def test_a_transaction_that_has_passed_its_timeout_is_aborted(cluster: LocalCluster) -> None:
    paid = create(cluster, "paid")
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "transactional.id": "payer",
        "transaction.timeout.ms": 60_000,
    }
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(paid, "never committed")
    assert producer.flush(WAIT_S) == 0
    produce(cluster, paid, ("k", "behind it"))
    cluster.advance(minutes=2)
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(WAIT_S)
    deadline_s = time.monotonic() + WAIT_S
    while not (found := values(cluster, paid)):  # up to the last stable offset
        assert time.monotonic() < deadline_s, "the transaction is still open"
    assert found == ["behind it"]


def next_value(consumer: confluent_kafka.Consumer) -> str:
    """Return the value of the next record of a member, across ends of partitions."""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            return (message.value() or b"").decode()
    raise AssertionError(f"the member receives no record within {WAIT_S} s")


def is_member_after_a_year(cluster: LocalCluster) -> bool:
    """Advance the clock by a year; return whether a member may still commit."""
    watched = create(cluster, "watched", retention_ms="-1")
    produce(cluster, watched, ("k", "1"))
    consumer = consumer_of(cluster, "watchers")
    try:
        consumer.subscribe([watched])
        assert next_value(consumer) == "1"
        cluster.advance(days=365)
        consumer.commit(asynchronous=False)  # as a member of the generation
        return True
    except confluent_kafka.KafkaException as refusal:
        if refusal.args[0].code() != confluent_kafka.KafkaError.UNKNOWN_MEMBER_ID:
            raise
        return False
    finally:
        consumer.close()


def test_a_year_ends_no_session(cluster: LocalCluster) -> None:
    """`test_simulated_time.py` has the leaders: here they may move because the machine is busy."""
    assert is_member_after_a_year(cluster)


def test_a_broken_node_whose_sessions_age_is_found(tmp_path: Path) -> None:
    broken = mutant_module("ages-sessions")
    with LocalCluster(tmp_path, nodes=1, node_module=broken) as cluster:
        assert not is_member_after_a_year(cluster)


def test_a_broken_node_whose_retention_ignores_advances_is_found(tmp_path: Path) -> None:
    broken = mutant_module("ignores-advances")
    with LocalCluster(tmp_path, nodes=1, node_module=broken) as cluster:
        orders = create(cluster, "orders")
        produce(cluster, orders, ("k", "old"))
        assert cluster.advance(days=8)["removed"] == {}
        assert values(cluster, orders) == ["old"]


def test_paused_and_dead_nodes_follow_and_keep_what_was_written_later(
    cluster: LocalCluster,
) -> None:
    later = create(cluster, "later")
    produce(cluster, later, ("k", "before"))
    cluster.kill(2)
    try:
        moved = cluster.advance(days=8)
        assert (moved["nodes"], moved["later"]) == ([1, 3], [2])
        produce(cluster, later, ("k", "after"))
    finally:
        cluster.start_node(2)
    assert clocks(cluster) == {moved["ahead_ms"]}
    cluster.pause(3)
    try:
        moved = cluster.advance(hours=1)
        assert moved["later"] == [3]
    finally:
        cluster.resume(3)
    assert clocks(cluster) == {moved["ahead_ms"]}
    cluster.apply_retention(later)
    assert values(cluster, later) == ["after"]


def test_mistakes_are_answered_with_a_sentence_and_move_no_clock(cluster: LocalCluster) -> None:
    create(cluster, "named")
    before = clocks(cluster)
    with pytest.raises(InvalidArgument, match="only forwards; for example days=7"):
        cluster.advance(days=-1)
    with pytest.raises(InvalidArgument, match="only forwards"):
        cluster.advance()
    with pytest.raises(InvalidArgument, match="100 years"):
        cluster.advance(days=10**9)
    with pytest.raises(ValueError, match="inf ms"):
        cluster.advance(days=float("inf"))
    with pytest.raises(InvalidArgument, match="no topic nammed; did you mean named"):
        cluster.compact("nammed")
    with pytest.raises(InvalidArgument, match=r"topic named has cleanup\.policy=delete; set it"):
        cluster.compact("named")
    assert clocks(cluster) == before


def test_a_cluster_that_is_opened_again_has_its_clock(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1) as first:
        kept = create(first, "kept")
        produce(first, kept, ("k", "before"))
        first.advance(days=8)
        produce(first, kept, ("k", "after"))
    with LocalCluster(tmp_path) as again:
        assert clocks(again) == {8 * DAY_MS}
        again.apply_retention(kept)
        assert values(again, kept) == ["after"]
        again.advance(ms=1)
        assert clocks(again) == {8 * DAY_MS + 1}
