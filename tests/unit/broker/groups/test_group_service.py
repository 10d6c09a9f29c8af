"""The shards over a log in memory: loading, leadership, failed writes, transactions."""

import asyncio
from dataclasses import replace

import pytest

from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.events import Event
from quorumlog.broker.groups.core.requests import (
    CommitOffsets,
    CommittedOffset,
    CommitTransactionalOffsets,
)
from quorumlog.broker.partitions.core.data_path import LocalRead
from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, TopicImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, Offset, TopicId, TopicPartition
from quorumlog.wire.codec.records import Record, encode_batch
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC
from quorumlog.wire.codec.transaction_markers import TransactionMarker
from tests.support.broker.replicas import image
from tests.support.coordination.groups_begun import leading
from tests.support.groups.coordination import T0, beat, join, sync
from tests.support.groups.memory_log import SETTINGS, WHERE, MemoryLog, World, code
from tests.support.groups.transactions import PRODUCER, txn_commit
from tests.support.waiting import loop_turns


async def test_only_the_leader_of_the_partition_answers_and_only_once_it_has_loaded() -> None:
    world = World()
    assert await world.commit(1) is ErrorCode.NOT_COORDINATOR
    world.service.became_leader(WHERE, Epoch(0))
    assert await world.commit(1) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await world.loaded()
    assert await world.commit(1) is ErrorCode.NONE
    world.service.resigned(WHERE, Epoch(1))
    assert world.service.coordinator("g") is ErrorCode.NOT_COORDINATOR
    assert [*world.service.coordinators()] == []


async def test_what_is_not_of_groups_is_passed_over() -> None:
    """Markers of transactions, above all: their keys would be taken for offsets of version 0."""

    world = World()
    marker = Record(0, 0, b"\0\0\0\1", bytes(6), ())
    for batch in (
        encode_batch([marker], producer_id=1, producer_epoch=0, is_control=True),
        encode_batch([Record(0, 0, None, b"without a key", ())]),
        encode_batch([Record(0, 0, b"\0\x63" + bytes(9), b"of another kind", ())]),
    ):
        world.log.append(WHERE, batch, acks=-1, timeout_ms=0, done=lambda _: None)
    await world.lead()
    assert world.offset() is None
    assert await world.commit(1) is ErrorCode.NONE
    world.service.stop()


async def test_a_long_log_is_loaded_with_breaks_for_others() -> None:
    """Every commit is a batch: a node that replays thousands of them in one go seems dead."""

    class Long(MemoryLog):
        def read(self, offset: int) -> LocalRead:
            rest, end = b"".join(self.batches[offset:]), Offset(len(self.batches))
            return LocalRead(ErrorCode.NONE, rest, end, log_end_offset=end)  # one record each

    async with leading(log=Long()) as world:
        for offset in range(1000):
            await world.commit(offset)
        world.service.resigned(WHERE, Epoch(1))
        world.service.became_leader(WHERE, Epoch(2))
        turns = 0
        while world.service.coordinator("g") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 10
        assert world.offset() == 999


