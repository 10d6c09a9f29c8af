"""A metadata log that is damaged is not taken for one with a torn tail."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.metadata_quorum.driver import driver as driver_module
from quorumlog.metadata_quorum.image.records import MetadataRecord, NoOp, ProducerIds, encode_record
from quorumlog.metadata_quorum.log.log_end import (
    FILE_NAME,
    LogEnd,
    LogEndCheckpoint,
    decode_log_end,
)
from quorumlog.metadata_quorum.log.metadata_log import DIRECTORY, MetadataLog
from quorumlog.storage.errors import CorruptCheckpoint, DamagedLog
from quorumlog.storage.io.disk import Disk, RealDisk, read_file, write_file_durably
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.metadata_quorum.drivers import Network, until

SEGMENT = "00000000000000000000.log"
RECORDS: Final[Sequence[MetadataRecord]] = (
    ProducerIds(broker_id=BrokerId(1), broker_epoch=0, next_producer_id=1000),
    NoOp(),
)


def written(disk: Disk, directory: str, *, batches: int = 4) -> MetadataLog:
    log = MetadataLog.open(disk, directory)
    for _ in range(batches):
        log.append([*map(encode_record, RECORDS)], Epoch(1), wall_ms=0)
    log.flush()
    return log


def damage(path: Path, position: int) -> bytes:
    content = bytearray(path.read_bytes())
    content[position : position + 60] = bytes(60)
    path.write_bytes(content)
    return bytes(content)


@pytest.mark.parametrize("position", [0, 30, 200])
def test_damage_after_a_clean_stop_refuses_the_start_and_cuts_nothing(
    tmp_path: Path, position: int
) -> None:
    written(RealDisk(), str(tmp_path)).close()
    segment = tmp_path / DIRECTORY / SEGMENT
    damaged = damage(segment, position)
    for _ in range(2):  # not at the second start either
        with pytest.raises(DamagedLog, match="metadata log is damaged") as refused:
            MetadataLog.open(RealDisk(), str(tmp_path))
        assert str(segment) in str(refused.value)
        assert f"delete {tmp_path}/{DIRECTORY}/{FILE_NAME}" in str(refused.value)
        assert segment.read_bytes() == damaged
    (tmp_path / DIRECTORY / FILE_NAME).unlink()  # somebody gives them up
    assert MetadataLog.open(RealDisk(), str(tmp_path)).end_offset < 8


@pytest.mark.parametrize("size", [0, 100])
def test_a_log_that_lost_its_end_or_all_after_a_clean_stop_is_refused(
    tmp_path: Path, size: int
) -> None:
    written(RealDisk(), str(tmp_path)).close()
    segment = tmp_path / DIRECTORY / SEGMENT
    segment.write_bytes(segment.read_bytes()[:size])
    with pytest.raises(DamagedLog, match="the log certainly had"):
        MetadataLog.open(RealDisk(), str(tmp_path))
    segment.unlink()
    with pytest.raises(DamagedLog, match="has no segment"):
        MetadataLog.open(RealDisk(), str(tmp_path))


def test_what_was_committed_is_known_after_a_crash_too(tmp_path: Path) -> None:
    log = written(RealDisk(), str(tmp_path))
    log.checkpoint(Offset(6))
    segment = tmp_path / DIRECTORY / SEGMENT
    whole = segment.read_bytes()
    batch = len(whole) // 4
    segment.write_bytes(whole[: 3 * batch + 10])  # a torn tail, above what is committed
    assert MetadataLog.open(RealDisk(), str(tmp_path)).end_offset == 6
    segment.write_bytes(whole)
    damage(segment, 2 * batch)
    with pytest.raises(DamagedLog, match=r"records \[4, 6\)"):
        MetadataLog.open(RealDisk(), str(tmp_path))


def test_only_what_is_durable_here_counts_as_committed(tmp_path: Path) -> None:
    """A majority may have committed what this leader has not flushed: it may still lose that."""
    log = written(RealDisk(), str(tmp_path))
    log.append([*map(encode_record, RECORDS)], Epoch(1), wall_ms=0)
    log.checkpoint(Offset(10))
    assert LogEndCheckpoint(RealDisk(), f"{tmp_path}/{DIRECTORY}").last.committed == 8


def test_a_log_may_be_truncated_after_a_clean_stop(tmp_path: Path) -> None:
    """Records that are not committed may go: the next crash must not look like damage."""
    written(RealDisk(), str(tmp_path)).close()
    log = MetadataLog.open(RealDisk(), str(tmp_path))
    log.truncate_to(Offset(4))
    again = MetadataLog.open(RealDisk(), str(tmp_path))  # without a clean stop
    assert again.end_offset == 4


def test_a_late_checkpoint_does_not_undo_the_clean_stop() -> None:
    disk = SimDisk()
    disk.mkdir("/data")
    checkpoint = LogEndCheckpoint(disk, "/data")
    checkpoint.advance(Offset(3))
    checkpoint.advance(Offset(2))  # they may overtake each other
    checkpoint.close(Offset(9))
    checkpoint.advance(Offset(5))
    assert LogEndCheckpoint(disk, "/data").last == LogEnd(committed=Offset(3), closed=Offset(9))


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "is damaged"), ("[]", "delete it"), (json.dumps({"version": 9}), "of version 9")],
)
def test_a_checkpoint_that_cannot_be_read_is_not_guessed(
    tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    with pytest.raises(CorruptCheckpoint, match=message):
        LogEndCheckpoint(RealDisk(), str(tmp_path))


def test_no_flipped_bit_gives_the_log_another_end() -> None:
    disk = SimDisk()
    disk.mkdir("/data")
    LogEndCheckpoint(disk, "/data").close(Offset(9))
    content = read_file(disk, f"/data/{FILE_NAME}")
    assert decode_log_end(content) == {"version": 1, "committed": 0, "closed": 9}
    unfound = 0
    for position in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[position // 8] ^= 1 << position % 8
        write_file_durably(disk, f"/data/{FILE_NAME}", bytes(damaged))
        try:
            assert LogEndCheckpoint(disk, "/data").last == LogEnd(closed=Offset(9))
            unfound += 1
        except CorruptCheckpoint:
            continue
    assert 0 < unfound <= 8 * len('"crc":  ')  # the checksum is then a field that nothing reads


def test_a_file_of_a_former_release_has_no_checksum(tmp_path: Path) -> None:
    former = json.dumps({"version": 1, "committed": 3, "closed": 9})
    (tmp_path / FILE_NAME).write_text(former)
    found = LogEndCheckpoint(RealDisk(), str(tmp_path)).last
    assert found == LogEnd(committed=Offset(3), closed=Offset(9))


@pytest.mark.jumping_time
async def test_a_running_node_notes_how_far_it_is_committed() -> None:
    async with Network(1) as network:
        (voter,) = network.voters.values()
        path = f"/data/{DIRECTORY}"
        await until(
            lambda: (
                LogEndCheckpoint(voter.disk, path).last.committed == voter.quorum.high_watermark
            ),
            within_s=2 * driver_module.CHECKPOINT_MS / 1000,
        )
