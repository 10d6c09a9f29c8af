"""Snapshots of the metadata on a disk: when they are written, and what a node starts from."""

import logging
from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from typing import Final

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.metadata_quorum.core.effects import AnswerFetchSnapshot
from quorumlog.metadata_quorum.core.messages import FetchSnapshotResponse, SnapshotId
from quorumlog.metadata_quorum.driver.committed_image import CommittedImage
from quorumlog.metadata_quorum.image import records as record_kinds
from quorumlog.metadata_quorum.image.access import AccessImage
from quorumlog.metadata_quorum.image.details import Endpoint
from quorumlog.metadata_quorum.image.features import METADATA_FEATURE
from quorumlog.metadata_quorum.image.model import (
    BrokerImage,
    ClusterDelta,
    ClusterImage,
    PartitionImage,
    TopicImage,
)
from quorumlog.metadata_quorum.image.partitions_by_broker import PartitionsByBroker
from quorumlog.metadata_quorum.image.records import (
    RECORD_TYPES,
    AclBinding,
    MetadataRecord,
    NewerRecord,
    ProducerIds,
    QuotaEntity,
    RegisterBroker,
    RemoveTopic,
    Topic,
    encode_record,
)
from quorumlog.metadata_quorum.image.replay import ConfigReplay
from quorumlog.metadata_quorum.image.scram import credential_of
from quorumlog.metadata_quorum.image.snapshot_records import image_of, records_of
from quorumlog.metadata_quorum.log.metadata_log import DIRECTORY, MetadataLog
from quorumlog.metadata_quorum.log.restored_image import restored_image
from quorumlog.metadata_quorum.log.snapshot_files import (
    CorruptSnapshot,
    SnapshotFiles,
    snapshot_answer,
)
from quorumlog.storage.errors import DamagedLog
from quorumlog.storage.io.disk import read_file, write_file_durably
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, Epoch, Offset, TopicId
from quorumlog.wire.codec.records import Record, encode_batch
from tests.support.metadata_quorum.brokers import broker_image, broker_record

HERE: Final = f"/data/{DIRECTORY}"
EPOCH: Final = Epoch(3)


RECORDS: Final[Sequence[MetadataRecord]] = (
    broker_record(1, 0),
    Topic(name="a", topic_id=TopicId(b"a" * 16)),
    Topic(name="b", topic_id=TopicId(b"b" * 16)),
    broker_record(2, 3),
    RemoveTopic(topic_id=TopicId(b"a" * 16)),
    ProducerIds(broker_id=BrokerId(1), broker_epoch=0, next_producer_id=1000),
)


class Published(list[tuple[ClusterDelta, ClusterImage]]):
    """An ImagePublisher that keeps what it was given."""

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        self.append((delta, image))


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def log(disk: SimDisk) -> MetadataLog:
    log = MetadataLog.open(disk, "/data")
    for record in RECORDS:
        log.append([*map(encode_record, [record])], EPOCH, wall_ms=77)
    log.flush()
    return log


def image_at(log: MetadataLog, end_offset: int) -> ClusterImage:
    committed = CommittedImage(log)
    committed.advance(Offset(end_offset))
    return committed.image


def write(log: MetadataLog, end_offset: int) -> str:
    snapshot_id = SnapshotId(Offset(end_offset), EPOCH)
    image = image_at(log, end_offset)
    assert log.snapshots.write(snapshot_id, records_of(image), last_time_ms=77)
    return log.snapshots.path(snapshot_id)


def test_a_snapshot_is_named_as_kafkas_and_gives_its_image(log: MetadataLog) -> None:
    image = image_at(log, 4)
    assert write(log, 4) == f"{HERE}/00000000000000000004-0000000003.checkpoint"
    restored = restored_image(log)
    assert restored is not None
    assert (restored.end_offset, restored.brokers) == (4, image.brokers)
    assert (restored.topics, restored.topic_names) == (image.topics, image.topic_names)
    assert log.time_before(Offset(4)) == 77


