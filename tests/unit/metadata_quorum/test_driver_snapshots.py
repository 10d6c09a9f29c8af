"""Voters that write snapshots while they work, and start from them; power loss at every write."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from quorumlog.chaos.simulation.kernel import sim_disk
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.metadata_quorum.controller.requests import CreateTopics, DeleteTopics
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
    NewTopic,
)
from quorumlog.metadata_quorum.core.messages import SnapshotId
from quorumlog.metadata_quorum.image.features import KRAFT_FEATURE, KRAFT_VERSION_MAX
from quorumlog.metadata_quorum.image.model import ClusterImage
from quorumlog.metadata_quorum.image.records import ProducerIds, encode_record
from quorumlog.metadata_quorum.image.snapshot_records import records_of
from quorumlog.metadata_quorum.log import snapshot_files
from quorumlog.metadata_quorum.log.metadata_log import DIRECTORY, MetadataLog
from quorumlog.metadata_quorum.log.restoring import restored_image
from quorumlog.metadata_quorum.log.snapshot_files import SnapshotFiles
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.metadata_quorum.drivers import Network, Voter, until

OFTEN = ControllerSettings(
    metadata_log_max_record_bytes_between_snapshots=300, broker_session_timeout_ms=10**9
)
WITH_AGE = ControllerSettings(
    metadata_log_max_snapshot_interval_ms=2_000, broker_session_timeout_ms=10**9
)
WRITES = ("append", "truncate", "fsync", "fsync_dir", "rename", "unlink")


async def work(network: Network, *, rounds: int = 6) -> None:
    """Create a topic in each round, and delete that of the round before."""
    registered = await network.ask(
        BrokerRegistration(
            broker_id=BrokerId(1),
            incarnation_id="x",
            host="h",
            port=1,
            control_address="h:2",
            directory_id="d",
            boot_id="b",
            features={KRAFT_FEATURE: (0, KRAFT_VERSION_MAX)},
        )
    )
    heartbeat = BrokerHeartbeat(
        broker_id=BrokerId(1), broker_epoch=registered.broker_epoch, metadata_offset=2**62
    )
    assert not (await network.ask(heartbeat)).is_fenced
    for number in range(rounds):
        topic = NewTopic(name=f"t{number}", partitions=2, replication_factor=1)
        results = await network.ask(CreateTopics(topics=(topic,)))
        assert results.results[0].error_code in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}
        leader = await network.leader()
        old = leader.committed.image.topics.get(f"t{number - 1}")
        if old is not None:
            await network.ask(DeleteTopics(topic_ids=(old.topic_id,)))


def content(image: ClusterImage) -> tuple[object, ...]:
    return image.end_offset, image.brokers, image.topics, image.topic_names, image.next_producer_id


@pytest.mark.jumping_time
async def test_voters_start_from_their_snapshots_and_see_what_the_others_see() -> None:
    async with Network(3, controller_settings=OFTEN) as network:
        await work(network)
        leader = (await network.leader()).node_id
        victim = leader % 3 + 1
        disk = await network.kill(victim)
        await work(network, rounds=2)
        voter = network.boot(victim, disk)
        restored = restored_image(voter.log)
        assert restored is not None
        voters = [*network.voters.values()]
        end_offset = (await network.leader()).committed.image.end_offset
        await until(lambda: voter.committed.image.end_offset >= end_offset)
        await until(lambda: len({v.committed.image.end_offset for v in voters}) == 1)
        images = [v.committed.image for v in voters]
        assert content(images[0]) == content(images[1]) == content(images[2])
        for one in voters:
            assert not one.failure.done()
            for snapshot_id in one.log.snapshots.ids():
                assert snapshot_id.end_offset <= one.log.flushed_offset
                assert snapshot_id.end_offset <= one.quorum.high_watermark
        read = voter.log.replayed_bytes
        assert read < (await network.leader()).log.replayed_bytes  # it has not read what is old


@pytest.mark.jumping_time
async def test_a_snapshot_comes_with_time_too() -> None:
    async with Network(1, controller_settings=WITH_AGE) as network:
        voter = network.voters[1]
        assert voter.log.snapshots.ids() == []
        await until(lambda: voter.log.snapshots.ids() != [], within_s=100)
        [snapshot_id] = voter.log.snapshots.ids()
        assert snapshot_id.end_offset == voter.quorum.high_watermark


async def deposed(network: Network, leader: int, follower: Voter) -> None:
    """Kill the leader; the outcome of the follower's next election write waits."""
    follower.threads.hold("save")
    before = follower.threads.held
    await network.kill(leader)
    await until(lambda: follower.threads.held > before)


