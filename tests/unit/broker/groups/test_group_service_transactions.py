"""Transactions through the service of groups: verification, markers, fail-overs in the middle."""

import asyncio
from dataclasses import replace

import pytest

from quorumlog.broker.groups.core.requests import CommitTransactionalOffsets
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, TopicPartition
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC
from quorumlog.wire.codec.transaction_markers import TransactionMarker
from tests.support.groups.memory_log import SETTINGS, WHERE, World, code
from tests.support.groups.transactions import PRODUCER, txn_commit
from tests.support.waiting import loop_turns

COMMIT = TransactionMarker(PRODUCER, 0, 3, commits=True)
ABORT = TransactionMarker(PRODUCER, 0, 3, commits=False)


def unstable(world: World) -> bool:
    coordinator = world.service.coordinator("g")
    assert not isinstance(coordinator, ErrorCode)
    return bool(coordinator.transactional.unstable("g"))


async def write(world: World, request: CommitTransactionalOffsets) -> ErrorCode:
    return code(await world.service.ask(request))


async def test_an_offset_is_visible_when_its_marker_is_acknowledged() -> None:
    world = World()
    await world.lead()
    assert await write(world, txn_commit(5, adds=True)) is ErrorCode.NONE
    assert (world.offset(), unstable(world)) == (None, True)
    [asked] = world.verifier.asked
    assert asked[:-1] == ("t7", PRODUCER, 0, (WHERE,), True)
    world.log.commits_at_once = False
    ended = world.service.end_transaction(WHERE, COMMIT)
    await loop_turns()
    assert (ended.done(), world.offset()) == (False, None)
    world.log.commit_all()
    assert await ended is ErrorCode.NONE
    assert (world.offset(), unstable(world)) == (5, False)
    world.service.stop()


async def test_a_marker_elsewhere_or_before_the_load_is_to_be_sent_again() -> None:
    world = World()
    refused = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await world.service.end_transaction(WHERE, COMMIT) is refused
    world.service.became_leader(WHERE, Epoch(0))
    assert await world.service.end_transaction(WHERE, COMMIT) is refused
    await world.loaded()
    assert await world.service.end_transaction(WHERE, COMMIT) is ErrorCode.NONE
    elsewhere = TopicPartition(OFFSETS_TOPIC, 9)
    assert await world.service.end_transaction(elsewhere, COMMIT) is refused
    world.service.stop()


@pytest.mark.parametrize(
    "refusal", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED]
)
async def test_what_the_log_has_against_a_marker_is_passed_on(refusal: ErrorCode) -> None:
    world = World()
    await world.lead()
    await write(world, txn_commit(5))
    world.log.refusal = refusal
    assert await world.service.end_transaction(WHERE, COMMIT) is refusal
    assert (world.offset(), unstable(world)) == (None, True)
    world.service.stop()


@pytest.mark.parametrize("is_in_the_log", [True, False])
async def test_after_a_marker_of_unknown_outcome_the_log_tells(is_in_the_log: bool) -> None:
    world = World()
    await world.lead()
    await write(world, txn_commit(5))
    world.log.commits_at_once = False
    ended = world.service.end_transaction(WHERE, COMMIT)
    if not is_in_the_log:
        del world.log.batches[-1]
        world.log.end -= 1
    world.log.fail_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert await ended is ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.log.commit_all()
    await world.loaded()
    assert (world.offset(), unstable(world)) == ((5, False) if is_in_the_log else (None, True))
    world.log.commits_at_once = True
    assert await world.service.end_transaction(WHERE, COMMIT) is ErrorCode.NONE
    assert world.offset() == 5
    world.service.stop()


async def test_a_verification_that_comes_too_late_writes_nothing() -> None:
    world = World()
    await world.lead()
    world.verifier.says = None
    waiting = world.service.ask(txn_commit(5))
    assert await world.service.end_transaction(WHERE, ABORT) is ErrorCode.NONE
    assert code(await waiting) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    written = len(world.log.batches)
    world.verifier.asked[0].reply()
    await loop_turns()
    assert (len(world.log.batches), unstable(world)) == (written, False)
    world.service.stop()


async def test_a_commit_that_waits_when_we_resign_is_told_to_look_elsewhere() -> None:
    world = World()
    await world.lead()
    world.verifier.says = None
    waiting = world.service.ask(txn_commit(5))
    world.service.resigned(WHERE, Epoch(1))
    assert code(await waiting) is ErrorCode.NOT_COORDINATOR
    world.service.became_leader(WHERE, Epoch(2))
    await world.loaded()
    world.verifier.asked[0].reply()
    await loop_turns()
    assert world.log.batches == [], "the answer was for the coordinator before"
    world.service.stop()


async def test_the_next_leader_reads_an_open_transaction_and_its_marker() -> None:
    world = World()
    await world.lead()
    await world.commit(1)
    await write(world, txn_commit(5))
    second = World(world.log)
    await second.lead(1)
    assert (second.offset(), unstable(second)) == (1, True)
    assert await second.service.end_transaction(WHERE, COMMIT) is ErrorCode.NONE
    third = World(world.log)
    await third.lead(2)
    assert (third.offset(), unstable(third)) == (5, False)
    for one in (world, second, third):
        one.service.stop()


async def test_a_leader_that_loads_in_the_middle_waits_for_the_marker_to_be_committed() -> None:
    world = World()
    await world.lead()
    await write(world, txn_commit(5))
    world.log.commits_at_once = False
    ended = world.service.end_transaction(WHERE, COMMIT)
    successor = World(world.log)
    successor.service.became_leader(WHERE, Epoch(1))
    await loop_turns()
    assert successor.service.coordinator("g") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.log.commit_all()
    await successor.loaded()
    assert (successor.offset(), unstable(successor)) == (5, False)
    assert await ended is ErrorCode.NONE
    for one in (world, successor):
        one.service.stop()


async def test_nobody_waits_for_an_answer_whose_client_has_gone() -> None:
    world = World()
    await world.lead()
    world.log.commits_at_once = False
    ended = asyncio.ensure_future(world.service.end_transaction(WHERE, ABORT))
    ended.cancel()
    world.log.commit_all()
    await loop_turns()
    assert await world.service.end_transaction(TopicPartition("t", 0), ABORT) is not ErrorCode.NONE
    world.service.stop()


async def test_without_verification_only_producers_that_add_nothing_are_believed() -> None:
    """`transaction.partition.verification.enable=false`, as of old brokers."""
    world = World()
    settings = replace(SETTINGS, transaction_partition_verification_enable=False)
    world.service._settings = settings
    await world.lead()
    assert await write(world, txn_commit(5)) is ErrorCode.NONE
    assert world.verifier.asked == []
    await world.service.end_transaction(WHERE, COMMIT)
    await write(world, txn_commit(6, adds=True))
    assert len(world.verifier.asked) == 1
    world.service.stop()
