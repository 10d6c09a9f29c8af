"""Clusters of real processes with several listeners, addresses and families of addresses."""

import asyncio
import socket

import pytest

from quorumlog import Admin, LocalCluster
from quorumlog.addresses import host_and_port
from quorumlog.chaos.back_ends.run_resources import Equipment, started
from quorumlog.doctor import examine
from tests.support.cluster.kept_topic import create, produce, read_all

pytestmark = pytest.mark.integration


async def addresses_at(bootstrap: str) -> set[str]:
    async with Admin(bootstrap) as admin:
        cluster = await admin.describe_cluster()
        return {f"{node.host}:{node.port}" for node in cluster.nodes.values()}


def test_each_client_sees_only_the_addresses_of_its_listener() -> None:
    with LocalCluster(nodes=3, listeners=["LAN://127.0.0.2,advertised=127.0.0.2"]) as cluster:
        outside = ",".join(node.listeners[0].advertised for node in cluster.nodes)
        assert asyncio.run(addresses_at(cluster.bootstrap)) == {*cluster.bootstrap.split(",")}
        assert asyncio.run(addresses_at(outside)) == {*outside.split(",")}
        asyncio.run(create(outside, num_partitions=3, replication_factor=3))
        asyncio.run(produce(outside, range(10)))
        cluster.kill(cluster.status()["controller_id"])
        asyncio.run(produce(outside, range(10, 20)))
        assert sorted(asyncio.run(read_all(cluster.bootstrap))) == [*range(20)]


def test_all_interfaces_advertise_one_address_and_replicate_by_another() -> None:
    with LocalCluster(nodes=3, host="0.0.0.0", advertised="127.0.0.2") as cluster:
        assert {host_and_port(one)[0] for one in cluster.bootstrap.split(",")} == {"127.0.0.2"}
        asyncio.run(create(cluster.bootstrap, num_partitions=3, replication_factor=3))
        asyncio.run(produce(cluster.bootstrap, range(10)))
        assert sorted(asyncio.run(read_all(cluster.bootstrap))) == [*range(10)]
        bootstrap = [host_and_port(one) for one in cluster.bootstrap.split(",")]
        assert asyncio.run(examine(bootstrap, {})).findings == ()


def test_behind_forwarders_the_other_listeners_keep_their_addresses() -> None:
    cluster = LocalCluster(nodes=2, listeners=["LAN://127.0.0.2,advertised=127.0.0.2"])
    with started(cluster, Equipment(links=True)):
        outside = {node.listeners[0].advertised for node in cluster.nodes}
        assert asyncio.run(addresses_at(",".join(outside))) == outside
        forwarded = asyncio.run(addresses_at(cluster.bootstrap))
        assert forwarded == {*cluster.bootstrap.split(",")}
        assert not forwarded & {node.kafka for node in cluster.nodes}


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_the_doctor_finds_nothing_at_a_cluster_on_ipv6() -> None:
    with LocalCluster(nodes=1, host="::1") as cluster:
        found = asyncio.run(examine([host_and_port(cluster.bootstrap)], {}))
    assert found.findings == ()
    assert [*found.brokers.values()] == [cluster.bootstrap]
    assert found.skew_ms is not None
    assert abs(found.skew_ms) < 5_000


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_forwarders_lead_to_a_cluster_on_ipv6() -> None:
    cluster = LocalCluster(nodes=2, host="::1")
    with started(cluster, Equipment(links=True)):
        assert all(one.startswith("[::1]:") for one in cluster.bootstrap.split(","))
        assert not {node.kafka for node in cluster.nodes} & {*cluster.bootstrap.split(",")}
        asyncio.run(create(cluster.bootstrap, num_partitions=2, replication_factor=2))
        asyncio.run(produce(cluster.bootstrap, range(10)))
        assert sorted(asyncio.run(read_all(cluster.bootstrap))) == [*range(10)]
