"""The voters in force at each offset of the log, their records and their addresses (KIP-853)."""

from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.core.effects import AppendVoters
from quorumlog.metadata_quorum.core.events import FetchedRecords
from quorumlog.metadata_quorum.core.messages import FetchResponse, SnapshotId
from quorumlog.metadata_quorum.core.voter_sets import Voter, VoterSet, VoterSets
from quorumlog.metadata_quorum.io import address_book
from quorumlog.metadata_quorum.io.address_book import AddressBook
from quorumlog.metadata_quorum.log.metadata_log import MetadataLog, describe
from quorumlog.metadata_quorum.log.snapshot_files import CorruptSnapshot, SnapshotFiles
from quorumlog.metadata_quorum.log.voter_records import (
    control_key,
    control_type,
    decode_voters,
    encode_voters,
)
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from quorumlog.wire.codec.messages.k_raft_version_record import KRaftVersionRecord
from quorumlog.wire.codec.messages.voters_record import VotersRecord
from quorumlog.wire.codec.records import Record, encode_batch, iterate_headers
from quorumlog.wire.codec.schemas import decode_message, encode_message
from tests.support.metadata_quorum.quorums import begin, fetch_response, vote_response
from tests.support.metadata_quorum.voters import directory_id, voter, voter_set


def test_a_set_is_sorted_and_its_majority_is_more_than_half() -> None:
    voters = VoterSet((voter(3), voter(1), voter(2)))
    assert (voters.ids, str(voters)) == ((1, 2, 3), "1,2,3")
    majorities = [voter_set(*range(1, count + 1)).majority for count in (1, 2, 3, 4, 5)]
    assert majorities == [1, 2, 2, 3, 3]
    with pytest.raises(ValueError, match="a voter is there twice"):
        VoterSet((voter(1), voter(1, "another")))


def test_a_voter_is_an_id_and_a_directory() -> None:
    voters = voter_set(1, 2)
    assert voters.has_key(BrokerId(1), directory_id("1"))
    assert not voters.has_key(BrokerId(1), directory_id("wiped"))
    assert not voters.has_key(BrokerId(1), None)
    assert not voters.has_key(BrokerId(3), directory_id("3"))
    assert voters.get(BrokerId(3)) is None


def test_voters_are_added_replaced_and_removed() -> None:
    voters = voter_set(1, 2)
    assert voters.with_voter(voter(3)) == voter_set(1, 2, 3)
    moved = replace(voter(2), address="there:1")
    assert voters.with_voter(moved).get(BrokerId(2)) == moved
    assert voters.without(BrokerId(1)) == voter_set(2)
    assert VoterSet.of_ids([BrokerId(2), BrokerId(1)]).ids == (1, 2)


@pytest.mark.parametrize(
    ("address", "is_one"),
    [
        ("h:1", True),
        ("[::1]:65535", True),
        ("h" * 255 + ":1", True),
        ("h" * 256 + ":1", False),
        ("h" * 32_767 + ":1", False),
        ("h:0", False),
        ("h:65536", False),
        (":1", False),
        ("h", False),
        ("a b:1", False),
        ("x/y?z:80", False),
        ("x\0:2", False),
        ("h\u00e4:1", False),
    ],
)
def test_a_voter_has_an_address_that_others_can_read_and_use(address: str, is_one: bool) -> None:
    assert replace(voter(4), address=address).is_well_formed is is_one


def history() -> VoterSets:
    at = {2: voter_set(1), 5: voter_set(1, 2), 9: voter_set(1, 2, 3)}
    return VoterSets(tuple((Offset(offset), voters) for offset, voters in at.items()))


def test_the_last_set_is_in_force_and_each_offset_has_its_own() -> None:
    sets = history()
    assert (sets.last, sets.last_offset) == (voter_set(1, 2, 3), 9)
    in_force = {2: None, 3: "1", 5: "1", 6: "1,2", 9: "1,2", 10: "1,2,3"}
    for end, voters in in_force.items():
        found = sets.at(Offset(end))
        assert (found and str(found)) == voters
    with pytest.raises(InvariantViolation, match="in the order of the log"):
        sets.append([(Offset(9), voter_set(1))])


