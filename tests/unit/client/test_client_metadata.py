"""What a client believes of topics and leaders when answers of several brokers differ."""

from quorumlog.client.core.metadata_cache import Leader, MetadataCache, Node
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicPartition
from quorumlog.wire.codec.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

PARTITION = TopicPartition("t", 0)
ONE, OTHER = b"1" * 16, b"2" * 16


def answer(
    leader: int, epoch: int, *, topic_id: bytes = ONE, error: int = 0, brokers: int = 2
) -> MetadataResponse:
    partition = MetadataResponsePartition(leader_id=leader, leader_epoch=epoch)
    topic = MetadataResponseTopic(
        name="t", topic_id=topic_id, error_code=error, partitions=[] if error else [partition]
    )
    nodes = [
        MetadataResponseBroker(node_id=number, host="h", port=number)
        for number in range(1, brokers + 1)
    ]
    return MetadataResponse(brokers=nodes, topics=[topic])


def test_an_older_epoch_changes_nothing_and_a_newer_one_does() -> None:
    cache = MetadataCache()
    assert cache.update(answer(1, 5))
    assert not cache.update(answer(2, 4))
    assert cache.leader(PARTITION) == Leader(1, 5, ONE)
    assert not cache.update(answer(1, 5))
    assert cache.update(answer(2, 6))
    assert cache.leader(PARTITION) == Leader(2, 6, ONE)


def test_a_topic_of_the_same_name_is_another_topic() -> None:
    cache = MetadataCache()
    cache.update(answer(1, 5))
    assert cache.update(answer(2, 0, topic_id=OTHER))
    assert cache.leader(PARTITION) == Leader(2, 0, OTHER)
    assert cache.names == {OTHER: "t"}
    assert not cache.hint(PARTITION, Leader(1, 6, ONE), [])  # an answer of the deleted topic
    assert cache.leader(PARTITION) == Leader(2, 0, OTHER)


def test_a_broker_without_topic_ids_does_not_take_one_away() -> None:
    cache = MetadataCache()
    cache.update(answer(1, 5, topic_id=ZERO_TOPIC_ID))
    assert not cache.update(answer(1, 5))
    cache.update(answer(2, 4, topic_id=ZERO_TOPIC_ID))
    assert cache.leader(PARTITION) == Leader(1, 5, ONE)


def test_brokers_that_tell_no_epoch_are_believed() -> None:
    cache = MetadataCache()
    cache.update(answer(1, -1))
    assert cache.update(answer(2, -1))
    assert cache.leader(PARTITION) == Leader(2, -1, ONE)


def test_an_error_does_not_erase_what_is_known() -> None:
    cache = MetadataCache()
    assert not cache.update(answer(0, 0, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert cache.topics["t"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert cache.leader(PARTITION) is None
    cache.update(answer(1, 5))
    cache.update(answer(0, 0, error=ErrorCode.LEADER_NOT_AVAILABLE))
    assert cache.leader(PARTITION) == Leader(1, 5, ONE)
    assert cache.partition_counts(["t", "u"]) == {"t": 1}


def test_a_leader_without_an_address_is_no_leader() -> None:
    cache = MetadataCache()
    cache.update(answer(2, 5, brokers=1))
    assert cache.leader(PARTITION) is None
    cache.update(answer(-1, 6))
    assert cache.leader(PARTITION) is None


def test_a_broker_may_name_its_successor() -> None:
    """KIP-951."""
    cache = MetadataCache()
    cache.update(answer(1, 5))
    assert not cache.hint(PARTITION, Leader(2, 5, ONE), [])
    assert not cache.hint(PARTITION, Leader(-1, -1, ONE), [])
    assert not cache.hint(PARTITION, Leader(3, 6, ONE), [])  # whose address nobody knows
    assert cache.leader(PARTITION) == Leader(1, 5, ONE)
    assert cache.hint(PARTITION, Leader(3, 6, ONE), [Node(3, "h", 3)])
    assert cache.leader(PARTITION) == Leader(3, 6, ONE)
    assert not cache.hint(TopicPartition("u", 0), Leader(1, 9), [])
