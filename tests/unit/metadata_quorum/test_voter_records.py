"""Voters in the metadata log: Kafka's control records, checked by each node that reads them."""

from pathlib import Path

import pytest

from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.core.effects import AppendVoters
from quorumlog.metadata_quorum.core.messages import SnapshotId
from quorumlog.metadata_quorum.core.voter_sets import Voter, VoterSet
from quorumlog.metadata_quorum.log.metadata_log import MetadataLog, describe
from quorumlog.metadata_quorum.log.snapshot_files import CorruptSnapshot, SnapshotFiles
from quorumlog.metadata_quorum.log.voter_records import control_key, decode_voters, encode_voters
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from quorumlog.wire.codec.messages.k_raft_version_record import KRaftVersionRecord
from quorumlog.wire.codec.messages.voters_record import VotersRecord
from quorumlog.wire.codec.records import Record, encode_batch, iterate_headers
from quorumlog.wire.codec.schemas import decode_message, encode_message
from tests.support.metadata_quorum.voters import directory_id, voter, voter_set


def batch(*pairs: tuple[bytes | None, bytes]) -> bytes:
    records = [
        Record(offset=7 + at, timestamp_ms=1, key=key, value=value)
        for at, (key, value) in enumerate(pairs)
    ]
    return encode_batch(records, base_offset=7, leader_epoch=3, is_control=True)


def test_the_records_are_kafkas() -> None:
    (level_key, level), (voters_key, voters) = encode_voters(
        voter_set(1, 2), sets_kraft_version=True
    )
    assert (level_key, voters_key) == (b"\0\0\0\5", b"\0\0\0\6")
    assert decode_message(KRaftVersionRecord, 0, level).k_raft_version == 1
    first, second = decode_message(VotersRecord, 0, voters).voters
    assert (first.voter_id, second.voter_id) == (1, 2)
    assert first.voter_directory_id == b"1".rjust(16, b"-")
    assert [(one.name, one.host, one.port) for one in second.endpoints] == [
        ("CONTROLLER", "host2", 2)
    ]
    assert first.k_raft_version_feature.max_supported_version == 1


def test_a_fetched_batch_tells_its_voters() -> None:
    fetched = batch(*encode_voters(voter_set(1, 2, 3), sets_kraft_version=True))
    _, described = describe(fetched)
    assert described is not None
    assert described.voter_sets == ((Offset(8), voter_set(1, 2, 3)),)
    assert (described.base_offset, described.end_offset) == (7, 9)


def test_voters_without_an_address_or_at_an_ipv6_address_are_read_as_written() -> None:
    voters = VoterSet(
        (
            Voter(voter_id=BrokerId(1), directory_id=directory_id("1")),
            Voter(voter_id=BrokerId(2), directory_id=directory_id("2"), address="[::1]:9093"),
        )
    )
    _, described = describe(batch(*encode_voters(voters, sets_kraft_version=False)))
    assert described is not None
    assert described.voter_sets == ((Offset(7), voters),)


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        ((control_key(6), b"\0\0\5"), "the voters at 7"),
        ((control_key(6), b"\0\0\1\0"), "there is no voter"),
        ((control_key(5), b"\0\0\0\2\0"), "kraft.version 2, where 1 is the newest"),
        ((b"\0\0", b""), "a key of 2 bytes"),
    ],
)
def test_a_malformed_record_is_refused(pair: tuple[bytes, bytes], reason: str) -> None:
    with pytest.raises(CorruptBatch, match=reason):
        describe(batch(pair))


@pytest.mark.parametrize("ids", [(1, 1), (-1, 2)])
def test_ids_that_cannot_be_are_refused(ids: tuple[int, int]) -> None:
    [(_, value)] = encode_voters(voter_set(1, 2), sets_kraft_version=False)
    record = decode_message(VotersRecord, 0, value)
    for read, voter_id in zip(record.voters, ids, strict=True):
        read.voter_id = voter_id
    malformed = b"".join(encode_message(record, 0))
    with pytest.raises(CorruptBatch, match="voter"):
        describe(batch((control_key(6), malformed)))


def test_other_control_records_say_nothing_of_voters() -> None:
    assert decode_voters([Record(offset=1, timestamp_ms=1, key=control_key(2), value=b"")]) == ()


def test_the_log_holds_what_was_appended(tmp_path: Path) -> None:
    log = MetadataLog.open(RealDisk(), str(tmp_path))
    append = AppendVoters(
        leader_epoch=Epoch(3),
        base_offset=Offset(0),
        voters=VoterSet((voter(1),)),
        sets_kraft_version=True,
    )
    log.append_voters(append, wall_ms=5)
    _, described = describe(log.read(Offset(0), log.end_offset))
    log.close()
    assert described is not None
    assert (described.voter_sets, described.end_offset) == (((Offset(1), voter_set(1)),), 2)


def long_name(length: int) -> Voter:
    return Voter(voter_id=BrokerId(4), directory_id=directory_id("4"), address="h" * length + ":1")


def test_a_voter_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    log = MetadataLog.open(RealDisk(), str(tmp_path))
    append = AppendVoters(
        leader_epoch=Epoch(3),
        base_offset=Offset(0),
        voters=voter_set(1).with_voter(long_name(32_768)),
        sets_kraft_version=True,
    )
    with pytest.raises(InvariantViolation, match="voters are appended as they are read"):
        log.append_voters(append, wall_ms=5)
    assert log.end_offset == 0
    log.close()


def test_voters_that_are_cut_off_in_a_snapshot_are_not_taken_for_none(tmp_path: Path) -> None:
    files = SnapshotFiles(RealDisk(), str(tmp_path))
    snapshot_id = SnapshotId(end_offset=Offset(9), epoch=Epoch(3))
    files.write(snapshot_id, (), last_time_ms=1, voters=voter_set(1, 2))
    assert files.voters(snapshot_id) == voter_set(1, 2)
    path = Path(files.path(snapshot_id))
    whole = path.read_bytes()
    header_size = next(header.size_in_bytes for _, header in iterate_headers(whole))
    for end in (header_size + 1, header_size + 100):
        path.write_bytes(whole[:end])
        with pytest.raises(CorruptSnapshot, match="a control batch at"):
            files.voters(snapshot_id)
