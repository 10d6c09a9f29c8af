"""The plugin's fixtures for projects whose names are their own, on real clusters."""

from pathlib import Path

import pytest

from tests.support.testing.plugin import run_pytest

pytestmark = pytest.mark.integration

SHARED = """
import pytest
from quorumlog.client import KafkaError
from quorumlog.client.sync import SyncProducer
from quorumlog.testing import wait_for_leaders, wait_until_lag_is_zero

OPEN = []

def use(cluster, make_topic, admin, producer, consumer):
    orders = make_topic("orders", partitions=3)
    assert orders == "orders"
    assert orders.partitions == 3
    assert make_topic().startswith("test_")
    assert admin.list_topics() == sorted(admin.list_topics())
    for number in range(6):
        producer.send_and_wait(orders, b"%d" % number, partition=number % 3)
    consumer.subscribe([orders])
    seen = []
    while len(seen) < 6:
        for records in consumer.poll(1000).values():
            seen += [record.value for record in records]
    assert sorted(seen) == [b"%d" % number for number in range(6)]
    consumer.commit()
    wait_until_lag_is_zero(cluster, consumer.group_metadata().group_id)

@pytest.mark.parametrize("turn", [1, 2])
def test_names_of_an_application(
    clean_cluster, make_topic, quorumlog_admin, quorumlog_producer, quorumlog_consumer, turn
):
    assert quorumlog_admin.list_topics() == []
    assert quorumlog_admin.list_consumer_groups() == []
    assert quorumlog_admin.transactions.list(states=["Ongoing"]) == []
    use(clean_cluster, make_topic, quorumlog_admin, quorumlog_producer, quorumlog_consumer)
    writer = SyncProducer(clean_cluster.bootstrap, transactional_id="billing")
    writer.init_transactions()
    writer.begin_transaction()
    writer.send_and_wait("orders", b"open", partition=0)
    OPEN.append(writer)
    assert quorumlog_admin.transactions.list(states=["Ongoing"]) != []

def test_a_writer_of_an_earlier_test_is_fenced(clean_cluster):
    for writer in OPEN:
        with pytest.raises(KafkaError) as error:
            writer.commit_transaction()
        assert error.value.fatal
        writer.close()

def test_leaders_are_waited_for(quorumlog_cluster, topic, nemesis):
    [before] = wait_for_leaders(quorumlog_cluster, topic)
    assert nemesis.kill("partition-leader").node_ids == (before,)
    [after] = wait_for_leaders(quorumlog_cluster, topic)
    assert after != before

def test_two_clusters(quorumlog_make_cluster, quorumlog_cluster):
    other = quorumlog_make_cluster(nodes=1)
    assert other.running() == [1]
    assert other.bootstrap not in quorumlog_cluster.bootstrap
    assert other.spec.cluster_id != quorumlog_cluster.spec.cluster_id

def test_the_second_time(clean_cluster, make_topic, topic):
    make_topic("orders")
    with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS"):
        make_topic("orders")
"""
BREAKABLE = """
import pytest

@pytest.fixture(scope="session")
def quorumlog_cluster_options():
    return {"nodes": 1, "breakable": True}

def test_a_disk(quorumlog_cluster, nemesis):
    with nemesis.inflicted("slow-fsync", 1, us=10_000):
        pass
"""
RESET = """
import pytest
from quorumlog.client import NewTopic, TopicPartition
from quorumlog.client.sync import SyncAdmin

@pytest.fixture(scope="session")
def countries(quorumlog_cluster):
    with SyncAdmin(quorumlog_cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("countries", 1, 3)])
    return "countries"

@pytest.mark.parametrize("number", range(30))
def test_fixed_names(make_topic, quorumlog_admin, quorumlog_producer, number):
    assert quorumlog_admin.list_topics() == []
    assert quorumlog_admin.list_consumer_groups() == []
    orders = make_topic("orders")
    quorumlog_producer.send_and_wait(orders, b"%d" % number)
    partition = TopicPartition("orders", 0)
    assert quorumlog_admin.list_offsets({partition: "latest"})[partition].offset == 1
    quorumlog_admin.alter_consumer_group_offsets("billing", {partition: 1})

@pytest.mark.parametrize("turn", [1, 2])
def test_a_topic_of_a_session_stays(countries, make_topic, quorumlog_admin, turn):
    assert quorumlog_admin.list_topics() == ["countries"]
    make_topic("orders")

def test_one_without_the_fixture_of_the_session(quorumlog_admin):
    assert quorumlog_admin.list_topics() == ["countries"]

def test_a_group_with_members(quorumlog_cluster, make_topic):
    from quorumlog.client.sync import SyncConsumer
    consumer = SyncConsumer(quorumlog_cluster.bootstrap, group_id="left")
    consumer.subscribe([make_topic("orders")])
    while not consumer.assignment():
        consumer.poll(100)
    LEFT.append(consumer)

LEFT = []
"""
SECURED = """
import pytest
from quorumlog.client import KafkaError
from quorumlog.client.sync import SyncProducer

@pytest.fixture(scope="session")
def quorumlog_cluster_options():
    users = {"alice": "wonderland", "admin": None}
    return {"security": {"tls": True, "sasl": "SCRAM-SHA-256", "users": users, "acls": True}}

def test_a_leader_dies(quorumlog_cluster, topic, nemesis, history, quorumlog_producer):
    producer = history.recorded(quorumlog_producer)
    for number in range(5):
        producer.send_and_wait(topic, b"%d" % number)
    nemesis.kill("partition-leader")
    producer.send_and_wait(topic, b"5")
    with SyncProducer(**quorumlog_cluster.client_config("alice")) as alice:
        with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
            alice.send_and_wait(topic, b"6")
    assert history.verdict.valid
"""
FAILS = """
def test_fails(quorumlog_cluster, topic, nemesis):
    nemesis.kill("partition-leader")
    assert False

def test_a_group_with_members(quorumlog_consumer, topic, request):
    quorumlog_consumer.subscribe([topic])
    while not quorumlog_consumer.assignment():
        quorumlog_consumer.poll(100)
    request.getfixturevalue("clean_cluster")
"""


