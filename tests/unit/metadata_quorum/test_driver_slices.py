"""The driver and much work: slices that wait for their commit, and others' turns in between."""

import asyncio
from typing import Any

import pytest

from quorumlog.metadata_quorum.controller.slices import Slices
from quorumlog.metadata_quorum.driver.active_controller import PendingDecision
from quorumlog.metadata_quorum.driver.committed_image import CommittedImage
from quorumlog.metadata_quorum.driver.controllership import Controllership
from quorumlog.metadata_quorum.driver.dependencies import BrokerProcessDied, NotController
from quorumlog.metadata_quorum.image.model import ClusterDelta, ClusterImage
from quorumlog.metadata_quorum.image.records import BrokerRegistrationChange, PartitionChange
from quorumlog.wire.codec.identifiers import BrokerId
from tests.support.metadata_quorum.drivers import (
    Network,
    Voter,
    ask,
    codes,
    create,
    heartbeat,
    register,
    until,
)

ONE = BrokerId(1)


@pytest.fixture(autouse=True)
def _two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slices, "at_once", 2)


async def start(network: Network, partitions: int = 7) -> dict[int, int]:
    epochs = {broker_id: await register(network, broker_id) for broker_id in (1, 2)}
    await network.ask(create("t", partitions=partitions, replication_factor=2))
    return epochs


def left(voter: Voter, name: str = "t") -> bool:
    """Whether broker 1 is in no ISR of a topic."""
    partitions = voter.seen.image.topics[name].partitions
    return all(ONE not in partition.isr for partition in partitions)


class Turns:
    """Counts the runs of a controller, and the steps that it takes in each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs = 0
        self._in_runs: list[int] = []
        begin_run = Controllership.begin_run

        def run(controllership: Controllership) -> None:
            self.runs += 1
            begin_run(controllership)

        monkeypatch.setattr(Controllership, "begin_run", run)

    def step(self) -> None:
        self._in_runs.append(self.runs)

    def check(self) -> None:
        """Check that others have had their turn between any two steps."""
        assert len(self._in_runs) == len({*self._in_runs})


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
            uncommitted.append(leader.log.end_offset - leader.quorum.state.log.high_watermark)
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
        reply = await ask(leader.driver, heartbeat(1, epochs[1], want_shut_down=True))
        assert not reply.is_fenced
        assert left(leader)


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
        while not fenced(successor):
            await network.ask(heartbeat(2, epochs[2]))
            await asyncio.sleep(1)
        partitions = successor.seen.image.topics["t"].partitions
        assert all(partition.isr == (2,) for partition in partitions)


@pytest.mark.jumping_time
async def test_a_long_log_is_replayed_in_slices_and_published_as_one_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replay_slice, slices, published = CommittedImage.replay_slice, list[int](), list[int]()

    class Counting:
        def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
            published.append(len(delta.partitions))

    async with Network(1) as network:
        await start(network, partitions=50)
        disk = await network.kill(1)
        turns = Turns(monkeypatch)

        def noted(self: CommittedImage) -> None:
            replay_slice(self)
            slices.append(self.image.end_offset)
            turns.step()

        monkeypatch.setattr(CommittedImage, "replayed_at_once", 10)
        monkeypatch.setattr(CommittedImage, "replay_slice", noted)
        voter = network.boot(1, disk)
        voter.committed.add_publisher(Counting())
        await until(lambda: voter.driver.is_active_controller)
        turns.check()
        assert len([end for end in slices if end == 0]) >= 5
        assert [count for count in published if count] == [50]
        assert voter.seen.image.end_offset == voter.quorum.state.log.high_watermark


async def begin_creation(
    network: Network, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> tuple[Voter, asyncio.Task[Any]]:
    """Let a leader begin to create a topic, ten records at a time; return when it has begun."""
    monkeypatch.setattr(PendingDecision, "at_once", 10)
    leader = await network.leader()
    large = create("large", partitions=partitions, replication_factor=2)
    creating = asyncio.create_task(ask(leader.driver, large))
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
    take_slice, sizes, shown = PendingDecision.take_slice, list[int](), set[int]()
    turns = Turns(monkeypatch)

    def taken(self: PendingDecision) -> None:
        before = len(self.values)
        take_slice(self)
        sizes.append(len(self.values) - before)
        turns.step()

    async with Network(1) as network:
        await start(network)
        monkeypatch.setattr(PendingDecision, "take_slice", taken)
        leader, creating = await begin_creation(network, monkeypatch, partitions)
        end_offset = leader.log.end_offset
        while not creating.done():
            shown.add(large(leader))
            assert leader.log.end_offset in {end_offset, end_offset + partitions + 1}
            await asyncio.sleep(0.000_1)  # of a clock that jumps
        assert (codes(creating.result()), large(leader)) == (["NONE"], partitions)
        assert shown <= {0, partitions}
        assert sizes == [10] * ((partitions + 1) // 10)
        turns.check()


@pytest.mark.jumping_time
async def test_others_are_decided_behind_a_creation_that_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Network(1) as network:
        epochs = await start(network)
        leader, creating = await begin_creation(network, monkeypatch, 99)
        leader.driver.feed(BrokerProcessDied(ONE, epochs[1]))
        again = asyncio.create_task(ask(leader.driver, create("large")))
        await asyncio.sleep(0)
        assert not creating.done()
        assert not again.done()
        assert not fenced(leader)
        assert codes(await again) == ["TOPIC_ALREADY_EXISTS"]
        assert codes(await creating) == ["NONE"]
        await until(lambda: fenced(leader))
        assert left(leader, "large")


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
    assert PendingDecision.at_once >= 500 + 2
