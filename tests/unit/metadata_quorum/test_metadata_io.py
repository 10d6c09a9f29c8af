"""The election file, the metadata log, and how the death of a peer is noticed."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.metadata_quorum.core.effects import AppendLeaderChange
from quorumlog.metadata_quorum.image.records import NoOp, ProducerIds, encode_record
from quorumlog.metadata_quorum.io.presence import has_died, no_process_listens
from quorumlog.metadata_quorum.log.election_store import Election, ElectionStore
from quorumlog.metadata_quorum.log.metadata_log import MetadataLog, describe
from quorumlog.storage.errors import CorruptCheckpoint
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from quorumlog.wire.codec.records import decode_batch

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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is damaged"),
        ("{}", "Keep the log beside it"),
        ("[1]", "is damaged"),
        ('{"data_version": 1, "leaderId": 1, "leaderEpoch": null, "votedId": 1}', "is damaged"),
        ('{"data_version": 1, "leaderId": 1, "leaderEpoch": -1, "votedId": 1}', "leaderEpoch -1"),
        (
            '{"data_version": 1, "leaderId": 1, "leaderEpoch": 2147483648, "votedId": 1}',
            "is damaged",
        ),
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


def leader_change(epoch: int, base_offset: int) -> AppendLeaderChange:
    voters = (BrokerId(1), BrokerId(2))
    return AppendLeaderChange(
        leader_epoch=Epoch(epoch),
        base_offset=Offset(base_offset),
        leader_id=BrokerId(1),
        voters=voters,
        granting_voters=voters,
    )


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


def test_a_leader_change_is_kafkas_control_record(tmp_path: Path) -> None:
    log = MetadataLog.open(RealDisk(), str(tmp_path))
    log.append_leader_change(leader_change(1, 0), wall_ms=0)
    (record,) = decode_batch(log.read(Offset(0), Offset(1)))
    log.close()
    assert record.key == bytes([0, 0, 0, 2])
    assert record.value == bytes.fromhex(
        "0000 00000001 03 00000001 00 00000002 00 03 00000001 00 00000002 00 00"
    )


def test_what_a_leader_sends_is_checked_before_anybody_believes_it(tmp_path: Path) -> None:
    log = MetadataLog.open(RealDisk(), str(tmp_path))
    log.append_leader_change(leader_change(1, 0), wall_ms=0)
    log.append([*map(encode_record, [NoOp()] * 3)], Epoch(1), wall_ms=0)
    log.append_leader_change(leader_change(2, 4), wall_ms=0)
    sent = log.read(Offset(0), Offset(5))
    log.close()
    whole, fetched = describe(sent)
    assert whole == sent
    assert fetched is not None
    assert (fetched.base_offset, fetched.end_offset) == (0, 5)
    assert fetched.epoch_starts == ((1, 0), (2, 4))
    cut, fetched = describe(sent[:-1])
    assert fetched is not None
    assert (fetched.end_offset, fetched.epoch_starts) == (4, ((1, 0),))
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
