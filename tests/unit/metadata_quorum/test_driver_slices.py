"""The driver and much work: slices that wait for their commit, and others' turns in between."""

import asyncio
from typing import Any

import pytest

from quorumlog.metadata_quorum.controller.requests import CreateTopics
from quorumlog.metadata_quorum.controller.slices import Slices
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
    NewTopic,
)
from quorumlog.metadata_quorum.driver.committed_image import CommittedImage
from quorumlog.metadata_quorum.driver.controllership import Controllership
from quorumlog.metadata_quorum.driver.enactment import Enactment
from quorumlog.metadata_quorum.driver.seams import BrokerProcessDied, NotController
from quorumlog.metadata_quorum.image.model import ClusterDelta, ClusterImage
from quorumlog.metadata_quorum.image.records import BrokerRegistrationChange, PartitionChange
from quorumlog.wire.codec.identifiers import BrokerId
from tests.support.metadata_quorum.drivers import Network, Voter, ask, until

ONE = BrokerId(1)


@pytest.fixture(autouse=True)
def _two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slices, "at_once", 2)


async def register(network: Network, broker_id: int) -> int:
    registration = BrokerRegistration(
        broker_id=BrokerId(broker_id),
        incarnation_id="a",
        host="h",
        port=9092,
        control_address=f"h:{broker_id}",
        directory_id=f"d{broker_id}",
    )
    epoch: int = (await network.ask(registration)).broker_epoch
    await network.ask(heartbeat(broker_id, epoch))
    return epoch


def heartbeat(broker_id: int, epoch: int, **wants: Any) -> BrokerHeartbeat:
    return BrokerHeartbeat(
        broker_id=BrokerId(broker_id), broker_epoch=epoch, metadata_offset=2**40, **wants
    )


async def start(network: Network, partitions: int = 7) -> dict[int, int]:
    epochs = {broker_id: await register(network, broker_id) for broker_id in (1, 2)}
    topic = NewTopic(name="t", partitions=partitions, replication_factor=2)
    await network.ask(CreateTopics(topics=(topic,)))
    return epochs


def fenced(voter: Voter) -> bool:
    return voter.seen.image.brokers[ONE].fenced


@pytest.mark.jumping_time
@pytest.mark.parametrize("voters", [1, 3])
async def test_a_death_is_decided_in_slices_each_after_the_commit_of_the_last(voters: int) -> None:
    async with Network(voters) as network:
        epochs = await start(network)
        leader = await network.leader()
        uncommitted: list[int] = []
        append = leader.log.append

        def appended(*given, **named) -> None:  # type: ignore[no-untyped-def]
            uncommitted.append(leader.log.end_offset - leader.quorum.high_watermark)
            append(*given, **named)

        leader.log.append = appended  # type: ignore[method-assign]
        leader.driver.feed(BrokerProcessDied(ONE, epochs[1]))
        await until(lambda: fenced(leader))
        assert uncommitted == [0] * 4  # 2, 2, 2, and 1 with the fence
        last = leader.records()[-8:]
        assert [type(one) for one in last] == [PartitionChange] * 7 + [BrokerRegistrationChange]


@pytest.mark.jumping_time
async def test_a_heartbeat_is_answered_between_two_slices() -> None:
    async with Network(1) as network:
        epochs = await start(network)
        (voter,) = network.voters.values()
        voter.threads.hold()
        voter.driver.feed(BrokerProcessDied(ONE, epochs[1]))
        await until(lambda: voter.threads.held == 1)
        beating = asyncio.create_task(ask(voter.driver, heartbeat(2, epochs[2])))
        await asyncio.sleep(0)
        end_offset = voter.log.end_offset
        await asyncio.sleep(1)
        assert voter.log.end_offset == end_offset  # no slice before the last one is committed
        voter.threads.release()
        await beating
        assert not fenced(voter)
        await until(lambda: fenced(voter))


@pytest.mark.jumping_time
async def test_a_request_is_answered_when_its_last_slice_is_committed() -> None:
    async with Network(3) as network:
        epochs = await start(network)
        leader = await network.leader()
        stopping = heartbeat(1, epochs[1], want_shut_down=True)
        reply = await ask(leader.driver, stopping)
        assert not reply.is_fenced
        partitions = leader.seen.image.topics["t"].partitions
        assert all(ONE not in partition.isr for partition in partitions)


@pytest.mark.jumping_time
async def test_the_next_controller_finishes_what_the_last_one_began() -> None:
    async with Network(3) as network:
        epochs = await start(network, partitions=41)
        leader = await network.leader()
        before = leader.log.end_offset
        leader.driver.feed(BrokerProcessDied(ONE, epochs[1]))
        while leader.log.end_offset <= before + 10:
            await asyncio.sleep(0)
        assert not fenced(leader)
        await network.kill(leader.node_id)
        successor = await network.leader()
        assert not fenced(successor)
        beating = asyncio.create_task(_keep_beating(network, epochs[2]))
        await until(lambda: fenced(successor))
        beating.cancel()
        partitions = successor.seen.image.topics["t"].partitions
        assert all(partition.isr == (2,) for partition in partitions)


async def _keep_beating(network: Network, epoch: int) -> None:
    while True:
        await network.ask(heartbeat(2, epoch))
        await asyncio.sleep(1)