@pytest.mark.jumping_time
async def test_a_snapshot_that_is_due_by_its_age_waits_for_the_write_under_way() -> None:
    settings = replace(WITH_AGE, metadata_log_max_snapshot_interval_ms=60_000)
    async with Network(3, controller_settings=settings) as network:
        await work(network)
        leader = (await network.leader()).node_id
        follower = network.voters[leader % 3 + 1]
        await deposed(network, leader, follower)
        await asyncio.sleep(100)  # the age comes
        assert follower.log.snapshots.ids() == []
        follower.threads.release("save")
        await until(lambda: follower.log.snapshots.ids() != [])
        assert not follower.failure.done()


@pytest.mark.jumping_time
async def test_a_snapshot_after_another_waits_for_the_write_under_way() -> None:
    async with Network(3, controller_settings=OFTEN) as network:
        leader = (await network.leader()).node_id
        follower = network.voters[leader % 3 + 1]
        follower.threads.hold("_tried")
        await work(network)
        await until(lambda: follower.threads.held > 0)
        [first] = follower.log.snapshots.ids()
        await deposed(network, leader, follower)
        follower.threads.release("_tried")  # another one is due since long
        assert follower.log.snapshots.ids() == [first]
        follower.threads.release("save")
        await until(lambda: follower.log.snapshots.ids()[0] != first)
        assert not follower.failure.done()


@pytest.mark.jumping_time
async def test_an_observer_flushes_for_its_snapshots_and_cuts_its_log() -> None:
    settings = replace(OFTEN, metadata_log_segment_bytes=400, metadata_max_retention_bytes=500)
    async with Network(1, controller_settings=settings) as network:
        observer = network.boot(7)
        await work(network)
        await until(lambda: observer.log.start_offset > 0)
        [newest, *_] = observer.log.snapshots.ids()
        assert newest.end_offset <= observer.log.flushed_offset
        assert newest.end_offset <= observer.quorum.high_watermark
        disk = await network.kill(7)
        disk.crash(random.Random(1))
        again = network.boot(7, disk)
        assert again.log.end_offset >= newest.end_offset
        end_offset = network.voters[1].committed.image.end_offset
        await until(lambda: again.committed.image.end_offset >= end_offset)
        assert content(again.committed.image) == content(network.voters[1].committed.image)
        assert not again.failure.done()


