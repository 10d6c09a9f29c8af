"""Tests that share a cluster: each second test fails if the first one has left something behind."""

from pathlib import Path

import pytest

from tests.support.testing.plugin import run_pytest

pytestmark = pytest.mark.integration

KEPT = """
import pytest
from quorumlog.client import NewTopic, TopicPartition
from quorumlog.client.sync import SyncAdmin, SyncConsumer, SyncProducer
from quorumlog.cluster.cluster_status import NodeState

OPEN = []

@pytest.fixture(scope="session")
def countries(quorumlog_cluster):
    with SyncAdmin(quorumlog_cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("countries", 1, 3)])
    with SyncProducer(quorumlog_cluster.bootstrap) as producer:
        producer.send_and_wait("countries", b"1")
    [partition] = quorumlog_cluster.status()["topics"]["countries"]["partitions"]
    return tuple(partition["replicas"])

@pytest.fixture
def replicas(quorumlog_admin):
    def read():
        return quorumlog_admin.describe_topics(["countries"])["countries"].partitions[0].replicas
    return read

@pytest.fixture(autouse=True)
def all_is_well(quorumlog_cluster, countries, replicas, quorumlog_admin):
    states = {quorumlog_cluster.state(node.id) for node in quorumlog_cluster.nodes}
    assert states == {NodeState.NO_ANSWER}
    assert quorumlog_cluster.marked is None
    assert quorumlog_admin.list_topics() == ["countries"]
    assert quorumlog_admin.describe_client_quotas() == []
    settings = quorumlog_admin.describe_configs("broker", "")
    assert [name for name in settings if "throttled" in name and settings[name].source == 3] == []
    assert replicas() == countries

def test_nodes_that_the_cluster_has_broken(quorumlog_cluster, make_topic):
    make_topic("orders")
    quorumlog_cluster.mark()
    quorumlog_cluster.pause(1)
    quorumlog_cluster.kill(2)

def test_all_nodes(quorumlog_cluster):
    quorumlog_cluster.kill(1, 2, 3)

def test_a_paused_node_that_was_killed(quorumlog_cluster, nemesis):
    nemesis.pause(2)
    quorumlog_cluster.kill(2)

def test_its_next_process_is_asked(nemesis):
    nemesis.kill([1, 3])
    nemesis.start(1)
    assert set(nemesis.holders("any")) == {1, 2}
    nemesis.start(3)

def test_requests_that_a_majority_must_undo(nemesis, make_topic):
    make_topic("orders")
    nemesis.inflict("throttle", "all")
    nemesis.inflict("quota", "all")
    nemesis.kill([2, 3])

def test_a_healing_that_fails(nemesis, quorumlog_back_end):
    lift = quorumlog_back_end.lift
    async def fail(rule_id):
        quorumlog_back_end.lift = lift
        raise OSError("the rule stays")
    nemesis.isolate(1)
    nemesis.pause(2)
    quorumlog_back_end.lift = fail

def test_the_rule_was_lifted(quorumlog_cluster):
    quorumlog_cluster.settled(timeout_s=60)

def test_replicas_that_have_moved(quorumlog_cluster, quorumlog_admin, countries, replicas):
    partition = TopicPartition("countries", 0)
    quorumlog_admin.alter_partition_reassignments({partition: countries[1::-1]})
    quorumlog_cluster.settled(timeout_s=60)
    assert replicas() == countries[1::-1]

def test_a_consumer_that_stays_open(quorumlog_cluster, make_topic):
    consumer = SyncConsumer(quorumlog_cluster.bootstrap, group_id="left")
    consumer.subscribe([make_topic("orders")])
    while not consumer.assignment():
        consumer.poll(100)
    OPEN.append(consumer)

def test_all_but_its_group_is_gone(quorumlog_admin):
    assert [one.group_id for one in quorumlog_admin.list_consumer_groups()] == ["left"]
    OPEN.pop().close()

def test_its_group_is_gone(quorumlog_admin):
    assert quorumlog_admin.list_consumer_groups() == []
"""


@pytest.mark.timeout(300)
def test_each_test_finds_the_cluster_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "test_kept.py").write_text(KEPT)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nquorumlog_cluster_scope = session\nquorumlog_cluster_reset = true\n"
    )
    done = run_pytest(tmp_path, "-p", "no:cacheprovider", "--basetemp=base", timeout_s=280)
    assert "11 passed, 2 errors" in done.stdout, done.stdout + done.stderr
    assert "the rule stays" in done.stdout
    assert "group left has members" in done.stdout