def test_a_set_is_committed_below_the_high_watermark() -> None:
    sets = history()
    counts = {2: 0, 3: 1, 5: 1, 6: 2, 9: 2, 10: 3}
    assert {end: len(sets.committed(Offset(end))) for end in counts} == counts
    assert sets.committed(Offset(6)) == [voter_set(1), voter_set(1, 2)]


def test_a_truncation_brings_back_the_set_before() -> None:
    sets = history()
    sets.truncate(Offset(9))
    assert sets.last == voter_set(1, 2)
    sets.truncate(Offset(2))
    assert sets.last is None
    assert (sets.last_offset, sets.history) == (-1, ())


def test_a_log_that_starts_later_keeps_the_set_in_force_at_its_start() -> None:
    sets = history()
    sets.move_start(Offset(7))
    assert [offset for offset, _ in sets.history] == [5, 9]
    assert sets.at(Offset(7)) == voter_set(1, 2)
    sets.move_start(Offset(10))
    assert [offset for offset, _ in sets.history] == [9]


def test_a_snapshot_replaces_the_history() -> None:
    sets = history()
    sets.install(Offset(20), voter_set(4))
    assert (sets.last, sets.history) == (voter_set(4), ((19, voter_set(4)),))
    assert sets.at(Offset(20)) == voter_set(4)
    sets.install(Offset(30), None)
    assert sets.last is None


# --- Kafka's control records, checked by each node that reads them ---


def batch(*pairs: tuple[bytes | None, bytes]) -> bytes:
    records = [
        Record(offset=7 + at, timestamp_ms=1, key=key, value=value)
        for at, (key, value) in enumerate(pairs)
    ]
    return encode_batch(records, base_offset=7, leader_epoch=3, is_control=True)


def described(batch: bytes) -> FetchedRecords:
    _, found = describe(batch)
    assert found is not None
    return found


def appending(voters: VoterSet) -> AppendVoters:
    return AppendVoters(
        leader_epoch=Epoch(3), base_offset=Offset(0), voters=voters, sets_kraft_version=True
    )


def test_the_records_are_kafkas() -> None:
    (level_key, level), (voters_key, voters) = encode_voters(
        voter_set(1, 2), sets_kraft_version=True
    )
    assert (level_key, voters_key) == (b"\0\0\0\5", b"\0\0\0\6")
    assert decode_message(KRaftVersionRecord, 0, level).k_raft_version == 1
    first, second = decode_message(VotersRecord, 0, voters).voters
    assert (first.voter_id, second.voter_id) == (1, 2)
    assert first.voter_directory_id == b"1".rjust(16, b"-")
    [endpoint] = second.endpoints
    assert (endpoint.name, endpoint.host, endpoint.port) == ("CONTROLLER", "host2", 2)
    assert first.k_raft_version_feature.max_supported_version == 1


def test_a_fetched_batch_tells_its_voters() -> None:
    found = described(batch(*encode_voters(voter_set(1, 2, 3), sets_kraft_version=True)))
    assert found.voter_sets == ((Offset(8), voter_set(1, 2, 3)),)
    assert (found.base_offset, found.end_offset) == (7, 9)


def test_voters_without_an_address_or_at_an_ipv6_address_are_read_as_written() -> None:
    voters = VoterSet((replace(voter(1), address=""), replace(voter(2), address="[::1]:9093")))
    found = described(batch(*encode_voters(voters, sets_kraft_version=False)))
    assert found.voter_sets == ((Offset(7), voters),)


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


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0"])
def test_a_control_record_without_its_whole_key_is_corrupt(key: bytes | None) -> None:
    with pytest.raises(CorruptBatch, match="a control record with a key of"):
        control_type(Record(offset=1, timestamp_ms=1, key=key, value=b""))


def test_the_log_holds_what_was_appended() -> None:
    log = MetadataLog.open(SimDisk(), "/data")
    log.append_voters(appending(voter_set(1)), wall_ms=5)
    found = described(log.read(Offset(0), log.end_offset))
    assert (found.voter_sets, found.end_offset) == (((Offset(1), voter_set(1)),), 2)


def test_a_voter_that_could_not_be_read_again_is_not_written() -> None:
    log = MetadataLog.open(SimDisk(), "/data")
    long_name = replace(voter(4), address="h" * 32_768 + ":1")
    with pytest.raises(InvariantViolation, match="voters are appended as they are read"):
        log.append_voters(appending(voter_set(1).with_voter(long_name)), wall_ms=5)
    assert log.end_offset == 0


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


