"""`quorumlog dump-log`: the records that the cluster itself writes, and the small files."""

import shutil
from pathlib import Path
from typing import Final

import pytest

from quorumlog.broker.groups.core.consumer.records import (
    ConsumerGroupRecord,
    MemberValue,
    RecordKey,
    RecordKind,
)
from quorumlog.broker.groups.core.records import (
    GroupRecord,
    OffsetRecord,
    StoredGroup,
    StoredMember,
    encode,
)
from quorumlog.broker.groups.core.requests import CommittedOffset
from quorumlog.broker.transactions.core.records import TransactionMetadata, TransactionRecord
from quorumlog.broker.transactions.core.records import encode as encode_transaction
from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.cli.dump.contents import Problem
from quorumlog.client.assignor import Subscription
from quorumlog.client.core.group_protocol import encode_assignment, encode_subscription
from quorumlog.metadata_quorum.core.effects import AppendLeaderChange, AppendVoters
from quorumlog.metadata_quorum.image.records import (
    Config,
    MetadataRecord,
    NoOp,
    Topic,
    UserScramCredential,
    encode_record,
)
from quorumlog.metadata_quorum.image.scram import ScramCredential
from quorumlog.metadata_quorum.log.metadata_log import DIRECTORY, MetadataLog
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.checkpoints import uuid_to_text
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset, TopicId, TopicPartition
from quorumlog.wire.codec.records import Record, decode_batches, encode_batch, restamp
from quorumlog.wire.codec.transaction_markers import TransactionMarker, encode_marker
from tests.support.cli.dumps import add_small_files, segment_of, told, told_of
from tests.support.metadata_quorum.voters import voter_set
from tests.support.storage.batches import open_log, read_all

TOPIC_ID = TopicId(bytes(range(16)))


def test_the_records_of_the_metadata_have_names(tmp_path: Path) -> None:
    log = MetadataLog.open(RealDisk(), str(tmp_path))
    change = AppendLeaderChange(
        base_offset=Offset(0),
        leader_epoch=Epoch(1),
        leader_id=BrokerId(2),
        voters=(BrokerId(1), BrokerId(2)),
        granting_voters=(BrokerId(2),),
    )
    log.append_leader_change(change, wall_ms=5)
    records: list[MetadataRecord] = [Topic(name="orders", topic_id=TOPIC_ID), NoOp()]
    log.append([encode_record(one) for one in records], Epoch(1), wall_ms=6)
    log.flush()
    log.close()
    found, problems = told(tmp_path / DIRECTORY / f"{0:020d}.log")
    assert problems == []
    decoded = [record["decoded"] for one in found for record in one["records"]]
    assert decoded[0]["type"] == "LEADER_CHANGE"
    assert (decoded[0]["leader_id"], len(decoded[0]["voters"])) == (2, 2)
    assert decoded[1:] == [
        {"type": "Topic", "name": "orders", "topic_id": uuid_to_text(TOPIC_ID)},
        {"type": "NoOp"},
    ]
    ended, problems = told(tmp_path / DIRECTORY / "log-end-checkpoint")
    assert (ended, problems) == ([{"version": 1, "committed": 0, "closed": 3}], [])


def test_secrets_in_the_metadata_are_hidden(tmp_path: Path) -> None:
    log = MetadataLog.open(RealDisk(), str(tmp_path))
    key = b"a secret key, 32 bytes in length"
    credential = ScramCredential(iterations=8192, salt=key, stored_key=key, server_key=key)
    password = {"name": "listener.name.out.ssl.key.password", "value": "hunter2"}
    records: list[MetadataRecord] = [
        UserScramCredential(user="alice", mechanism=1, credential=credential),
        Config(resource_type=4, resource_name="1", **password),
        Config(resource_type=4, resource_name="1", name="max.connections", value="9"),
    ]
    log.append([encode_record(one) for one in records], Epoch(1), wall_ms=5)
    log.flush()
    log.close()
    found, problems = told(tmp_path / DIRECTORY / f"{0:020d}.log")
    assert problems == []
    assert "hunter2" not in str(found)
    assert "secret" not in str(found)
    scram, hidden, shown = (record["decoded"] for one in found for record in one["records"])
    keys = dict.fromkeys(("salt", "stored_key", "server_key"), "[hidden]")
    assert scram["credential"] == {"iterations": 8192, **keys}
    assert hidden["value"] == "[hidden]"
    assert shown["value"] == "9"


def test_the_voters_in_the_metadata_are_shown(tmp_path: Path) -> None:
    log = MetadataLog.open(RealDisk(), str(tmp_path))
    append = AppendVoters(
        leader_epoch=Epoch(1),
        base_offset=Offset(0),
        voters=voter_set(1, 2),
        sets_kraft_version=True,
    )
    log.append_voters(append, wall_ms=5)
    log.flush()
    log.close()
    found, problems = told(tmp_path / DIRECTORY / f"{0:020d}.log")
    assert problems == []
    level, voters = (record["decoded"] for one in found for record in one["records"])
    assert (level["type"], level["k_raft_version"]) == ("KRAFT_VERSION", 1)
    assert voters["type"] == "KRAFT_VOTERS"
    assert [one["voter_id"] for one in voters["voters"]] == [1, 2]


