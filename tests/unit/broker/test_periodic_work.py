"""The tasks that a broker starts: their effects, after their time."""

import asyncio
from pathlib import Path

import pytest

from quorumlog.metadata_quorum.controller_client import IsrProposal
from quorumlog.metadata_quorum.controller_requests import AlterPartitions, IsrResults
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.checkpoints import (
    CLEANED_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    read_offset_checkpoint,
)
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import Record, encode_batch
from tests.support.broker.one_broker import AT, Reports, append, one_broker, publish
from tests.support.broker.replicas import ALL_ALIVE, BROKERS, image

ONE_BATCH = LogSettings(segment_bytes=1)  # in each segment
KEYED = encode_batch([Record(0, 1, b"k", b"v")])  # of 1970: retention deletes it


def offset_in(directory: Path, file_name: str) -> int | None:
    return read_offset_checkpoint(RealDisk(), str(directory), file_name).get(AT)


@pytest.mark.jumping_time
async def test_a_broker_keeps_its_offsets_durable_without_a_shutdown(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_BATCH) as replicas:
        for _ in range(4):
            append(replicas)
        log = replicas.drivers[AT].log
        await asyncio.sleep(6)  # replica.high.watermark.checkpoint.interval.ms: 5 s
        assert offset_in(tmp_path, REPLICATION_FILE) == 4
        assert offset_in(tmp_path, RECOVERY_POINT_FILE) is None
        append(replicas)
        await asyncio.sleep(60)
        assert offset_in(tmp_path, REPLICATION_FILE) == 5
        assert offset_in(tmp_path, RECOVERY_POINT_FILE) == log.flushed_offset == 5
        append(replicas)
        await asyncio.sleep(60)
        assert offset_in(tmp_path, RECOVERY_POINT_FILE) == 5  # only the active segment has more
        append(replicas)
        await asyncio.sleep(40)
        assert offset_in(tmp_path, RECOVERY_POINT_FILE) == 5  # once a minute
        await asyncio.sleep(20)
        assert offset_in(tmp_path, RECOVERY_POINT_FILE) == 7


@pytest.mark.jumping_time
async def test_a_broker_compacts_and_deletes_in_turn(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_BATCH) as replicas:
        alone = image(1, 0, 0, (1,), replicas=(1,))
        publish(replicas, alone, cleanup_policy="compact,delete", retention_ms="1")
        for _ in range(4):
            append(replicas, records=KEYED)
        log = replicas.drivers[AT].log
        await asyncio.sleep(20)  # log.cleaner.backoff.ms: 15 s
        assert log.size < 4 * len(KEYED)
        assert offset_in(tmp_path, CLEANED_FILE) == 3
        assert offset_in(tmp_path, LOG_START_FILE) is None
        await asyncio.sleep(300)  # log.retention.check.interval.ms
        assert offset_in(tmp_path, LOG_START_FILE) == log.log_start_offset == 4
        assert log.segment_base_offsets == (4,)
        assert len([*tmp_path.rglob("*.log")]) == 1


@pytest.mark.jumping_time
async def test_a_leader_proposes_to_remove_a_silent_follower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposed: list[IsrProposal] = []

    async def ask(_: Reports, request: AlterPartitions) -> IsrResults:
        proposed.extend(request.proposals)
        return IsrResults(error_code=ErrorCode.NONE)

    monkeypatch.setattr(Reports, "ask", ask)
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        replicas.registered(ALL_ALIVE[BROKERS[0]].broker_epoch)
        append(replicas)
        await asyncio.sleep(29)  # replica.lag.time.max.ms: 30 s
        assert not proposed
        await asyncio.sleep(2)
        assert [member for member, _ in proposed[0].new_isr] == [BROKERS[0]]
