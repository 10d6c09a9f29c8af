"""Brokers that come back alone with a log that cannot be believed, while another one is whole.

One controller, three brokers, `min.insync.replicas` 2, one partition. Broker 3 is damaged, and
starts before broker 4, which holds all that was acknowledged.
"""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quorumlog import Admin, LocalCluster
from quorumlog.client import TopicPartition
from quorumlog.cluster import forked, layout
from quorumlog.cluster.layout import log_file
from tests.support.cluster.kept_topic import create, partition, produce, read_all, wait_for

pytestmark = pytest.mark.integration
AT = TopicPartition("kept", 0)
PLACES: dict[int, list[int]] = {0: [3, 4, 2]}
FIRST, LATER = 300, 200
ALL = [*range(FIRST + LATER)]
IMPATIENT = {"request_timeout_ms": 10_000, "delivery_timeout_ms": 10_000}


def data_of(cluster: LocalCluster, node_id: int) -> Path:
    return layout.node_directory(cluster.directory, node_id) / "data"


def segment_of(cluster: LocalCluster, node_id: int) -> Path:
    [segment] = (data_of(cluster, node_id) / "kept-0").glob("*.log")
    return segment


def said(cluster: LocalCluster, node_id: int, text: str) -> bool:
    return text in log_file(cluster.directory, node_id).read_text()


def new_cluster(directory: Path, **options: Any) -> LocalCluster:
    config = {"min.insync.replicas": "2"}
    return LocalCluster(directory, controllers=1, brokers=3, config=config, **options)


def kill_one_by_one(cluster: LocalCluster) -> None:
    """Produce, and kill 2, then 3, then 4: ISR {}, ELR {3, 4}."""
    asyncio.run(produce(cluster.bootstrap, range(FIRST)))
    cluster.kill(2)
    wait_for(lambda: {*partition(cluster)["isr"]} == {3, 4})
    asyncio.run(produce(cluster.bootstrap, range(FIRST, FIRST + LATER)))
    cluster.kill(3)
    wait_for(lambda: partition(cluster)["isr"] == [4])
    cluster.kill(4)
    wait_for(lambda: {*partition(cluster)["elr"]} == {3, 4})


def start_again(cluster: LocalCluster) -> list[int]:
    """Start 3, then the others; return what is read when all are in sync."""
    cluster.start_node(3)
    assert partition(cluster)["leader"] != 3
    cluster.start_node(4)
    wait_for(lambda: bool(partition(cluster)["leader"] == 4))
    cluster.start_node(2)
    wait_for(lambda: {*partition(cluster)["isr"]} == {2, 3, 4})
    return asyncio.run(read_all(cluster.bootstrap))


def flip_a_bit(segment: Path, *, at: float = 0.5) -> None:
    content = bytearray(segment.read_bytes())
    content[int(len(content) * at)] ^= 1
    segment.write_bytes(content)


def forget_the_topic(segment: Path) -> None:
    path = segment.parent / "partition.metadata"
    path.write_text(path.read_text().splitlines(keepends=True)[0])


def take_another_topic(segment: Path) -> None:
    path = segment.parent / "partition.metadata"
    content = bytearray(path.read_bytes())
    content[content.index(b"topic_id: ") + 12] ^= 1
    path.write_bytes(content)


def lose_all_but_the_identity(segment: Path) -> None:
    for path in segment.parent.parent.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in {"meta.properties", "broker-registrations", ".lock"}:
            path.unlink()