async def test_a_log_that_cannot_be_read_is_not_served(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.log.batches = [encode_batch([Record(0, 0, b"\0\1garbage", b"", ())])]
    world.log.end = world.log.high_watermark = 1
    await world.lead()
    assert await world.commit(1) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.service.stop()
    assert "cannot be loaded" in caplog.text


async def test_old_news_of_leadership_changes_nothing() -> None:
    world = World()
    await world.lead(5)
    world.service.resigned(WHERE, Epoch(4))
    assert await world.commit(1) is ErrorCode.NONE
    world.service.became_leader(WHERE, Epoch(4))
    world.service.resigned(WHERE, Epoch(4))
    assert await world.commit(1) is ErrorCode.NONE
    world.service.resigned(WHERE, Epoch(6))
    assert await world.commit(1) is ErrorCode.NOT_COORDINATOR
    world.service.became_leader(TopicPartition("other", 0), Epoch(9))
    world.service.resigned(TopicPartition("other", 0), Epoch(9))
    assert [*world.service.coordinators()] == []


async def test_a_member_that_syncs_while_the_coordinator_loads_joins_again() -> None:
    """A Java consumer ends with COORDINATOR_LOAD_IN_PROGRESS as the answer to SyncGroup."""
    world = World()
    world.service.became_leader(WHERE, Epoch(0))
    assert (await world.service.ask(sync("a", 1))).error_code is ErrorCode.REBALANCE_IN_PROGRESS
    assert (await world.service.ask(join())).error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.service.stop()


@pytest.mark.jumping_time
async def test_time_passes_without_requests_and_the_wall_clock_may_jump() -> None:
    async with leading() as world:
        joining = world.service.ask(join(new_member_id="a", session_timeout_ms=30))
        assert (await joining).generation_id == 1
        world.wall_clock_ms += 10_000_000
        assert await world.service.ask(beat("a", 1)) is ErrorCode.NONE
        await asyncio.sleep(0.02)
        assert await world.service.ask(beat("a", 1)) is ErrorCode.NONE
        await asyncio.sleep(0.04)
        assert await world.service.ask(beat("a", 1)) is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_deleted_topics_offsets_go() -> None:
    async with leading() as world:
        await world.commit(1)
        topic_id = TopicId(bytes(15) + b"\1")
        world.service.publish(ClusterDelta(deleted_topics={"t": topic_id}), ClusterImage())
        await asyncio.sleep(0)
        assert world.offset() is None


async def test_the_offsets_topic_may_be_deleted_and_made_again_within_one_image() -> None:
    """Then the replicas announce the new leadership, at epoch 0, before the image is published."""

    async with leading(3) as world:
        await world.commit(1)
        vars(world.log).update(vars(MemoryLog()))
        world.service.resigned(WHERE, Epoch(3))
        world.service.became_leader(WHERE, Epoch(0))
        gone = ClusterDelta(deleted_topics={OFFSETS_TOPIC: TopicId(bytes(15) + b"\1")})
        world.service.publish(gone, ClusterImage())
        await world.loaded()
        assert world.offset() is None
        assert await world.commit(2) is ErrorCode.NONE


async def test_a_group_lives_where_the_topic_says_not_the_settings() -> None:
    world = World()
    assert world.service.partition_of("g") == WHERE, "there is one partition, say the settings"
    parts = (image(1, 0, 0, (1,), replicas=(1,)),) * 50
    topic = TopicImage(name=OFFSETS_TOPIC, topic_id=TopicId(bytes(15) + b"\1"), partitions=parts)
    world.service.publish(ClusterDelta(), ClusterImage(topics={OFFSETS_TOPIC: topic}))
    assert world.service.partition_of("g").partition == ord("g") % 50


async def test_a_bug_is_reported_and_nobody_left_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_self: GroupCoordinator, _now_ms: int, _event: Event) -> None:
        raise InvariantViolation("planted")

    async with leading() as world:
        monkeypatch.setattr(GroupCoordinator, "step", broken)
        assert await world.commit(1) is ErrorCode.NOT_COORDINATOR
        assert [str(violation) for violation in world.violations] == ["planted"]


async def test_an_epoch_is_kept_for_the_log() -> None:
    """A commit carries the leader epoch that the client saw."""

    async with leading() as world:
        offsets = {T0: CommittedOffset(offset=1, leader_epoch=7, metadata="m")}
        await world.service.ask(CommitOffsets(group_id="g", offsets=offsets))
        coordinator = world.service.coordinator("g")
        assert isinstance(coordinator, GroupCoordinator)
        committed = coordinator.fetch_offsets("g", [T0])[T0]
        assert committed is not None
        assert (committed.leader_epoch, committed.metadata) == (7, "m")


COMMIT = TransactionMarker(PRODUCER, 0, 3, commits=True)
ABORT = TransactionMarker(PRODUCER, 0, 3, commits=False)


def unstable(world: World) -> bool:
    coordinator = world.service.coordinator("g")
    assert not isinstance(coordinator, ErrorCode)
    return bool(coordinator.transactional.unstable("g"))


async def write(world: World, request: CommitTransactionalOffsets) -> ErrorCode:
    return code(await world.service.ask(request))


async def test_an_offset_is_visible_when_its_marker_is_acknowledged() -> None:
    async with leading() as world:
        assert await write(world, txn_commit(5, adds=True)) is ErrorCode.NONE
        assert (world.offset(), unstable(world)) == (None, True)
        [asked] = world.verifier.asked
        assert asked[:5] == ("t7", PRODUCER, 0, (WHERE,), True)
        world.log.commits_at_once = False
        ended = world.service.end_transaction(WHERE, COMMIT, 0)
        await loop_turns()
        assert (ended.done(), world.offset()) == (False, None)
        world.log.commit_all()
        assert await ended is ErrorCode.NONE
        assert (world.offset(), unstable(world)) == (5, False)