@pytest.mark.timeout(180)
def test_tests_that_share_a_cluster_use_names_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "test_shared.py").write_text(SHARED)
    scope = ("--quorumlog-cluster-scope", "session")
    done = run_pytest(tmp_path, *scope, "--basetemp=base", timeout_s=170)
    assert "6 passed" in done.stdout, done.stdout + done.stderr
    assert [*(tmp_path / "base").glob("*/quorumlog/*")] == []


@pytest.mark.timeout(120)
def test_a_failure_shows_the_nodes_and_the_acts(tmp_path: Path) -> None:
    (tmp_path / "test_fails.py").write_text(FAILS)
    done = run_pytest(tmp_path, "--quorumlog-cluster-scope", "session", "--basetemp=base")
    assert "1 failed, 1 error" in done.stdout or "2 failed" in done.stdout, done.stdout
    assert "the ends of the nodes' logs" in done.stdout
    assert "node 1: " in done.stdout
    assert "(partition-leader)" in done.stdout
    assert "has members: a consumer of an earlier test is open" in done.stdout


@pytest.mark.timeout(120)
def test_a_secured_cluster_is_broken_and_judged(tmp_path: Path) -> None:
    (tmp_path / "test_secured.py").write_text(SECURED)
    done = run_pytest(tmp_path, "--basetemp=base", timeout_s=110)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert "wonderland" not in done.stdout + done.stderr


@pytest.mark.timeout(180)
def test_each_test_leaves_a_shared_cluster_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "test_reset.py").write_text(RESET)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nquorumlog_cluster_scope = session\nquorumlog_cluster_reset = true\n"
    )
    done = run_pytest(tmp_path, "--basetemp=base", timeout_s=170)
    assert "34 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "group left has members" in done.stdout


def test_disks_can_be_broken_if_the_options_of_the_cluster_allow_it(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(BREAKABLE)
    done = run_pytest(tmp_path, "--basetemp=base")
    assert "1 passed" in done.stdout, done.stdout + done.stderr
