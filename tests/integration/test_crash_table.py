"""The crash table (docs/crash-table.md), on real processes and on whole nodes in simulation."""

import asyncio
from pathlib import Path
from typing import Final

import pytest

from quorumlog import Admin, LocalCluster
from quorumlog.chaos.node_simulation.machine import KAFKA_PORT, Machine, host_of
from quorumlog.chaos.node_simulation.run import SimulatedRun
from quorumlog.chaos.node_simulation.simulate import simulate_nodes
from quorumlog.client import NewTopic
from quorumlog.cluster import ClusterShape
from quorumlog.metadata_quorum.image import PartitionImage
from tests.support.cluster import kept_topic
from tests.support.cluster.crash_table import TOPIC, Partition, Seen, tell

pytestmark = pytest.mark.integration

CONFIG: Final = {"min.insync.replicas": "2"}
CONTROLLER, REPLICAS = 1, (2, 3, 4)


class RealBrokers:
    """The brokers of a local cluster."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster: Final = cluster
        self._addresses: Final = {node.id: node.kafka for node in cluster.nodes}

    async def kill(self, *broker_ids: int) -> None:
        self._cluster.kill(*broker_ids)

    async def start(self, broker_id: int) -> None:
        await asyncio.to_thread(self._cluster.start_node, broker_id)

    def seen(self) -> Seen:
        found = kept_topic.partition(self._cluster)
        return Seen(found["leader"], frozenset(found["isr"]), frozenset(found["elr"]))

    def address(self, broker_id: int) -> tuple[str, int]:
        host, _, port = self._addresses[broker_id].rpartition(":")
        return host, int(port)


class SimulatedBrokers:
    """The brokers of a simulated run; the controller is a machine of its own."""

    def __init__(self, machines: dict[int, Machine]) -> None:
        self._machines: Final = machines

    async def kill(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            self._machines[broker_id].kill()

    async def start(self, broker_id: int) -> None:
        machine = self._machines[broker_id]
        machine.start()
        async with asyncio.timeout(60):
            while not machine.is_ready:
                await asyncio.sleep(0.05)

    def _partition(self) -> PartitionImage:
        node = self._machines[CONTROLLER].node
        assert node is not None
        return node.quorum.image.topics[TOPIC].partitions[0]

    def replicas(self) -> tuple[int, int, int]:
        first, second, out = self._partition().replicas
        return first, second, out

    def seen(self) -> Seen:
        found = self._partition()
        return Seen(found.leader_id, frozenset(found.isr), frozenset(found.elr))

    def address(self, broker_id: int) -> tuple[str, int]:
        return host_of(broker_id), KAFKA_PORT


def test_the_crash_table_on_real_processes(tmp_path: Path) -> None:
    shape = {"controllers": 1, "brokers": len(REPLICAS)}
    with LocalCluster(tmp_path, config=CONFIG, **shape) as cluster:  # type: ignore[arg-type]
        asyncio.run(kept_topic.create(cluster.bootstrap, num_partitions=1))
        first, second, out = kept_topic.partition(cluster)["replicas"]
        asyncio.run(tell(Partition(RealBrokers(cluster), (first, second, out))))


@pytest.mark.parametrize("seed", [1])
def test_the_crash_table_in_simulation(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    until_whole = SimulatedRun._until_whole

    async def and_rows(run: SimulatedRun) -> None:
        await until_whole(run)
        bootstrap = ",".join(f"{host_of(broker_id)}:{KAFKA_PORT}" for broker_id in REPLICAS)
        async with Admin(bootstrap) as admin:
            await admin.create_topics([NewTopic(TOPIC, num_partitions=1, replication_factor=3)])
        brokers = SimulatedBrokers(run._machines)
        try:
            await tell(Partition(brokers, brokers.replicas()))
        except (AssertionError, TimeoutError) as error:
            run._violated(f"crash table: {error!r}")
        else:
            run._faults.append("crash table")

    monkeypatch.setattr(SimulatedRun, "_until_whole", and_rows)
    shape = ClusterShape(controllers=1, brokers=len(REPLICAS))
    result = simulate_nodes(seed, duration_ms=1_000, faults=(), config=CONFIG, shape=shape)
    assert result.violations == ()
    assert "crash table" in result.faults