def group_records() -> list[tuple[bytes, bytes | None]]:
    at = TopicPartition("orders", 1)
    member = StoredMember(
        member_id="m",
        client_id="c",
        client_host="/h",
        subscription=encode_subscription(Subscription(topics=("orders",))),
        assignment=encode_assignment([at]),
    )
    stored = StoredGroup(protocol_type="consumer", generation_id=4, members=[member])
    committed = CommittedOffset(offset=9, commit_timestamp_ms=5)
    return [
        encode(OffsetRecord(group_id="g", topic_partition=at, committed=committed)),
        encode(OffsetRecord(group_id="g", topic_partition=at, committed=None)),
        encode(GroupRecord(group_id="g", stored=stored)),
        encode(
            ConsumerGroupRecord(
                subject=RecordKey(RecordKind.MEMBER, "g", "m"),
                value=MemberValue(subscribed_topic_names=["orders"]),
            )
        ),
        (b"\0\x11later", b"x"),
    ]


def test_the_records_of_groups_are_decoded(tmp_path: Path) -> None:
    records = [Record(index, 1, *pair) for index, pair in enumerate(group_records())]
    path = segment_of(tmp_path / "__consumer_offsets-3", encode_batch(records))
    (found,), problems = told(path)
    assert problems == []
    offset, tombstone, group, one, later = (record["decoded"] for record in found["records"])
    at = {"type": "OffsetCommit", "group": "g", "topic": "orders", "partition": 1}
    committed = {"offset": 9, "leader_epoch": -1, "metadata": "", "commit_timestamp_ms": 5}
    assert offset == at | {"committed": committed | {"topic_id": None}}
    assert tombstone == at | {"committed": None}
    assert (group["type"], group["stored"]["generation_id"]) == ("GroupMetadata", 4)
    (member,) = group["stored"]["members"]
    assert (member["subscription"]["topics"], member["assignment"]) == (["orders"], ["orders-1"])
    assert (one["type"], one["group"], one["name"]) == ("ConsumerGroupMemberMetadata", "g", "m")
    assert one["value"]["subscribed_topic_names"] == ["orders"]
    assert later["type"] == "group record 17"


def test_offsets_in_a_transaction_and_their_marker_are_decoded(tmp_path: Path) -> None:
    records = [Record(0, 1, *group_records()[0])]
    batch = encode_batch(records, producer_id=7, producer_epoch=2, is_transactional=True)
    marker = bytearray(encode_marker(TransactionMarker(7, 2, 5, commits=True), 1))
    restamp(marker, 0, base_offset=1, leader_epoch=-1)
    path = segment_of(tmp_path / "__consumer_offsets-3", batch + bytes(marker))
    (pending, ended), problems = told(path)
    assert problems == []
    assert (pending["is_transactional"], pending["producer_id"]) == (True, 7)
    assert pending["records"][0]["decoded"]["committed"]["offset"] == 9
    assert (ended["is_control"], ended["producer_epoch"]) == (True, 2)
    assert ended["records"][0]["decoded"] == {"type": "COMMIT", "coordinator_epoch": 5}


def test_the_records_of_transactions_are_decoded(tmp_path: Path) -> None:
    metadata = TransactionMetadata(
        producer_id=5,
        producer_epoch=2,
        transaction_timeout_ms=60_000,
        state=TransactionState.PREPARE_COMMIT,
        partitions=(TopicPartition("orders", 1), TopicPartition("orders", 2)),
        last_update_ms=9,
        start_ms=8,
        client_transaction_version=2,
    )
    pairs = [
        encode_transaction(TransactionRecord(transactional_id="x", metadata=one))
        for one in (metadata, None)
    ]
    records = [Record(index, 1, *pair) for index, pair in enumerate(pairs)]
    path = segment_of(tmp_path / "__transaction_state-3", encode_batch(records))
    (found,), problems = told(path)
    assert problems == []
    prepared, tombstone = (record["decoded"] for record in found["records"])
    assert prepared == {
        "type": "TransactionLog",
        "id": "x",
        "committed": {
            "producer_id": 5,
            "producer_epoch": 2,
            "transaction_timeout_ms": 60_000,
            "state": "PrepareCommit",
            "partitions": ["orders-1", "orders-2"],
            "last_update_ms": 9,
            "start_ms": 8,
            "previous_producer_id": -1,
            "next_producer_id": -1,
            "client_transaction_version": 2,
            "next_producer_epoch": -1,
        },
    }
    assert tombstone == {"type": "TransactionLog", "id": "x", "committed": None}


