"""Bulk requests and data at full speed do not keep heartbeats, votes and AlterPartition waiting.

Events are counted, not time: no broker is fenced, no other leader is elected, no ISR shrinks.
"""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from quorumlog.client import Admin, NewTopic, Producer
from quorumlog.cluster import LocalCluster, layout
from quorumlog.metadata_quorum.image.records import (
    BrokerRegistrationChange,
    MetadataRecord,
    PartitionChange,
    RegisterBroker,
)
from quorumlog.metadata_quorum.log.metadata_log import MetadataLog
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.identifiers import Offset

pytestmark = pytest.mark.integration
PARTITIONS = 5000  # of one request
VALUE = b"x" * 1000


def quorum_of(cluster: LocalCluster) -> list[tuple[int, int]]:
    """Return leader and epoch of the quorum, as each node knows them."""
    views = [cluster.node_status(node.id) for node in cluster.nodes]
    return [
        (view["quorum"]["leader_id"], view["quorum"]["leader_epoch"])
        for view in views
        if view is not None
    ]


def metadata_records(cluster: LocalCluster, node_id: int) -> list[MetadataRecord]:
    """Return what the metadata log of a killed node holds."""
    data = layout.data_directory(cluster.directory, node_id)
    log = MetadataLog.open(RealDisk(), str(data))
    try:
        return [record for _, record in log.replay(Offset(0), log.end_offset)]
    finally:
        log.close()


async def load(cluster: LocalCluster) -> int:
    """Create 5000 partitions and delete them, while a producer sends all that it can.

    Return how many records were acknowledged.
    """
    acknowledged, is_over = 0, False

    async def send(producer: Producer) -> None:
        nonlocal acknowledged
        while not is_over:
            for delivery in [await producer.send("busy", VALUE) for _ in range(200)]:
                await delivery
                acknowledged += 1

    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        await admin.create_topics([NewTopic("busy", 3, 3)])
        sending = asyncio.ensure_future(send(producer))
        await producer.send_and_wait("busy", VALUE)
        await admin.create_topics([NewTopic("bulk", PARTITIONS, 1)])
        await producer.send_and_wait("busy", VALUE)
        await admin.delete_topics(["bulk"])
        is_over = True
        await sending
    return acknowledged


def test_bulk_requests_beside_data_fence_no_broker_and_elect_no_leader(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", defaults="kafka") as cluster:
        before = quorum_of(cluster)
        assert asyncio.run(load(cluster)) > 0
        assert quorum_of(cluster) == before
        leader_id = before[0][0]
        cluster.kill(1, 2, 3)  # a clean stop would change the metadata
        records = metadata_records(cluster, leader_id)
    kinds = Counter(map(type, records))
    assert kinds[RegisterBroker] == 3
    fenced = [one for one in records if isinstance(one, BrokerRegistrationChange) and one.fenced]
    assert fenced == []
    assert kinds[PartitionChange] == 0  # nobody left an ISR, nobody else leads