def test_a_start_publishes_snapshot_and_rest_as_one_change_once_all_is_committed(
    log: MetadataLog,
) -> None:
    whole = image_at(log, 6)
    write(log, 4)
    replayed = log.replayed_bytes
    committed, published = CommittedImage(log), Published()
    committed.add_publisher(published)
    committed.lead_by(BrokerId(2), Epoch(5))
    committed.advance(Offset(3))  # a new leader may know less than the snapshot holds
    assert [image.topics for _, image in published] == [{}]
    committed.advance(Offset(6))
    assert committed.image.topics == whole.topics
    assert (committed.image.epoch, committed.image.controller_id) == (5, 2)
    assert committed.image.next_producer_id == 1000
    [delta, image] = published[-1]
    assert len(published) == 2
    assert image is committed.image
    assert delta.brokers == {1, 2}
    assert delta.deleted_topics == {}  # it was never published
    assert log.replayed_bytes - replayed < replayed / 2  # only what is behind the snapshot


def damaged(content: bytes) -> list[bytes]:
    """Every way to end early or to lose a sector, and some bytes changed."""
    cut = [content[:size] for size in range(0, len(content), 7)]
    zeros = [
        content[:at] + bytes(min(16, len(content) - at)) + content[at + 16 :]
        for at in range(0, len(content), 16)
    ]
    flipped = [
        content[:at] + bytes([content[at] ^ 0x40]) + content[at + 1 :]
        for at in range(17, len(content), 5)
    ]
    return [*cut, *zeros, *flipped, content + b"\0", content + content]


def test_a_damaged_snapshot_is_left_aside_and_an_older_one_is_taken(
    disk: SimDisk, log: MetadataLog, caplog: pytest.LogCaptureFixture
) -> None:
    write(log, 2)
    path = write(log, 5)
    whole = read_file(disk, path)
    for content in damaged(whole):
        if content == whole:
            continue
        write_file_durably(disk, path, content)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            restored = restored_image(log)
        assert restored is not None
        assert restored.end_offset == 2
        assert path in caplog.text
        assert read_file(disk, path) == content
    disk.unlink(f"{HERE}/00000000000000000002-0000000003.checkpoint")
    write_file_durably(disk, path, whole[:50])
    assert restored_image(log) is None
    assert image_at(log, 6).next_producer_id == 1000  # from the log


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([b"\0\0\0\3", b"\0\0\0\4"], "a control batch of 2 records"),
        ([b"abc"], "a key of 3 bytes"),
        ([b""], "a key of 0 bytes"),
    ],
)
def test_a_control_batch_of_another_shape_is_a_damaged_snapshot(
    log: MetadataLog, caplog: pytest.LogCaptureFixture, keys: list[bytes], message: str
) -> None:
    snapshot_id = SnapshotId(Offset(4), EPOCH)
    control = [Record(index, 0, key, b"") for index, key in enumerate(keys)]
    content = encode_batch(control, leader_epoch=EPOCH, is_control=True)
    log.snapshots.append_fetched(snapshot_id, 0, content)
    with pytest.raises(CorruptSnapshot, match=message):
        list(log.snapshots.read(snapshot_id, is_fetched_draft=True))
    log.snapshots.install_fetched(snapshot_id)
    assert restored_image(log) is None
    assert message in caplog.text


