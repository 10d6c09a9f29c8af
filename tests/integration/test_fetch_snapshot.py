"""A controller that was away for long catches up by a snapshot, in real processes."""

import asyncio
from pathlib import Path

import pytest

from quorumlog import Admin, LocalCluster
from quorumlog.client import NewTopic
from quorumlog.cluster import layout
from quorumlog.metadata_quorum.log.metadata_log import DIRECTORY
from tests.support.cluster.kept_topic import wait_for

pytestmark = pytest.mark.integration
SMALL = {
    "metadata.log.max.record.bytes.between.snapshots": "1000",
    "metadata.log.segment.bytes": "1000",
    "metadata.max.retention.bytes": "1500",
}


async def make_topics(bootstrap: str, *names: str) -> None:
    async with Admin(bootstrap) as admin:
        for name in names:
            topics = [NewTopic(name=f"{name}{number}", num_partitions=1) for number in range(9)]
            await admin.create_topics(topics)


def log_start(cluster: LocalCluster, node_id: int) -> int:
    directory = layout.node_directory(cluster.directory, node_id) / "data" / DIRECTORY
    # None for a moment: the log begins anew where the snapshot that came ends.
    return min((int(path.stem) for path in directory.glob("*.log")), default=0)


def test_a_controller_far_behind_catches_up_by_a_snapshot(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, controllers=3, brokers=1, config=SMALL)
    with cluster:
        controllers = [node.id for node in cluster.nodes if "controller" in node.roles]
        leader = cluster.status()["controller_id"]
        victim = next(node_id for node_id in controllers if node_id != leader)
        cluster.kill(victim)
        asyncio.run(make_topics(cluster.bootstrap, *"abcd"))
        others = [node_id for node_id in controllers if node_id != victim]
        wait_for(lambda: all(log_start(cluster, node_id) > 0 for node_id in others))
        cluster.start_node(victim)
        wait_for(lambda: log_start(cluster, victim) > 0)
        cluster.kill(next(node_id for node_id in others if node_id != leader))
        asyncio.run(make_topics(cluster.bootstrap, "e"))  # the victim makes a majority
        assert len(cluster.status()["topics"]) == 5 * 9