# --- where a node reaches the others while the voters change and move ---


ONE, TWO, THREE = map(BrokerId, (1, 2, 3))
CONFIGURED = {ONE: "configured1:1", TWO: "configured2:2"}


def named(leader_id: int, address: str) -> FetchResponse:
    return fetch_response(
        1, leader=leader_id, leader_address=address, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER
    )


def test_at_kraft_version_0_the_configured_voters_are_right() -> None:
    book = AddressBook(CONFIGURED)
    book.hear_response(named(1, "heard:1"))
    book.hear_request(1, "heard:1", begin(1, 1, leader_address="heard:1"))
    assert (book.find(ONE), book.kraft_version) == ("configured1:1", 0)
    assert book.voter_addresses() == CONFIGURED


def test_the_voter_set_in_force_comes_before_what_others_say_and_what_is_configured() -> None:
    book = AddressBook(CONFIGURED)
    book.voters_changed(voter_set(1, 3))
    book.hear_response(named(3, "heard:3"))
    found = [book.find(node) for node in (ONE, TWO, THREE)]
    assert found == ["host1:1", "configured2:2", "host3:3"]
    assert book.voter_addresses() == {ONE: "host1:1", THREE: "host3:3"}
    assert book.kraft_version == 1
    book.voters_changed(None)
    assert (book.find(ONE), book.kraft_version) == ("configured1:1", 0)


def test_a_node_whose_directory_is_not_the_one_of_its_voter_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for number, directory in ((2, "2"), (2, "emptied"), (4, "4")):
        own = Voter(voter_id=BrokerId(number), directory_id=directory_id(directory))
        AddressBook(CONFIGURED, own=own).voters_changed(voter_set(1, 2, 3))
    [record] = [one for one in caplog.records if one.levelname == "WARNING"]
    assert f"the voters name node 2 with directory {directory_id('2')}" in record.getMessage()
    assert f"its directory is {directory_id('emptied')}" in record.getMessage()


def test_a_leader_that_moved_says_so_until_the_voters_say_it_too() -> None:
    book = AddressBook({})
    book.voters_changed(voter_set(1, 2))
    book.hear_request(2, "", begin(2, 1, leader_address="moved:2"))
    assert book.find(TWO) == "moved:2"
    moved_again = replace(voter(2), address="again:2")
    book.voters_changed(voter_set(1, 2).with_voter(moved_again))
    assert book.find(TWO) == "again:2"


def test_a_node_without_voters_hears_where_the_leader_is() -> None:
    book = AddressBook({}, bootstrap=("b0:1", "[::1]:2"))
    found = [book.find(BrokerId(node)) for node in (-2, -3, -4, -1, 3)]
    assert found == ["b0:1", "[::1]:2", None, None, None]
    book.hear_response(named(3, "host3:3"))
    assert book.find(THREE) == "host3:3"
    book.hear_response(vote_response(1, granted=False, leader=3))  # without the address
    assert book.find(THREE) == "host3:3"
    book.hear_request(2, "two:2", named(-1, ""))  # a node names its own with its requests
    assert book.find(TWO) == "two:2"


def test_an_override_is_right_here_and_told_to_no_other_node() -> None:
    book = AddressBook(CONFIGURED, overrides={ONE: "proxy:1"})
    book.voters_changed(voter_set(1))
    assert (book.find(ONE), book.known_to_all(ONE)) == ("proxy:1", "host1:1")


@pytest.mark.parametrize(
    "text",
    ["", "no-port", ":1", "host:0", "host:65536", "host:x", "a/b:1", "a@b:1", "a b:1", "é:1"],
)
def test_what_is_no_address_is_not_believed(text: str) -> None:
    book = AddressBook({})
    book.hear_response(named(1, text))
    book.hear_request(1, text, begin(1, 1, leader_address=text))
    assert book.find(ONE) is None


def test_no_more_nodes_are_remembered_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(address_book, "HEARD_MAX", 2)
    book = AddressBook({})
    for node in (1, 2, 1, 3):
        book.hear_request(node, f"host:{node}", None)
    assert [book.find(node) for node in (ONE, TWO, THREE)] == ["host:1", None, "host:3"]