@pytest.mark.jumping_time
async def test_an_observer_whose_flush_has_failed_ends_with_its_next_append(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Network(1, controller_settings=OFTEN) as network:
        disk = SimDisk()
        observer = network.boot(7, disk)

        def refuse(operation: str, path: str) -> None:
            if operation == "fsync" and path.endswith(".log"):
                raise OSError(5, "Input/output error")

        disk.on_operation = refuse
        await work(network)
        await until(observer.failure.done)
        assert isinstance(observer.failure.result(), StorageError)
        assert "no snapshot of the metadata" in caplog.text  # that was the flush
        assert observer.log.end_offset < network.voters[1].log.end_offset


@pytest.mark.jumping_time
async def test_a_voter_waits_for_the_flush_before_its_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Network(3, controller_settings=OFTEN) as network:
        leader = await network.leader()
        await until(lambda: leader.log.flushed_offset == leader.log.end_offset)
        flushed_offset = leader.log.flushed_offset

        def flush() -> Offset:
            return flushed_offset

        leader.threads.hold("flush")
        monkeypatch.setattr(leader.log, "flush", flush)
        await work(network)  # the other two are a majority
        assert leader.committed.image.end_offset > flushed_offset
        await asyncio.sleep(10)
        assert all(one.end_offset <= flushed_offset for one in leader.log.snapshots.ids())
        assert not leader.failure.done()


@pytest.mark.jumping_time
async def test_a_full_disk_costs_a_snapshot_and_not_the_node(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = snapshot_files._fill

    def full(draft: snapshot_files._Draft, *rest: Any) -> bool:
        draft.append([(None, b"the first batch")], is_control=False)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshot_files, "_fill", full)
    async with Network(1, controller_settings=OFTEN) as network:
        voter = network.voters[1]
        await work(network)
        assert "No space left" in caplog.text
        assert voter.log.snapshots.ids() == []
        names = voter.disk.listdir(f"/data/{DIRECTORY}")
        assert not [name for name in names if name.endswith(".part")]
        monkeypatch.setattr(snapshot_files, "_fill", fill)
        await work(network)
        assert voter.log.snapshots.ids() != []
        assert not voter.failure.done()


class PowerLost(Exception):
    """Not an OSError, so that no code of the product catches it."""


def lose_power_at(disk: SimDisk, write: int, act: Callable[[], object]) -> bool:
    """Do `act`; the power goes at the n-th write. False: it has ended before."""
    left = write

    def count(operation: str, path: str) -> None:
        nonlocal left
        left -= operation in WRITES
        if left < 0:
            raise PowerLost(f"{operation} {path}")

    disk.on_operation = count
    try:
        act()
    except PowerLost:
        return True
    finally:
        disk.on_operation = None
    return False


def image_with(next_producer_id: int) -> ClusterImage:
    return ClusterImage(next_producer_id=next_producer_id)


def after_power_loss(write: int) -> tuple[bool, ClusterImage | None]:
    """Lose power at the n-th write of a snapshot; return whether it came to that, and the start."""
    disk = SimDisk()
    log = MetadataLog.open(disk, "/data")
    for number in range(1, 6):
        record = ProducerIds(broker_id=BrokerId(1), broker_epoch=0, next_producer_id=number)
        log.append([*map(encode_record, [record])], Epoch(1), wall_ms=0)
    log.flush()

    def snapshot(number: int) -> None:
        snapshot_id = SnapshotId(Offset(number), Epoch(1))
        log.snapshots.write(snapshot_id, records_of(image_with(number)), last_time_ms=0)

    snapshot(1)
    snapshot(2)
    has_failed = lose_power_at(disk, write, partial(snapshot, 4))
    disk.crash(random.Random(write))
    restored = restored_image(MetadataLog.open(disk, "/data"))
    assert not [name for name in disk.listdir(f"/data/{DIRECTORY}") if name.endswith(".part")]
    return has_failed, restored


def survives_power_loss() -> bool:
    """Tell whether there is the old snapshot or the new one after power loss at any write."""
    for write in range(100):
        has_failed, restored = after_power_loss(write)
        if restored is None or restored.next_producer_id != restored.end_offset:
            return False
        if restored.end_offset not in ({2, 4} if has_failed else {4}):
            return False
        if not has_failed:
            return write > 6
    return False


def test_power_loss_leaves_the_old_snapshot_or_the_new_one() -> None:
    assert survives_power_loss()


@pytest.mark.parametrize("lazy", ["SimFile.fsync", "SimDisk.fsync_dir"])
def test_a_snapshot_without_an_fsync_is_found(lazy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write = SnapshotFiles.write

    def in_a_hurry(*arguments: Any, **options: Any) -> bool:
        with monkeypatch.context() as patched:
            patched.setattr(f"{sim_disk.__name__}.{lazy}", lambda *_: None)
            return write(*arguments, **options)

    monkeypatch.setattr(SnapshotFiles, "write", in_a_hurry)
    assert not survives_power_loss()