async def test_a_marker_elsewhere_or_before_the_load_is_to_be_sent_again() -> None:
    world = World()
    refused = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await world.service.end_transaction(WHERE, COMMIT, 0) is refused
    world.service.became_leader(WHERE, Epoch(0))
    assert await world.service.end_transaction(WHERE, COMMIT, 0) is refused
    await world.loaded()
    assert await world.service.end_transaction(WHERE, COMMIT, 0) is ErrorCode.NONE
    elsewhere = TopicPartition(OFFSETS_TOPIC, 9)
    assert await world.service.end_transaction(elsewhere, COMMIT, 0) is refused
    world.service.stop()


@pytest.mark.parametrize(
    "refusal", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED]
)
async def test_what_the_log_has_against_a_marker_is_passed_on(refusal: ErrorCode) -> None:
    async with leading() as world:
        await write(world, txn_commit(5))
        world.log.refusal = refusal
        assert await world.service.end_transaction(WHERE, COMMIT, 0) is refusal
        assert (world.offset(), unstable(world)) == (None, True)


@pytest.mark.parametrize("is_in_the_log", [True, False])
async def test_after_a_marker_of_unknown_outcome_the_log_tells(is_in_the_log: bool) -> None:
    async with leading() as world:
        await write(world, txn_commit(5))
        world.log.commits_at_once = False
        ended = world.service.end_transaction(WHERE, COMMIT, 0)
        if not is_in_the_log:
            del world.log.batches[-1]
            world.log.end -= 1
        world.log.fail_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert await ended is ErrorCode.NOT_LEADER_OR_FOLLOWER
        world.log.commit_all()
        await world.loaded()
        assert (world.offset(), unstable(world)) == ((5, False) if is_in_the_log else (None, True))
        world.log.commits_at_once = True
        assert await world.service.end_transaction(WHERE, COMMIT, 0) is ErrorCode.NONE
        assert world.offset() == 5


async def test_a_commit_that_waits_when_we_resign_is_told_to_look_elsewhere() -> None:
    async with leading() as world:
        world.verifier.says = None
        waiting = world.service.ask(txn_commit(5))
        world.service.resigned(WHERE, Epoch(1))
        assert code(await waiting) is ErrorCode.NOT_COORDINATOR
        world.service.became_leader(WHERE, Epoch(2))
        await world.loaded()
        world.verifier.asked[0].reply()
        await loop_turns()
        assert world.log.batches == [], "the answer was for the coordinator before"


async def test_nobody_waits_for_an_answer_whose_client_has_gone() -> None:
    async with leading() as world:
        world.log.commits_at_once = False
        ended = asyncio.ensure_future(world.service.end_transaction(WHERE, ABORT, 0))
        ended.cancel()
        world.log.commit_all()
        await loop_turns()
        assert (
            await world.service.end_transaction(TopicPartition("t", 0), ABORT, 0)
            is not ErrorCode.NONE
        )


async def test_without_verification_only_producers_that_add_nothing_are_believed() -> None:
    """`transaction.partition.verification.enable=false`, as of old brokers."""
    world = World()
    settings = replace(SETTINGS, transaction_partition_verification_enable=False)
    world.service._settings = settings
    await world.lead()
    assert await write(world, txn_commit(5)) is ErrorCode.NONE
    assert world.verifier.asked == []
    await world.service.end_transaction(WHERE, COMMIT, 0)
    await write(world, txn_commit(6, adds=True))
    assert len(world.verifier.asked) == 1
    world.service.stop()


async def test_an_image_with_the_same_topics_is_no_change_for_groups() -> None:
    async with leading() as world:
        topic = TopicImage(
            name="t", topic_id=TopicId(b"t" * 16), partitions=(image(1, 0, 0, (1,)),)
        )
        delta = ClusterDelta(partitions=frozenset({TopicPartition("t", 0)}))
        for end_offset, partitions, version in ((5, 1, 5), (6, 1, 5), (7, 2, 7)):
            topics = {"t": replace(topic, partitions=topic.partitions * partitions)}
            cluster = ClusterImage(topics=topics, end_offset=Offset(end_offset))
            world.service.publish(delta, cluster)
            assert world.service._topics.version == version