@pytest.mark.parametrize(
    "damage", [flip_a_bit, forget_the_topic, take_another_topic, lose_all_but_the_identity]
)
def test_a_damaged_member_of_the_elr_does_not_lead(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    with new_cluster(tmp_path) as cluster:
        asyncio.run(create(cluster.bootstrap, assignments=PLACES))
        kill_one_by_one(cluster)
        damage(segment_of(cluster, 3))
        assert start_again(cluster) == ALL
        assert said(cluster, 1, "broker 3 may lack acknowledged records of kept-0")


def test_a_damaged_member_of_the_isr_gives_up_its_place(tmp_path: Path) -> None:
    """All processes are killed in one moment, so the controller cannot note it."""
    with new_cluster(tmp_path) as cluster:
        asyncio.run(create(cluster.bootstrap, assignments=PLACES))
        asyncio.run(produce(cluster.bootstrap, range(FIRST)))
        cluster.kill(2)
        wait_for(lambda: {*partition(cluster)["isr"]} == {3, 4})
        asyncio.run(produce(cluster.bootstrap, range(FIRST, FIRST + LATER)))
        cluster.kill(1, 3, 4)
        flip_a_bit(segment_of(cluster, 3), at=0.9)
        cluster.start_node(1)
        assert start_again(cluster) == ALL


def test_a_directory_that_was_put_back_is_recognized(tmp_path: Path) -> None:
    """Of the same process: the copy is from before the last records were written."""
    with new_cluster(tmp_path) as cluster:
        asyncio.run(create(cluster.bootstrap, assignments=PLACES))
        asyncio.run(produce(cluster.bootstrap, range(FIRST)))
        cluster.kill(2)
        wait_for(lambda: {*partition(cluster)["isr"]} == {3, 4})
        shutil.copytree(data_of(cluster, 3), tmp_path / "copy")
        asyncio.run(produce(cluster.bootstrap, range(FIRST, FIRST + LATER)))
        cluster.kill(1, 3, 4)
        shutil.rmtree(data_of(cluster, 3))
        shutil.copytree(tmp_path / "copy", data_of(cluster, 3))
        cluster.start_node(1)
        assert start_again(cluster) == ALL
        assert said(cluster, 1, "the log directory was copied or restored")


def test_a_directory_of_an_earlier_registration_is_recognized(tmp_path: Path) -> None:
    with new_cluster(tmp_path) as cluster:
        asyncio.run(create(cluster.bootstrap, assignments=PLACES))
        asyncio.run(produce(cluster.bootstrap, range(FIRST)))
        cluster.kill(3)
        data_of(cluster, 3).rename(tmp_path / "old")
        shutil.copytree(tmp_path / "old", data_of(cluster, 3))
        cluster.start_node(3)
        wait_for(lambda: {*partition(cluster)["isr"]} == {2, 3, 4})
        cluster.kill(2)
        wait_for(lambda: {*partition(cluster)["isr"]} == {3, 4})
        asyncio.run(produce(cluster.bootstrap, range(FIRST, FIRST + LATER)))
        cluster.kill(1, 3, 4)
        shutil.rmtree(data_of(cluster, 3))
        (tmp_path / "old").rename(data_of(cluster, 3))
        cluster.start_node(1)
        assert start_again(cluster) == ALL
        assert said(cluster, 1, "the log directory is older than the broker's last registration")


def test_a_broker_whose_disk_has_failed_is_not_eligible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was acknowledged while its fsync failed is gone from its disk."""
    monkeypatch.setattr(forked, "preloaded_for", lambda *_, **__: ["quorumlog.node.preloaded"])
    with new_cluster(tmp_path, node_module="tests.support.node.lost_pages") as cluster:
        configs = {"flush.messages": "1"}
        asyncio.run(create(cluster.bootstrap, assignments=PLACES, configs=configs))
        asyncio.run(produce(cluster.bootstrap, range(FIRST)))
        cluster.kill(2)
        wait_for(lambda: {*partition(cluster)["isr"]} == {3, 4})
        (layout.node_directory(tmp_path, 3) / "lose-pages").touch()
        later = range(FIRST, FIRST + LATER)
        with pytest.raises(Exception, match=r"timed out|too few|NOT_ENOUGH|TIMED_OUT"):
            asyncio.run(produce(cluster.bootstrap, later, **IMPATIENT))
        wait_for(lambda: partition(cluster)["isr"] == [4])
        assert partition(cluster)["elr"] == []
        cluster.kill(3, 4)
        wait_for(lambda: partition(cluster)["elr"] == [4])
        (layout.node_directory(tmp_path, 3) / "lose-pages").unlink()
        values = start_again(cluster)
        assert values == ALL[: len(values)]
        assert len(values) > FIRST


def test_a_replica_that_lost_a_file_while_it_was_stopped_fetches_it_again(tmp_path: Path) -> None:
    with new_cluster(tmp_path) as cluster:
        asyncio.run(create(cluster.bootstrap, assignments=PLACES))
        asyncio.run(produce(cluster.bootstrap, range(FIRST)))
        cluster.stop_node(3)
        segment_of(cluster, 3).unlink()
        cluster.start_node(3)
        wait_for(lambda: {*partition(cluster)["isr"]} == {2, 3, 4})
        assert said(cluster, 3, "is set aside as")
        assert asyncio.run(read_all(cluster.bootstrap)) == ALL[:FIRST]
        whole = segment_of(cluster, 4).read_bytes()
        assert segment_of(cluster, 3).read_bytes() == whole


def test_the_only_copy_that_is_damaged_has_no_leader_until_a_person_decides(tmp_path: Path) -> None:
    async def elect(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            await admin.elect_leaders([AT], "unclean")

    with LocalCluster(tmp_path, nodes=1) as cluster:
        asyncio.run(create(cluster.bootstrap, num_partitions=1))
        asyncio.run(produce(cluster.bootstrap, range(FIRST)))
        cluster.kill(1)
        segment = segment_of(cluster, 1)
        whole = segment.read_bytes()
        flip_a_bit(segment)
        damaged = segment.read_bytes()
        cluster.start_node(1)
        wait_for(lambda: said(cluster, 1, "EVERY LOG OF kept-0"))
        assert partition(cluster)["leader"] == -1
        assert segment.read_bytes() == damaged
        cluster.kill(1)
        segment.write_bytes(whole)  # the file is restored
        cluster.start_node(1)
        wait_for(lambda: bool(partition(cluster)["leader"] == 1))
        assert asyncio.run(read_all(cluster.bootstrap)) == ALL[:FIRST]
        wait_for(lambda: partition(cluster)["last_known_elr"] == [])  # the lead is settled
        cluster.kill(1)
        segment.write_bytes(damaged)  # and damaged again, for good
        cluster.start_node(1)
        wait_for(lambda: partition(cluster)["leader"] == -1)
        asyncio.run(elect(cluster.bootstrap))
        wait_for(lambda: bool(partition(cluster)["leader"] == 1))
        values = asyncio.run(read_all(cluster.bootstrap))
        assert values == ALL[: len(values)]
        assert 0 < len(values) < FIRST
