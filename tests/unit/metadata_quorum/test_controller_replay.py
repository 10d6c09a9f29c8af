"""Records that do not fit the state before them end the node (KAFKA-14275); epochs count."""

import pytest

from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.image.records import (
    MetadataRecord,
    NoOp,
    Partition,
    PartitionChange,
    ProducerIds,
    RegisterBroker,
    Topic,
)
from quorumlog.wire.codec.identifiers import BrokerId, Offset, PartitionIndex, TopicId
from tests.support.metadata_quorum.controllers import Bench, ids, topic

FIRST, SECOND = PartitionIndex(0), PartitionIndex(1)


@pytest.fixture
def bench() -> Bench:
    bench = Bench().start(1, 2, 3)
    bench.create(topic("t", 1, 2))
    return bench


def topic_id(bench: Bench) -> TopicId:
    found = bench.topic_id("t")
    return found


def apply(bench: Bench, record: MetadataRecord) -> None:
    bench.controller.apply(bench.controller.cluster.end_offset, record)


@pytest.mark.parametrize(
    ("index", "isr", "leader", "message"),
    [
        (PartitionIndex(2), ids(1), BrokerId(1), "partitions come in order"),
        (FIRST, ids(1), BrokerId(1), "partitions come in order"),
        (SECOND, ids(1, 3), BrokerId(1), "isr and elr are apart, within replicas"),
        (SECOND, ids(1), BrokerId(2), "the leader is in isr"),
    ],
)
def test_a_new_partition_must_fit(
    bench: Bench, index: PartitionIndex, isr: tuple[BrokerId, ...], leader: BrokerId, message: str
) -> None:
    record = Partition(
        topic_id=topic_id(bench), partition_id=index, replicas=ids(1, 2), isr=isr, leader=leader
    )
    with pytest.raises(InvariantViolation, match=message):
        apply(bench, record)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"elr": ids(2)}, "isr and elr are apart"),
        ({"isr": ids(1, 3)}, "isr and elr are apart"),
        ({"isr": ids(2)}, "the leader is in isr"),
        ({"leader": BrokerId(3)}, "the leader is in isr"),
        ({"partition_id": SECOND}, "a changed partition exists"),
        ({"topic_id": TopicId(bytes(16))}, "a record names a known topic"),
    ],
)
def test_a_change_of_a_partition_must_fit(
    bench: Bench, changes: dict[str, object], message: str
) -> None:
    fields = {"topic_id": topic_id(bench), "partition_id": FIRST, **changes}
    with pytest.raises(InvariantViolation, match=message):
        apply(bench, PartitionChange(**fields))  # type: ignore[arg-type]  # a test's own fields


def test_records_come_once_and_topics_and_producer_ids_are_not_given_twice(bench: Bench) -> None:
    with pytest.raises(InvariantViolation, match="in the order of the log"):
        bench.controller.apply(Offset(0), NoOp())
    with pytest.raises(InvariantViolation, match="producer ids grow"):
        apply(bench, ProducerIds(broker_id=BrokerId(1), broker_epoch=0, next_producer_id=0))
    with pytest.raises(InvariantViolation, match="a new name and a new id"):
        apply(bench, Topic(name="t", topic_id=TopicId(bytes(16))))


def test_a_leader_that_is_set_starts_an_epoch_even_if_it_led_before(bench: Bench) -> None:
    before = bench.partition()
    change = PartitionChange(topic_id=topic_id(bench), partition_id=FIRST, leader=before.leader_id)
    apply(bench, change)
    after = bench.partition()
    assert (after.leader_epoch, after.partition_epoch) == (
        before.leader_epoch + 1,
        before.partition_epoch + 1,
    )


@pytest.mark.parametrize(("written", "in_force"), [(None, 0), (7, 7)])
def test_a_registration_without_an_epoch_has_that_of_its_offset(
    written: int | None, in_force: int
) -> None:
    """Logs from before the field was are read as they were then."""
    cluster = Bench().controller.cluster
    record = RegisterBroker(
        broker_id=BrokerId(1),
        incarnation_id="x",
        host="h",
        port=1,
        control_address="h:2",
        broker_epoch=written,
    )
    cluster.apply(Offset(0), record)
    assert cluster.brokers[BrokerId(1)].broker_epoch == in_force
