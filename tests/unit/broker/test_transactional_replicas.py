"""Followers, lookups and moves keep the open and the aborted transactions of a log."""

from pathlib import Path

from quorumlog.broker.partitions.core.data_path import ReadEnd
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.aborted_transactions import AbortedTransaction
from quorumlog.storage.core.settings import LogSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import restamp
from quorumlog.wire.codec.transaction_markers import TransactionMarker, encode_marker
from tests.support.broker import moving
from tests.support.broker.one_broker import AT, append, follow, one_broker
from tests.support.broker.transactional import (
    ONE_SEGMENT,
    PRODUCER,
    append_in,
    driver_of,
    end,
    read_committed,
    transactional,
)

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


async def test_the_end_of_a_log_is_the_last_stable_offset_for_read_committed(
    tmp_path: Path,
) -> None:
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