@pytest.mark.parametrize(
    "directory", ["__consumer_offsets-3", "__cluster_metadata-0", "__transaction_state-3"]
)
def test_what_cannot_be_decoded_is_shown_as_it_is(directory: str, tmp_path: Path) -> None:
    pairs = [*group_records(), (b"", b""), (b"\0\1\0\5", None)]
    for key, value in pairs:
        for size in range(len(value or b"")):
            torn = Record(0, 1, key, (value or b"")[:size])
            control = encode_batch([torn._replace(offset=1)], base_offset=1, is_control=True)
            path = tmp_path / directory / "0.log"
            found, problems = told_of(path, encode_batch([torn]) + control)
            assert all(one["is_valid"] for one in found)
            for record in (found[0]["records"][0], found[1]["records"][0]):
                assert "decoded" in record or problems


def test_small_files_are_told_by_kind(tmp_path: Path) -> None:
    add_small_files(tmp_path)
    assert told(tmp_path / "replication-offset-checkpoint")[0] == [
        {"topic": "orders", "partition": 0, "offset": 5}
    ]
    meta = {"cluster_id": "c", "node_id": 1, "directory_id": "d"}
    assert told(tmp_path / "meta.properties")[0] == [meta]
    assert told(tmp_path / "quorum-state")[0][0]["votedId"] == 1
    assert told(tmp_path / ".kafka_cleanshutdown")[0] == [{"version": 0, "brokerEpoch": 4}]
    (producer,), _ = told(tmp_path / f"{9:020d}.snapshot")
    assert (producer["producer_id"], producer["transaction_offset"]) == (0, 7)


@pytest.mark.parametrize("content", [b"", bytes(50), b"foreign\n", b"[1]", b"0\n1\n"])
def test_small_files_that_are_not_whole_say_so(tmp_path: Path, content: bytes) -> None:
    add_small_files(tmp_path)
    for path in sorted(tmp_path.iterdir()):
        path.write_bytes(content)
        found, problems = told(path)
        assert (found, len(problems)) == ([], 1)


# --- files that Apache Kafka has written ---

KAFKA: Final = Path(__file__).parents[2] / "data/apache_kafka"
"""See the README there."""


def test_all_files_of_apache_kafka_are_whole() -> None:
    found = {
        f"{path.parent.name}/{path.name}": told(path, only_index_faults=True)
        for path in sorted(KAFKA.rglob("*"))
        if path.is_file() and path.name != "README.md"
    }
    assert len(found) == 17
    assert {name: problems for name, (_, problems) in found.items() if problems} == {}


def test_a_snapshot_that_was_not_finished_says_so() -> None:
    path = KAFKA / "bootstrap.checkpoint"
    whole = path.read_bytes()
    found, problems = told(path)
    ends = [one["records"][0]["decoded"]["type"] for one in (found[0], found[-1])]
    assert (ends, problems) == (["SNAPSHOT_HEADER", "SNAPSHOT_FOOTER"], [])
    first, last = found[0]["size"], found[-1]["position"]
    footer = Problem(last, "the snapshot has no footer: it was not finished")
    assert told_of(path, whole[:last])[1] == [footer]
    assert told_of(path, whole[:first])[1] == [footer._replace(position=first)]
    assert told_of(path, whole[first:])[1][-1] == Problem(0, "the snapshot has no header")
    assert len(told_of(path, b"")[1]) == 2


def test_the_transactions_and_offsets_of_apache_kafka_are_told() -> None:
    found, _ = told(KAFKA / "orders-0" / f"{0:020d}.log")
    codecs = [one["compression"] for one in found[:5]]
    assert codecs == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert [one["record_count"] for one in found] == [20] * 5 + [1] * 4
    ends = [one["records"][0]["decoded"] for one in found if one["is_control"]]
    assert ends == [
        {"type": "COMMIT", "coordinator_epoch": 0},
        {"type": "ABORT", "coordinator_epoch": 0},
    ]
    found, _ = told(KAFKA / "__consumer_offsets-1" / f"{0:020d}.log")
    records = [record["decoded"] for one in found for record in one["records"]]
    offsets = {one["group"]: one["committed"] for one in records if one["type"] == "OffsetCommit"}
    assert {group: committed["offset"] for group, committed in offsets.items()} == {
        "g": 50,
        "g848": 5,
    }
    (at,) = told(KAFKA / "orders-0" / "partition.metadata")[0]
    assert offsets["g"]["topic_id"] == at["topic_id"]


def test_a_partition_of_apache_kafka_is_opened(tmp_path: Path) -> None:
    shutil.copytree(KAFKA / "orders-0", tmp_path / "orders-0")
    log = open_log(RealDisk(), LogSettings(), clean=True, directory=str(tmp_path / "orders-0"))
    assert (log.log_start_offset, log.log_end_offset) == (0, 104)
    batches = [header for header, _ in decode_batches(read_all(log))]
    assert [header.next_offset for header in batches][-3:] == [102, 103, 104]
    log.close(clean=True)
