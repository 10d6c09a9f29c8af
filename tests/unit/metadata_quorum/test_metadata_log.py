"""The election file, the metadata log and its records, and the notice of a peer's death."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import cbor2
import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.metadata_quorum.cbor_values import MalformedValue, from_plain, to_plain
from quorumlog.metadata_quorum.core.messages import SnapshotId
from quorumlog.metadata_quorum.driver import driver as driver_module
from quorumlog.metadata_quorum.image import records as record_kinds
from quorumlog.metadata_quorum.image.records import (
    MalformedRecord,
    MetadataRecord,
    NewerRecord,
    NoOp,
    ProducerIds,
    decode_record,
    encode_record,
)
from quorumlog.metadata_quorum.io.peer_liveness import has_died, no_process_listens
from quorumlog.metadata_quorum.log.election_store import Election, ElectionStore
from quorumlog.metadata_quorum.log.log_end import (
    FILE_NAME,
    LogEnd,
    LogEndCheckpoint,
    decode_log_end,
)
from quorumlog.metadata_quorum.log.metadata_log import DIRECTORY, MetadataLog, describe
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import CorruptCheckpoint, DamagedLog, DiskExhausted
from quorumlog.storage.io.disk import Disk, RealDisk, read_file, write_file_durably
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset, PartitionIndex, TopicId
from quorumlog.wire.codec.records import decode_batch
from tests.support.metadata_quorum.drivers import Network, until
from tests.support.metadata_quorum.quorums import leader_change, records
from tests.support.storage.crashes import flipped_bits
from tests.support.storage.refusing import Refusing

ELECTION = Election(leader_epoch=Epoch(7), leader_id=BrokerId(-1), voted_id=BrokerId(2))
IDS = ProducerIds(broker_id=BrokerId(1), broker_epoch=3, next_producer_id=1000)


def test_an_election_is_kept_and_nothing_is_an_empty_one(tmp_path: Path) -> None:
    store = ElectionStore(RealDisk(), str(tmp_path))
    assert store.load() == Election(is_new=True)
    store.save(ELECTION)
    assert ElectionStore(RealDisk(), str(tmp_path)).load() == ELECTION
    new = ElectionStore(RealDisk(), str(tmp_path), (BrokerId(2), BrokerId(1)))
    new.save(replace(ELECTION, is_new=True))
    voters = (BrokerId(1), BrokerId(2))
    assert new.load() == replace(ELECTION, is_new=True, voters=voters)
    assert [path.name for path in tmp_path.iterdir()] == ["quorum-state"]


STATE = '{"data_version": 1, "leaderId": 1, "leaderEpoch": %s, "votedId": 1}'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is damaged"),
        ("{}", "Keep the log beside it"),
        ("[1]", "is damaged"),
        (STATE % "null", "is damaged"),
        (STATE % "-1", "leaderEpoch -1"),
        (STATE % "2147483648", "is damaged"),
        ('{"data_version": 9}', "of version 9"),
    ],
)
def test_an_election_that_cannot_be_read_is_not_guessed(
    tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "quorum-state").write_text(content)
    with pytest.raises(CorruptCheckpoint, match=message):
        ElectionStore(RealDisk(), str(tmp_path)).load()


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_file_of_a_former_release_or_of_a_person_is_read(tmp_path: Path, end: str) -> None:
    former = '{"leaderId": -1, "leaderEpoch": 7, "votedId": 2, "isNew": false, "data_version": 1}'
    (tmp_path / "quorum-state").write_text(former + end)
    store = ElectionStore(RealDisk(), str(tmp_path))
    assert store.load() == ELECTION
    newer = replace(ELECTION, leader_epoch=Epoch(8))
    store.save(newer)
    assert ElectionStore(RealDisk(), str(tmp_path)).load() == newer
    lines = (tmp_path / "quorum-state").read_text().splitlines()
    assert {json.loads(line)["leaderEpoch"] for line in lines} == {8}
    assert all("checksum" in json.loads(line) for line in lines)


def test_the_log_replays_its_records_and_skips_what_is_the_quorums_own(tmp_path: Path) -> None:
    log = MetadataLog.open(RealDisk(), str(tmp_path))
    log.append_leader_change(leader_change(1, 0), wall_ms=0)
    log.append([encode_record(IDS), encode_record(NoOp())], Epoch(1), wall_ms=0)
    log.append_leader_change(leader_change(2, 3), wall_ms=0)
    log.append([*map(encode_record, [NoOp()])], Epoch(2), wall_ms=0)
    assert list(log.replay(Offset(0), Offset(5))) == [(1, IDS), (2, NoOp()), (4, NoOp())]
    assert log.epoch_starts() == ((1, 0), (2, 3))
    assert log.flush() == 5
    log.close()
    again = MetadataLog.open(RealDisk(), str(tmp_path))
    assert list(again.replay(Offset(3), Offset(5))) == [(4, NoOp())]
    again.close()


def test_a_leader_change_is_kafkas_control_record() -> None:
    log = MetadataLog.open(SimDisk(), "/data")
    log.append_leader_change(leader_change(1, 0), wall_ms=0)
    (record,) = decode_batch(log.read(Offset(0), Offset(1)))
    assert record.key == bytes([0, 0, 0, 2])
    assert record.value == bytes.fromhex(
        "0000 00000001 03 00000001 00 00000002 00 03 00000001 00 00000002 00 00"
    )


def test_what_a_leader_sends_is_checked_before_anybody_believes_it() -> None:
    log = MetadataLog.open(SimDisk(), "/data")
    log.append_leader_change(leader_change(1, 0), wall_ms=0)
    log.append([*map(encode_record, [NoOp()] * 3)], Epoch(1), wall_ms=0)
    log.append_leader_change(leader_change(2, 4), wall_ms=0)
    sent = log.read(Offset(0), Offset(5))
    assert describe(sent) == (sent, records(0, 5, (1, 0), (2, 4)))
    cut, fetched = describe(sent[:-1])
    assert fetched == records(0, 4, (1, 0))
    assert sent.startswith(cut)
    assert describe(sent[:20]) == (b"", None)
    broken = bytearray(sent)
    broken[100] ^= 1
    for content in (bytes(broken), sent + sent):
        with pytest.raises(CorruptBatch):
            describe(content)


async def test_only_a_refused_connection_proves_that_nobody_listens() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    assert not await has_died(address)
    server.close()
    await server.wait_closed()
    assert await no_process_listens(address)
    assert not await no_process_listens("no-such-host.invalid:1")


# --- a metadata log that is damaged is not taken for one with a torn tail ---


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


def test_a_snapshot_that_replaces_the_log_is_noted_until_the_log_starts_at_its_end() -> None:
    disk = SimDisk()
    disk.mkdir("/data")
    checkpoint = LogEndCheckpoint(disk, "/data")
    checkpoint.advance(Offset(3))
    checkpoint.begin_install(Offset(9))
    begun = LogEnd(committed=Offset(3), installing=Offset(9))
    assert LogEndCheckpoint(disk, "/data").last == begun
    checkpoint.finish_install(Offset(9))
    assert LogEndCheckpoint(disk, "/data").last == LogEnd(committed=Offset(9))


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
    for damaged in flipped_bits(content):
        write_file_durably(disk, f"/data/{FILE_NAME}", damaged)
        with suppress(CorruptCheckpoint):
            assert LogEndCheckpoint(disk, "/data").last == LogEnd(closed=Offset(9))
            unfound += 1
    assert 0 < unfound <= 8 * len('"crc":  ')  # the checksum is then a field that nothing reads


def test_a_file_of_a_former_release_has_no_checksum(tmp_path: Path) -> None:
    former = json.dumps({"version": 1, "committed": 3, "closed": 9})
    (tmp_path / FILE_NAME).write_text(former)
    found = LogEndCheckpoint(RealDisk(), str(tmp_path)).last
    assert found == LogEnd(committed=Offset(3), closed=Offset(9))


@pytest.mark.jumping_time
async def test_a_running_node_notes_how_far_it_is_committed() -> None:
    async with Network(1) as network:
        voter = network.voters[1]

        def is_noted() -> bool:
            noted = LogEndCheckpoint(voter.disk, f"/data/{DIRECTORY}").last.committed
            return noted == voter.quorum.state.log.high_watermark

        await until(is_noted, within_s=2 * driver_module.CHECKPOINT_MS / 1000)


# --- a log that finds no room when it is opened is opened again, and holds the same ---


SMALL_SEGMENTS = LogSettings(segment_bytes=200)
AHEAD = SnapshotId(Offset(9), Epoch(1))


def left_behind(*, is_clean: bool, has_snapshot: bool) -> SimDisk:
    """Return the disk of a process whose log has a torn end, or was closed."""
    disk = SimDisk()
    log = MetadataLog.open(disk, "/data", SMALL_SEGMENTS)
    for _ in range(5):
        log.append([bytes(60)], Epoch(1), wall_ms=0)
    if has_snapshot:
        assert log.snapshots.write(AHEAD, [], last_time_ms=0)
    if is_clean:
        log.close()
    else:
        log.flush()
        log.append([bytes(60)], Epoch(1), wall_ms=0)
        last = max(name for name in disk.listdir(f"/data/{DIRECTORY}") if name.endswith(".log"))
        path = f"/data/{DIRECTORY}/{last}"
        disk.cut(path, disk.size(path) - 1)
    disk.kill()
    return disk


@pytest.mark.parametrize("has_snapshot", [False, True])
@pytest.mark.parametrize("is_clean", [False, True])
def test_a_log_that_finds_no_room_is_opened_again(is_clean: bool, has_snapshot: bool) -> None:
    end = AHEAD.end_offset if has_snapshot else 5
    for first in count():
        disk = left_behind(is_clean=is_clean, has_snapshot=has_snapshot)
        refusing = Refusing(disk, first, 1)
        try:
            log = MetadataLog.open(disk, "/data", SMALL_SEGMENTS)
        except DiskExhausted:
            log = MetadataLog.open(disk, "/data", SMALL_SEGMENTS)
        refusing.free()
        assert (log.end_offset, log.start) == (end, AHEAD if has_snapshot else None)
        log.append([b"next"], Epoch(1), wall_ms=0)
        assert log.flush() == end + 1
        if not refusing.has_refused:
            break
    assert first > 4


# --- records as bytes: versions, unknown fields, and bytes that are no record ---


TOPIC_ID = TopicId(bytes(range(16)))
CHANGE = record_kinds.PartitionChange(
    topic_id=TOPIC_ID, partition_id=PartitionIndex(3), isr=(BrokerId(1),), elr=()
)


def test_a_record_is_its_type_its_version_and_its_fields() -> None:
    assert cbor2.loads(encode_record(CHANGE)) == [
        5,
        0,
        {"topic_id": TOPIC_ID, "partition_id": 3, "isr": [1], "elr": []},
    ]
    assert decode_record(encode_record(CHANGE)) == CHANGE


def test_a_field_at_its_default_is_not_written() -> None:
    one = (BrokerId(1),)
    new = record_kinds.Partition(
        topic_id=TOPIC_ID, partition_id=PartitionIndex(3), replicas=one, isr=one, leader=one[0]
    )
    fields = {"topic_id": TOPIC_ID, "partition_id": 3, "replicas": [1], "isr": [1], "leader": 1}
    assert cbor2.loads(encode_record(new)) == [3, 0, fields]
    assert decode_record(encode_record(new)) == new


def test_the_defaults_of_records_are_those_that_written_logs_mean() -> None:
    """A default that changes would change what is in every log: see `encode_record`."""
    defaults = {
        kind.__name__: {
            field.name: field.default for field in fields(kind) if field.default is not MISSING
        }
        for kind in record_kinds.RECORD_TYPES.values()
    }
    nothing = {name: found for name, found in defaults.items() if {*found.values()} <= {None}}
    assert {name: found for name, found in defaults.items() if name not in nothing} == {
        "RegisterBroker": {
            **dict.fromkeys(("rack", "directory_id", "boot_id", "broker_epoch", "log_dirs")),
            "endpoints": (),
            "min_insync_replicas": 1,
            "fenced": True,
            "in_controlled_shutdown": False,
        },
        "Partition": {
            "leader_epoch": 0,
            "partition_epoch": 0,
            **dict.fromkeys(("elr", "adding_replicas", "removing_replicas"), ()),
            "last_known_leader": -1,
            "is_recovering": False,
            "directories": None,
            "last_known_elr": (),
        },
        "FeatureLevel": {"is_automatic": False},
    }


def test_the_fields_of_a_newer_version_are_skipped() -> None:
    value = cbor2.dumps([9, 1, {"topic_id": TOPIC_ID, "reason": "tidy"}])
    assert decode_record(value) == record_kinds.RemoveTopic(topic_id=TOPIC_ID)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "not CBOR"),
        (b"\xff", "not CBOR"),
        (b"\x9f" * 5000, "not CBOR"),
        (cbor2.dumps({"a": 1}), "expected"),
        (cbor2.dumps(["5", 0, {}]), "type '5' is no number"),
        (cbor2.dumps([[], 0, {}]), "type \\[\\] is no number"),
        (cbor2.dumps([9, 0, []]), "RemoveTopic: expected a map"),
        (cbor2.dumps([9, 0, {}]), "RemoveTopic.topic_id: expected bytes, got NoneType"),
        (cbor2.dumps([9, 0, {"topic_id": 5}]), "RemoveTopic.topic_id: expected bytes, got int"),
        (
            cbor2.dumps([5, 0, {"topic_id": TOPIC_ID, "partition_id": True}]),
            "partition_id: expected int, got bool",
        ),
    ],
)
def test_bytes_that_are_no_record_are_an_error_that_says_why(value: bytes, message: str) -> None:
    with pytest.raises(MalformedRecord, match=message):
        decode_record(value)


@pytest.mark.parametrize("value", [{"a": 1, "b": [1]}, "text", 5, None])
def test_plain_values_of_another_shape_are_refused(value: Any) -> None:
    with pytest.raises(MalformedValue):
        from_plain(record_kinds.Topic, value)
    with pytest.raises(TypeError, match="no plain form"):
        to_plain(object())


def test_a_record_of_a_newer_release_is_no_damage() -> None:
    with pytest.raises(NewerRecord, match="it has records of type 99"):
        decode_record(cbor2.dumps([99, 0, {}]))
