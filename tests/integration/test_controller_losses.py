"""Nodes that come back with less than they had: what was acknowledged is there, or nobody leads."""

import asyncio
import shutil
from pathlib import Path

import pytest

from quorumlog import Admin, LocalCluster
from quorumlog.cluster import forked, layout
from quorumlog.cluster.layout import log_file
from tests.support.cluster.kept_topic import create, partition, produce, read_all, wait_for

pytestmark = pytest.mark.integration
COUNT = 100
SEGMENT = "data/kept-0/00000000000000000000.log"


def wipe(cluster: LocalCluster, node_id: int) -> None:
    shutil.rmtree(layout.node_directory(cluster.directory, node_id) / "data")


def said(cluster: LocalCluster, text: str) -> bool:
    return any(text in log_file(cluster.directory, node.id).read_text() for node in cluster.nodes)


def test_a_wiped_broker_never_leads_before_it_has_refilled_itself(tmp_path: Path) -> None:
    """Two of three died while in sync: either holds all. One comes back with an empty disk."""
    cluster = LocalCluster(tmp_path, controllers=1, brokers=3, config={"min.insync.replicas": "2"})
    with cluster:
        asyncio.run(create(cluster.bootstrap, num_partitions=1))
        asyncio.run(produce(cluster.bootstrap, range(COUNT)))
        replicas = partition(cluster)["replicas"]
        leader, lagging, wiped = replicas
        for left, victim in enumerate((lagging, wiped, leader)):
            cluster.kill(victim)
            wait_for(lambda left=left: len(partition(cluster)["isr"]) == 2 - left)  # type: ignore[misc]
        assert {*partition(cluster)["elr"]} == {leader, wiped}
        wipe(cluster, wiped)
        cluster.start_node(wiped)
        cluster.start_node(lagging)
        shown = partition(cluster)
        assert (shown["leader"], shown["isr"], shown["elr"]) == (-1, [], [leader])
        assert said(cluster, f"broker {wiped} may lack acknowledged records: the log directory")
        cluster.start_node(leader)
        assert asyncio.run(read_all(cluster.bootstrap)) == [*range(COUNT)]
        wait_for(lambda: {*partition(cluster)["isr"]} == {*replicas})
        asyncio.run(produce(cluster.bootstrap, range(COUNT, COUNT + 10)))
        wait_for(lambda: {*partition(cluster)["isr"]} == {*replicas})
    logs = [layout.node_directory(tmp_path, node_id) / SEGMENT for node_id in replicas]
    assert {log.read_bytes() for log in logs} == {logs[0].read_bytes()}
    with LocalCluster.open(tmp_path) as again:
        assert asyncio.run(read_all(again.bootstrap)) == [*range(COUNT + 10)]


def test_a_partition_whose_last_disk_was_wiped_has_no_leader_until_it_is_made_anew(
    tmp_path: Path,
) -> None:
    async def has_no_leader(bootstrap: str) -> bool:
        async with Admin(bootstrap) as admin:
            described = (await admin.describe_topics(["kept"]))["kept"].partitions[0]
        return (described.leader_id, tuple(described.isr)) == (-1, ())

    async def delete(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            await admin.delete_topics(["kept"])

    with LocalCluster(tmp_path, controllers=1, brokers=1) as cluster:
        asyncio.run(create(cluster.bootstrap, num_partitions=1))
        asyncio.run(produce(cluster.bootstrap, range(COUNT)))
        cluster.kill(2)
        wipe(cluster, 2)
        cluster.start_node(2)
        shown = partition(cluster)
        assert (shown["leader"], shown["isr"], shown["elr"]) == (-1, [], [])
        assert said(cluster, "No other broker held all of kept-0: THEY HAVE NO LEADER FROM NOW ON")
        assert asyncio.run(has_no_leader(cluster.bootstrap))
        asyncio.run(delete(cluster.bootstrap))
        asyncio.run(create(cluster.bootstrap, num_partitions=1))
        asyncio.run(produce(cluster.bootstrap, range(3)))
        assert asyncio.run(read_all(cluster.bootstrap)) == [0, 1, 2]


def test_a_machine_that_restarts_may_have_lost_what_was_not_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forked, "preloaded_for", lambda *_, **__: ["quorumlog.node.preloaded"])

    def restart_machines(name: str) -> None:
        for node in cluster.nodes:
            (layout.node_directory(tmp_path, node.id) / "boot_id").write_text(name)

    cluster = LocalCluster(tmp_path, nodes=3, node_module="tests.support.node.boot_id_of_its_own")
    layout.save(tmp_path, cluster.spec)
    restart_machines("first")
    with cluster:
        asyncio.run(create(cluster.bootstrap, num_partitions=1))
        asyncio.run(produce(cluster.bootstrap, range(COUNT)))
        cluster.kill(1, 2, 3)
        cluster.start()
    restart_machines("second")  # after a clean stop
    with cluster:
        assert asyncio.run(read_all(cluster.bootstrap)) == [*range(COUNT)]
        assert not said(cluster, "may lack acknowledged records")
        cluster.kill(1, 2, 3)
        restart_machines("third")
        cluster.start()
        # No broker is known to have all: the longest log leads, and the controller says so.
        assert said(cluster, "may lack acknowledged records: the machine restarted")
        assert said(cluster, "the logs that are left decide who leads")
        assert asyncio.run(read_all(cluster.bootstrap)) == [*range(COUNT)]
        wait_for(lambda: len(partition(cluster)["isr"]) == 3)
