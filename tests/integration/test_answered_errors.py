"""Real clients under rules that answer with errors: nothing is lost, nothing is there twice."""

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from quorumlog.chaos.back_ends.run_resources import Equipment, started
from quorumlog.chaos.control.manual_nemesis import ManualNemesis
from quorumlog.chaos.drivers.registry import DRIVERS, DriverUnavailable, load_driver
from quorumlog.chaos.node_simulation.simulate import simulate_nodes
from quorumlog.client import NewTopic, TopicPartition
from quorumlog.client.sync import SyncAdmin, SyncConsumer, SyncProducer
from quorumlog.cluster import LocalCluster
from tools.client_errors import Case, Lab, outcome

pytestmark = pytest.mark.integration

CASES = (
    Case("Produce", "NOT_LEADER_OR_FOLLOWER", "refused"),
    Case("Produce", "REQUEST_TIMED_OUT", "appended"),
    Case("InitProducerId", "COORDINATOR_LOAD_IN_PROGRESS", "refused"),
    Case("Metadata", "LEADER_NOT_AVAILABLE", "refused"),
    Case("Fetch", "NOT_LEADER_OR_FOLLOWER", "refused"),
    Case("FindCoordinator", "COORDINATOR_NOT_AVAILABLE", "refused"),
    Case("JoinGroup", "COORDINATOR_NOT_AVAILABLE", "refused"),
    Case("OffsetCommit", "NOT_COORDINATOR", "appended"),
    Case("EndTxn", "COORDINATOR_NOT_AVAILABLE", "appended"),
)
"""Answers that every client retries."""


class Running(NamedTuple):
    bootstrap: str
    nemesis: ManualNemesis


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    cluster = LocalCluster(tmp_path_factory.mktemp("answers") / "cluster", nodes=3)
    with started(cluster, Equipment(links=True)) as back_end:
        nemesis = ManualNemesis(
            back_end, topics=list, topic=None, seed=1, record=lambda *_: None, outlives=False
        )
        with nemesis:
            yield Running(cluster.bootstrap, nemesis)


@pytest.mark.xdist_group("answered_errors")
@pytest.mark.parametrize("case", CASES, ids="-".join)
@pytest.mark.parametrize("client", ["client", "confluent"])
def test_a_client_retries_three_errors(running: Running, client: str, case: Case) -> None:
    try:
        driver = load_driver(client)
    except DriverUnavailable as error:
        pytest.skip(str(error))
    assert client in DRIVERS
    topic = f"{client}-{case.api}-{case.after}"
    lab = Lab(running.bootstrap, running.nemesis, driver, topic, set())
    assert asyncio.run(outcome(lab, case)) == "retries"


@pytest.mark.xdist_group("answered_errors")
def test_one_partition_of_a_topic_known_by_its_id(running: Running) -> None:
    """The clients have the metadata before the rule: Produce 13 and Fetch 13 name no topic."""
    with SyncAdmin(running.bootstrap) as admin:
        admin.create_topics([NewTopic("orders", 2, 3)])
    nemesis, desk = running.nemesis, SyncProducer(running.bootstrap, client_id="desk")
    with desk:
        desk.send_and_wait("orders", b"0", partition=0)
        sent = nemesis.observe("Produce", topic="orders", client_id="desk")
        with nemesis.answering(
            "Produce", "NOT_LEADER_OR_FOLLOWER", topic="orders", partition=0
        ) as rule:
            assert desk.send_and_wait("orders", b"1", partition=1).offset == 0
            assert rule.answered == 0
        lied = nemesis.answer("Produce", 20, topic="orders", partition=0, times=2, after="appended")
        assert desk.send_and_wait("orders", b"1", partition=0).offset == 1
        assert (lied.answered, sent.matches) == (2, 4)
    with SyncConsumer(running.bootstrap, auto_offset_reset="earliest") as till:
        refused = nemesis.answer("Fetch", 6, topic="orders", partition=0, times=3)
        till.assign([TopicPartition("orders", 0), TopicPartition("orders", 1)])
        got: list[bytes | None] = []
        while len(got) < 3:
            got += [record.value for records in till.poll(500).values() for record in records]
    assert sorted(got, key=str) == [b"0", b"1", b"1"]
    assert refused.answered == 3
    nemesis.mend()


@pytest.mark.parametrize(("workload", "seed"), [("append_read", 2), ("group_consume", 0)])
def test_simulated_nodes_answer_with_errors(workload: str, seed: int) -> None:
    """A fault that answered no request would be `skipped`, and not among the faults."""
    options: dict[str, Any] = {
        "duration_ms": 6_000,
        "workload": workload,
        "faults": ("answer", "kill"),
    }
    result = simulate_nodes(seed, **options)
    assert (result.violations, result.anomalies, result.valid) == ((), (), True)
    assert "answer" in result.faults
    assert simulate_nodes(seed, **options).digest == result.digest
