"""Any history of the cluster, as a snapshot: records that rebuild the image, and differences."""

from dataclasses import replace
from typing import Any

from hypothesis import given

from quorumlog.metadata_quorum.image.model import difference
from quorumlog.metadata_quorum.image.records import decode_record, encode_record
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.metadata_quorum.image.snapshot_records import image_of as rebuilt
from quorumlog.metadata_quorum.image.snapshot_records import records_of
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset, TopicPartition
from tests.property.test_controller import World
from tests.support.metadata_quorum.controller_steps import SCHEDULES
from tests.support.metadata_quorum.controllers import image_of
from tests.support.sizes import examples


@examples(100)
@given(SCHEDULES, SCHEDULES)
def test_a_snapshot_and_the_rest_of_the_log_give_the_live_state(
    first: list[tuple[Any, ...]], then: list[tuple[Any, ...]]
) -> None:
    """And the difference of two images names exactly what a replay has changed between them."""
    world = World()
    world.begin()
    for step in first:
        world.do(step)
    written = Offset(len(world.log))
    early = image_of(world.replay())
    restored = rebuilt(records_of(early), written)
    assert restored == replace(early, epoch=restored.epoch, controller_id=restored.controller_id)
    assert [*restored.topics] == [*early.topics]  # placement depends on the order
    for step in then:
        if step[0] not in {"fail_over", "died_half_way"}:  # these take back what was written
            world.do(step)
    replay = ClusterReplay(restored)
    for offset, record in enumerate(world.log[written:], start=written):
        replay.apply(Offset(offset), decode_record(encode_record(record)))
    delta, image = replay.publish(
        end_offset=replay.end_offset, epoch=Epoch(1), controller_id=BrokerId(1)
    )
    assert image == image_of(world.replay())
    found = difference(restored, image)
    assert found.deleted_topics == delta.deleted_topics
    assert found.brokers <= delta.brokers
    assert found.partitions <= delta.partitions
    assert found.topic_configs <= delta.topic_configs
    for name in {*image.topics} - {*found.deleted_topics} - found.topic_configs:
        before = restored.topics.get(name)
        assert image.topics[name].configs == (before.configs if before else {})
    for name, topic in image.topics.items():
        for index, partition in enumerate(topic.partitions):
            key = TopicPartition(name, index)
            is_new = name in found.deleted_topics or restored.partition(key) != partition
            assert (key in found.partitions) == is_new
    for broker_id in {*image.brokers, *restored.brokers} - found.brokers:
        assert image.brokers.get(broker_id) == restored.brokers.get(broker_id)