def test_a_log_without_its_start_needs_a_snapshot(
    disk: SimDisk, log: MetadataLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(log, 5)
    monkeypatch.setattr(MetadataLog, "start_offset", Offset(4))
    restored = restored_image(log)
    assert restored is not None
    assert restored.end_offset == 5
    write_file_durably(disk, path, b"")
    with pytest.raises(DamagedLog, match="starts at 4, and no snapshot") as refused:
        restored_image(log)
    assert path in str(refused.value)


@pytest.mark.parametrize(
    ("snapshot_id", "records", "message"),
    [
        (SnapshotId(Offset(9), EPOCH), RECORDS[:1], "but the log holds"),
        (SnapshotId(Offset(4), Epoch(2)), RECORDS[:1], "of another log"),
        (SnapshotId(Offset(5), EPOCH), [RECORDS[1]] * 2, "its records do not fit"),
    ],
)
def test_a_snapshot_that_does_not_fit_the_log_or_in_itself_is_not_used(
    log: MetadataLog,
    caplog: pytest.LogCaptureFixture,
    snapshot_id: SnapshotId,
    records: Sequence[MetadataRecord],
    message: str,
) -> None:
    log.snapshots.write(snapshot_id, records, last_time_ms=0)
    assert restored_image(log) is None
    assert message in caplog.text


def test_a_snapshot_under_another_name_is_not_used(disk: SimDisk, log: MetadataLog) -> None:
    path = write(log, 4)
    disk.rename(path, f"{HERE}/{SnapshotId(Offset(5), EPOCH).file_name}")
    assert restored_image(log) is None


def test_the_two_newest_are_kept_and_drafts_are_removed(disk: SimDisk, log: MetadataLog) -> None:
    for end_offset in range(1, 6):
        write(log, end_offset)
    assert [one.end_offset for one in log.snapshots.ids()] == [5, 4]
    disk.open(f"{HERE}/{SnapshotId(Offset(6), EPOCH).file_name}.part", create=True).close()
    SnapshotFiles(disk, HERE)
    assert not [name for name in disk.listdir(HERE) if name.endswith(".part")]


def test_a_stop_gives_the_snapshot_up(disk: SimDisk, log: MetadataLog) -> None:
    snapshot_id = SnapshotId(Offset(4), EPOCH)
    assert not log.snapshots.write(snapshot_id, RECORDS, last_time_ms=0, goes_on=lambda: False)
    assert not [name for name in disk.listdir(HERE) if "checkpoint." in name]
    assert log.snapshots.ids() == []


def full_access() -> AccessImage:
    acl = AclBinding(
        resource_type=2,
        resource_name="t",
        pattern_type=3,
        principal="User:ann",
        host="*",
        operation=3,
        permission_type=3,
    )
    quotas: dict[QuotaEntity, dict[str, float]] = {
        (("client-id", None), ("user", "ann")): {"producer_byte_rate": 5.0}
    }
    credential = credential_of(1, iterations=4096, salt=b"s", salted_password=b"p")
    return AccessImage(
        acls=frozenset({acl, replace(acl, resource_name="u")}),
        quotas=quotas,
        credentials={("ann", 1): credential},
    )


def full_broker() -> BrokerImage:
    return broker_image(
        4,
        12,
        rack="r",
        directory_id="d",
        boot_id="b",
        endpoints=(Endpoint(name="EXTERNAL", host="e", port=9),),
        min_insync_replicas=2,
        fenced=False,
        in_controlled_shutdown=True,
        features={METADATA_FEATURE: (1, 2)},
        log_dirs=("d", "e"),
    )


def full_partitions() -> tuple[PartitionImage, PartitionImage]:
    """With a leader, and without."""
    ids = [BrokerId(number) for number in range(1, 5)]
    partition = PartitionImage(
        leader_id=ids[0],
        leader_epoch=Epoch(5),
        partition_epoch=Epoch(7),
        replicas=tuple(ids),
        isr=(ids[0],),
        elr=(ids[1],),
        adding_replicas=(ids[2],),
        removing_replicas=(ids[3],),
        is_recovering=True,
        directories=((ids[3], "e"),),
    )
    return partition, replace(
        partition,
        leader_id=NO_LEADER,
        isr=(),
        elr=(),
        last_known_leader=ids[1],
        last_known_elr=(ids[2], ids[0]),
        is_recovering=False,
    )


def test_no_field_of_an_image_is_left_out() -> None:
    """Each field has a value of its own here: one that is new must be set, and then kept."""
    broker, (partition, leaderless) = full_broker(), full_partitions()
    topic_id = TopicId(b"t" * 16)
    topic = TopicImage(
        name="t",
        topic_id=topic_id,
        partitions=(partition, leaderless),
        configs={"retention.ms": "5"},
    )
    image = ClusterImage(
        end_offset=Offset(99),
        epoch=Epoch(8),
        controller_id=BrokerId(1),
        brokers={broker.broker_id: broker},
        topics={"t": topic},
        topic_names={topic_id: "t"},
        next_producer_id=3000,
        broker_configs={"": {"log.retention.ms": "7"}, "4": {"log.retention.ms": "8"}},
        group_configs={"g": {"consumer.session.timeout.ms": "9"}},
        client_metrics={"all": {"metrics": "*"}},
        access=full_access(),
        features={METADATA_FEATURE: 2},
        automatic_levels=frozenset({METADATA_FEATURE}),
        by_broker=PartitionsByBroker(),
    )
    for shown in (broker, partition, topic, image, image.access):
        for field in fields(shown):
            default = field.default if field.default_factory is MISSING else field.default_factory()
            values = [getattr(shown, field.name)]
            if shown is partition:
                values.append(getattr(leaderless, field.name))
            assert any(value != default for value in values), f"{field.name} has no value here"
    rebuilt = image_of(records_of(image), Offset(99))
    assert replace(rebuilt, epoch=Epoch(8), controller_id=BrokerId(1)) == image


def test_a_snapshot_of_a_newer_release_is_no_damaged_one(
    log: MetadataLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node must stop: an older snapshot, or none, would be another cluster."""
    write(log, 2)
    write(log, 5)
    kinds = {number: kind for number, kind in RECORD_TYPES.items() if kind is not RegisterBroker}
    monkeypatch.setattr(record_kinds, "RECORD_TYPES", kinds)
    with pytest.raises(NewerRecord, match="records of type 0"):
        restored_image(log)
    monkeypatch.setattr(record_kinds, "RECORD_TYPES", {})
    with pytest.raises(NewerRecord):
        list(log.replay(Offset(0), log.end_offset))


@pytest.mark.parametrize(
    ("found", "position", "error_code", "content"),
    [
        ((5, b"de"), 3, ErrorCode.NONE, b"de"),
        ((5, b""), 5, ErrorCode.NONE, b""),
        ((5, b""), 6, ErrorCode.POSITION_OUT_OF_RANGE, None),
        (None, 0, ErrorCode.SNAPSHOT_NOT_FOUND, None),
    ],
)
def test_the_answer_to_a_follower_that_reads_a_snapshot(
    found: tuple[int, bytes] | None, position: int, error_code: ErrorCode, content: bytes | None
) -> None:
    response = FetchSnapshotResponse(
        error_code=ErrorCode.NONE, leader_id=BrokerId(1), leader_epoch=Epoch(2)
    )
    snapshot_id = SnapshotId(end_offset=Offset(9), epoch=Epoch(2))
    effect = AnswerFetchSnapshot(
        request_id=1, response=response, snapshot_id=snapshot_id, position=position
    )
    answer, read = snapshot_answer(effect, found)
    assert (answer.error_code, read) == (error_code, content)
    is_read = error_code is ErrorCode.NONE
    assert (answer.size, answer.position) == ((5, position) if is_read else (0, 0))


def test_a_change_of_settings_is_shown_once() -> None:
    replay = ConfigReplay({})
    for name in ("a", "b"):
        replay.apply(record_kinds.Config(resource_type=4, resource_name=name, name="x", value="1"))
        assert replay.freeze()[0] == {name}
    assert replay.freeze() == (frozenset(), {"a": {"x": "1"}, "b": {"x": "1"}})
