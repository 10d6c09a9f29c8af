"""Transactions in one partition: appends, markers, readers, followers, lookups and moves."""

import asyncio
from pathlib import Path

import pytest

from quorumlog.broker.partitions.core.data_path import ReadEnd
from quorumlog.broker.partitions.core.verification import error_for_producer
from quorumlog.broker.replicas import Replicas
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.aborted_transactions import AbortedTransaction
from quorumlog.storage.core.settings import LogSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import restamp
from quorumlog.wire.codec.transaction_markers import TransactionMarker, encode_marker
from tests.support.broker import moving
from tests.support.broker.one_broker import AT, BATCH, append, fetch_of, follow, one_broker, size
from tests.support.broker.scripted_verifier import ScriptedVerifier
from tests.support.broker.transactional import (
    ONE_SEGMENT,
    PRODUCER,
    append_in,
    begin_append,
    begin_to_end,
    driver_of,
    end,
    idempotent,
    read_committed,
    transactional,
)
from tests.support.waiting import loop_turns


def stable_end(replicas: Replicas) -> int:
    return driver_of(replicas).end(ReadEnd.LAST_STABLE)


async def test_an_open_transaction_holds_readers_back_until_its_marker(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        append(replicas)
        await append_in(replicas, transactional(0))
        append(replicas)
        assert await read_committed(replicas) == ([0], [])
        assert stable_end(replicas) == 1
        assert end(replicas) is ErrorCode.NONE
        assert await read_committed(replicas) == ([0, 1, 2, 3], [])


async def test_an_aborted_transaction_is_named_to_readers_of_its_records(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        append(replicas)
        await append_in(replicas, transactional(0))
        end(replicas, commits=False)
        append(replicas)
        aborted = AbortedTransaction(PRODUCER, 1, 2, 3)
        assert await read_committed(replicas) == ([0, 1, 2, 3], [aborted])
        assert await read_committed(replicas, 2) == ([2, 3], [aborted])
        assert await read_committed(replicas, 3) == ([3], [])


async def test_each_aborted_transaction_of_a_range_is_named(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        for sequence in range(2):
            await append_in(replicas, transactional(sequence))
            end(replicas, commits=False)
        offsets, aborted = await read_committed(replicas)
        assert offsets == [0, 1, 2, 3]
        assert [one.first_offset for one in aborted] == [0, 2]


async def test_a_delayed_fetch_hears_of_the_marker(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        await append_in(replicas, transactional(0))
        delayed = replicas.fetches.fetch(fetch_of(0, is_read_committed=True), list)
        append(replicas)
        await loop_turns(3)
        assert isinstance(delayed, asyncio.Future)
        assert not delayed.done()
        end(replicas)
        assert size(await delayed) > 3 * 61


async def test_the_coordinator_is_asked_once_per_transaction(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        verifier = ScriptedVerifier()
        await append_in(replicas, transactional(0), verifier)
        await append_in(replicas, transactional(1), verifier)
        assert [(one.producer_id, one.partitions) for one in verifier.asked] == [(PRODUCER, (AT,))]
        end(replicas)
        await append_in(replicas, transactional(2), verifier)
        assert len(verifier.asked) == 2


async def test_later_batches_wait_behind_the_question(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        verifier = ScriptedVerifier(says=None)
        appends = [begin_append(replicas, transactional(one), verifier) for one in range(3)]
        append(replicas)  # another producer's goes on
        assert len(verifier.asked) == 1
        verifier.asked[0].reply()
        assert [(await one).base_offset for one in appends] == [1, 2, 3]


async def test_the_next_batch_asks_again_after_a_refusal(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        verifier = ScriptedVerifier(says=None)
        first, second = (begin_append(replicas, transactional(one), verifier) for one in (0, 1))
        verifier.asked[0].reply(ErrorCode.NOT_ENOUGH_REPLICAS)
        assert (await first).error_code is ErrorCode.NOT_ENOUGH_REPLICAS
        verifier.asked[1].reply()
        # The first is not there: nothing may be appended in its place (KAFKA-14920).
        assert (await second).error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        verifier.says = ErrorCode.NONE
        assert (await begin_append(replicas, transactional(0), verifier)).base_offset == 0
        assert (await begin_append(replicas, transactional(1), verifier)).base_offset == 1


async def test_a_marker_between_question_and_append_makes_the_append_fail(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        verifier = ScriptedVerifier(says=None)
        late = begin_append(replicas, transactional(0), verifier)
        assert end(replicas, commits=False) is ErrorCode.NONE
        verifier.asked[0].reply()
        assert (await late).error_code is ErrorCode.INVALID_TXN_STATE
        assert driver_of(replicas).log.log_end_offset == 1
        assert stable_end(replicas) == 1


async def test_the_marker_of_the_transaction_before_fails_no_append(tmp_path: Path) -> None:
    """A client of transaction.version 2 does not wait for it, and the coordinator is asked once."""
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        await append_in(replicas, transactional(0))
        verifier = ScriptedVerifier(says=None)
        first, second = (
            begin_append(replicas, transactional(one, epoch=1), verifier, adds=True)
            for one in (0, 1)
        )
        assert end(replicas, epoch=1, version=2) is ErrorCode.NONE
        verifier.asked[0].reply()
        assert [(await one).base_offset for one in (first, second)] == [2, 3]
        assert [one.topic_id for one in verifier.asked] == [driver_of(replicas).topic_id]


async def test_the_marker_of_its_own_transaction_fails_an_append(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        verifier = ScriptedVerifier(says=None)
        late = begin_append(replicas, transactional(0, epoch=1), verifier, adds=True)
        assert end(replicas, commits=False, epoch=2, version=2) is ErrorCode.NONE
        verifier.asked[0].reply()
        assert (await late).error_code is ErrorCode.INVALID_PRODUCER_EPOCH
        assert len(verifier.asked) == 1
        assert stable_end(replicas) == 1


async def test_an_answer_to_an_older_question_opens_nothing(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        verifier = ScriptedVerifier(says=None)
        late = begin_append(replicas, transactional(0), verifier)
        end(replicas, commits=False)  # and the same producer begins another one, unverified yet
        again = begin_append(replicas, transactional(0), verifier)
        verifier.asked[0].reply()
        assert (await late).error_code is ErrorCode.INVALID_TXN_STATE
        verifier.asked[1].reply(ErrorCode.INVALID_TXN_STATE)
        assert (await again).error_code is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("has_data", [True, False])
async def test_a_marker_that_may_be_its_own_is_asked_about(tmp_path: Path, has_data: bool) -> None:
    """It has the epoch of what it ends, as older clients' markers have, or it ends nothing here."""
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        verifier = ScriptedVerifier()
        if has_data:
            await begin_append(replicas, transactional(0, epoch=2), verifier)
            await append_in(replicas, transactional(1, epoch=2))
        verifier.says = None
        asked_before = len(verifier.asked)
        other = begin_append(replicas, transactional(0, epoch=3), verifier, adds=True)
        assert end(replicas, epoch=2 if has_data else 3) is ErrorCode.NONE
        verifier.asked[asked_before].reply()  # under a guard that the marker has taken
        await loop_turns(2)
        assert not other.done()
        verifier.asked[asked_before + 1].reply()
        assert (await other).error_code is ErrorCode.NONE


async def test_a_client_that_does_not_know_abortable_hears_of_an_invalid_state() -> None:
    for knows, told in (
        (True, ErrorCode.TRANSACTION_ABORTABLE),
        (False, ErrorCode.INVALID_TXN_STATE),
    ):
        assert error_for_producer(ErrorCode.TRANSACTION_ABORTABLE, knows_abortable=knows) is told


async def test_transactional_records_need_an_id_and_no_question_a_guard(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        assert (await begin_append(replicas, transactional(7), None)).base_offset == 0
        refused = append(replicas, records=transactional(0))
        assert refused.error_code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def test_a_batch_outside_of_the_open_transaction_is_refused(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        await append_in(replicas, transactional(0))
        assert append(replicas, records=idempotent(1)).error_code is ErrorCode.INVALID_TXN_STATE
        end(replicas)
        assert append(replicas, records=idempotent(1)).error_code is ErrorCode.NONE


async def test_a_batch_of_a_transaction_that_a_newer_epoch_ended_is_refused(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        await append_in(replicas, transactional(0, epoch=3))
        assert end(replicas, epoch=4, version=2) is ErrorCode.NONE
        verifier = ScriptedVerifier()
        late = await append_in(replicas, transactional(1, epoch=3), verifier)
        assert late.error_code is ErrorCode.INVALID_PRODUCER_EPOCH
        assert verifier.asked == []
        gap = await append_in(replicas, transactional(1, epoch=4))
        assert gap.error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await append_in(replicas, transactional(0, epoch=4))).base_offset == 2


@pytest.mark.parametrize(
    ("epoch", "coordinator_epoch", "version", "error_code"),
    [
        (1, 9, 0, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, 8, 0, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        (2, 9, 0, ErrorCode.NONE),
        (2, 9, 2, ErrorCode.INVALID_PRODUCER_EPOCH),
        (3, 9, 2, ErrorCode.NONE),
    ],
)
async def test_a_marker_is_judged_by_its_epochs(
    tmp_path: Path, epoch: int, coordinator_epoch: int, version: int, error_code: ErrorCode
) -> None:
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        await append_in(replicas, transactional(0, epoch=1))
        assert end(replicas, epoch=2, coordinator_epoch=9) is ErrorCode.NONE
        await append_in(replicas, transactional(0, epoch=2))
        marked = end(replicas, epoch=epoch, coordinator_epoch=coordinator_epoch, version=version)
        assert marked is error_code


async def test_a_marker_that_waits_for_a_swap_of_the_log_is_judged_by_its_version(
    tmp_path: Path,
) -> None:
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        await append_in(replicas, transactional(0))
        driver_of(replicas).begin_exchange()
        late, newer = (begin_to_end(replicas, epoch=epoch, version=2) for epoch in (0, 1))
        driver_of(replicas).end_exchange(None)
        assert late.result().error_code is ErrorCode.INVALID_PRODUCER_EPOCH
        assert newer.result().error_code is ErrorCode.NONE


async def test_a_marker_that_is_sent_again_does_no_harm(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        await append_in(replicas, transactional(0))
        for _ in range(2):
            assert end(replicas, commits=False, epoch=1, version=2) is ErrorCode.NONE
        assert [one.last_offset for one in (await read_committed(replicas))[1]] == [1]


async def test_a_marker_is_done_and_counts_when_it_is_committed(tmp_path: Path) -> None:
    async with one_broker(tmp_path, (1, 2), log_settings=ONE_SEGMENT) as replicas:
        begun = begin_append(replicas, transactional(0), ScriptedVerifier())
        await begun
        replicas.fetches.fetch(fetch_of(1, replica_id=2, leader_epoch=0, max_wait_ms=0), list)
        ended = begin_to_end(replicas)
        assert driver_of(replicas).end(ReadEnd.HIGH_WATERMARK) == 1
        assert (stable_end(replicas), ended.done()) == (0, False)
        replicas.fetches.fetch(fetch_of(2, replica_id=2, leader_epoch=0, max_wait_ms=0), list)
        assert (stable_end(replicas), ended.done()) == (2, True)


async def test_the_description_of_a_producer_tells_its_transaction(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        append(replicas)
        await append_in(replicas, transactional(0))
        described = driver_of(replicas).producers.describe(PRODUCER)
        assert described is not None
        assert (described.transaction_offset, described.coordinator_epoch) == (1, -1)
        end(replicas, coordinator_epoch=4)
        described = driver_of(replicas).producers.describe(PRODUCER)
        assert described is not None
        assert (described.transaction_offset, described.coordinator_epoch) == (-1, 4)


async def test_a_restart_knows_the_open_and_the_aborted_transactions(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        append(replicas, records=BATCH)
        await append_in(replicas, transactional(0))
        end(replicas, commits=False)
        await append_in(replicas, transactional(1))
        append(replicas)
        before = await read_committed(replicas)
        assert before == ([0, 1, 2], [AbortedTransaction(PRODUCER, 1, 2, 3)])
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        assert await read_committed(replicas) == before
        assert end(replicas) is ErrorCode.NONE
        assert (await read_committed(replicas, 3))[0] == [3, 4, 5]


async def test_a_transaction_that_ended_before_a_crash_holds_nobody_back(tmp_path: Path) -> None:
    """The high watermark is at the end already, so that no append or fetch will move it."""
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        await append_in(replicas, transactional(0))
        end(replicas)
    for snapshot in tmp_path.rglob("*.snapshot"):  # a crash leaves older ones, or none
        snapshot.unlink()
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        assert driver_of(replicas).end(ReadEnd.HIGH_WATERMARK) == 2
        assert stable_end(replicas) == 2
        assert await read_committed(replicas) == ([0, 1], [])


ABORTED = AbortedTransaction(PRODUCER, 0, 2, 3)


def from_leader(*batches: bytes) -> bytes:
    """Return batches of one record each as the leader of epoch 1 sends them, from offset 0 on."""
    stamped = b""
    for offset, batch in enumerate(batches):
        copy = bytearray(batch)
        restamp(copy, 0, base_offset=offset, leader_epoch=1)
        stamped += copy
    return stamped


async def test_a_follower_learns_what_its_leader_knows(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        take = follow(replicas)
        aborts = encode_marker(TransactionMarker(PRODUCER, 0, 4, commits=False), 1)
        take(
            from_leader(transactional(0), transactional(1), aborts, transactional(2))
            + b"\0" * 20  # of a batch that does not fit any more
        )
        driver = driver_of(replicas)
        assert driver.log.aborted.within(0, 9) == [ABORTED]
        assert driver.end(ReadEnd.HIGH_WATERMARK) == 4
        assert driver.end(ReadEnd.LAST_STABLE) == 3
        described = driver.producers.describe(PRODUCER)
        assert described is not None
        assert (described.coordinator_epoch, described.transaction_offset) == (4, 3)


async def test_a_marker_that_cannot_be_read_is_not_appended(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        take = follow(replicas)
        marker = bytearray(encode_marker(TransactionMarker(PRODUCER, 0, 4, commits=False), 1))
        marker[-20:] = bytes(20)
        followed = take(from_leader(bytes(marker)))
        assert (followed.failures, driver_of(replicas).log.log_end_offset) == (1, 0)


async def test_the_end_of_a_log_is_the_stable_one_for_read_committed(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        append(replicas)
        await append_in(replicas, transactional(0))
        append(replicas)
        for is_read_committed, expected in ((False, 3), (True, 1)):
            latest = await replicas.list_offset(AT, -1, is_read_committed=is_read_committed)
            assert (latest.error_code, latest.offset) == (ErrorCode.NONE, expected)
        # The first record of the transaction has the same time: it is not seen, either.
        await_time = await replicas.list_offset(AT, 1, is_read_committed=True)
        assert (await_time.offset, await_time.timestamp_ms) == (0, 1)
        later = await replicas.list_offset(AT, 2, is_read_committed=True)
        assert later.offset == -1


async def test_a_moved_replica_takes_its_transactions_along() -> None:
    disk, metadata = SimDisk(), moving.Metadata()
    settings = LogSettings(segment_bytes=300)
    async with moving.broker(disk, metadata, log_settings=settings) as replicas:
        for sequence in range(0, 20, 2):
            await append_in(replicas, transactional(sequence))
            end(replicas, commits=sequence % 4 == 0)
            await append_in(replicas, transactional(sequence + 1))
            end(replicas, commits=False)
        await append_in(replicas, transactional(20))
        log = driver_of(replicas).log
        aborted = log.aborted.within(0, log.log_end_offset)
        assert len(aborted) == 15
        assert len(log.segment_base_offsets) > 3
        assert await replicas.moves.alter(moving.AT, "/b") is ErrorCode.NONE
        await moving.until_in(replicas, "b")
        moved = driver_of(replicas).log
        assert moved is not log
        assert moved.aborted.within(0, moved.log_end_offset) == aborted
        assert driver_of(replicas).end(ReadEnd.LAST_STABLE) == moved.log_end_offset - 1
        assert end(replicas) is ErrorCode.NONE
    async with moving.broker(disk, metadata, log_settings=settings) as replicas:
        again = driver_of(replicas).log
        assert again.aborted.within(0, again.log_end_offset) == aborted
        assert (await read_committed(replicas, 2))[1][:1] == aborted[:1]