@pytest.mark.jumping_time
async def test_a_long_log_is_replayed_in_slices_and_published_as_one_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Network(1) as network:
        await start(network, partitions=50)
        disk = await network.kill(1)
        slices: list[int] = []
        replay_slice, begin_run = CommittedImage.replay_slice, Controllership.begin_run
        runs = 0
        runs_with_slices: list[int] = []

        def noted(self: CommittedImage) -> None:
            replay_slice(self)
            slices.append(self.image.end_offset)
            runs_with_slices.append(runs)

        def run(self: Controllership) -> None:
            nonlocal runs
            runs += 1
            begin_run(self)

        monkeypatch.setattr(CommittedImage, "replayed_at_once", 10)
        monkeypatch.setattr(Controllership, "begin_run", run)
        monkeypatch.setattr(CommittedImage, "replay_slice", noted)
        voter = network.boot(1, disk)

        class Counting:
            def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
                published.append((len(delta.partitions), image.end_offset))

        published: list[tuple[int, int]] = []
        voter.committed.add_publisher(Counting())
        await until(lambda: voter.driver.is_active_controller)
        assert len(runs_with_slices) == len({*runs_with_slices})  # others have their turn
        assert len([end for end in slices if end == 0]) >= 5
        assert [count for count, _ in published if count] == [50]
        assert voter.seen.image.end_offset == voter.quorum.high_watermark


async def begin_creation(
    network: Network, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> tuple[Voter, asyncio.Task[Any]]:
    """Let a leader begin to create a topic, ten records at a time; return when it has begun."""
    monkeypatch.setattr(Enactment, "at_once", 10)
    leader = await network.leader()
    topic = NewTopic(name="large", partitions=partitions, replication_factor=2)
    creating = asyncio.create_task(ask(leader.driver, CreateTopics(topics=(topic,))))
    await asyncio.sleep(0)
    return leader, creating


def large(voter: Voter) -> int:
    """How many partitions of the new topic a node shows."""
    topic = voter.seen.image.topics.get("large")
    return 0 if topic is None else len(topic.partitions)


@pytest.mark.jumping_time
@pytest.mark.parametrize("partitions", [99, 989])
async def test_a_large_creation_is_applied_in_slices_and_appended_as_one_batch(
    monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    take_slice, begin_run = Enactment.take_slice, Controllership.begin_run
    runs, runs_with_slices, sizes, shown = 0, list[int](), list[int](), set[int]()

    def taken(self: Enactment) -> None:
        before = len(self.values)
        take_slice(self)
        sizes.append(len(self.values) - before)
        runs_with_slices.append(runs)

    def run(self: Controllership) -> None:
        nonlocal runs
        runs += 1
        begin_run(self)

    async with Network(1) as network:
        await start(network)
        monkeypatch.setattr(Enactment, "take_slice", taken)
        monkeypatch.setattr(Controllership, "begin_run", run)
        leader, creating = await begin_creation(network, monkeypatch, partitions)
        end_offset = leader.log.end_offset
        while not creating.done():
            shown.add(large(leader))
            assert leader.log.end_offset in {end_offset, end_offset + partitions + 1}
            await asyncio.sleep(0.000_1)  # of a clock that jumps
        (result,) = creating.result().results
        assert (result.error_code, large(leader)) == (0, partitions)
        assert shown <= {0, partitions}
        assert sizes == [10] * ((partitions + 1) // 10)
        assert len(runs_with_slices) == len({*runs_with_slices})  # others have their turn


@pytest.mark.jumping_time
async def test_others_are_decided_behind_a_creation_that_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Network(1) as network:
        epochs = await start(network)
        leader, creating = await begin_creation(network, monkeypatch, 99)
        leader.driver.feed(BrokerProcessDied(ONE, epochs[1]))
        same = CreateTopics(topics=(NewTopic(name="large", partitions=1, replication_factor=1),))
        again = asyncio.create_task(ask(leader.driver, same))
        await asyncio.sleep(0)
        assert not creating.done()
        assert not again.done()
        assert not fenced(leader)
        (refused,) = (await again).results
        assert refused.error_code == 36  # TOPIC_ALREADY_EXISTS
        (created,) = (await creating).results
        assert created.error_code == 0
        await until(lambda: fenced(leader))
        partitions = leader.seen.image.topics["large"].partitions
        assert all(ONE not in partition.isr for partition in partitions)


@pytest.mark.jumping_time
async def test_nothing_is_left_of_a_creation_whose_controller_ends_on_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Network(3) as network:
        await start(network)
        leader, creating = await begin_creation(network, monkeypatch, 99)
        assert not creating.done()
        await network.kill(leader.node_id)
        with pytest.raises(NotController):  # not ControllerDeposed: it is certain
            await creating
        successor = await network.leader()
        await until(lambda: "t" in successor.seen.image.topics)
        assert large(successor) == 0
        assert all(getattr(one, "name", "") != "large" for one in successor.records())


def test_a_slice_is_larger_than_what_names_its_own_offset() -> None:
    """A registration ends a slice of a departure; a feature level may come before it."""
    assert Enactment.at_once >= 500 + 2
