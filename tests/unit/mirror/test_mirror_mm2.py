"""MirrorMaker 2's records: the bytes that Java's Struct wrote for these schemas (Kafka 4.3.1)."""

from quorumlog.client.records import OffsetAndMetadata
from quorumlog.mirror.core.mm2_records import (
    Record,
    checkpoint,
    checkpoints_topic,
    heartbeat,
    offset_sync,
    offset_syncs_topic,
)
from quorumlog.mirror.core.selection import TopicNames
from quorumlog.wire.codec.identifiers import TopicPartition


def shown(record: Record) -> str:
    return " ".join(part.hex() for part in record)


def test_an_offset_sync_is_javas() -> None:
    assert shown(offset_sync(TopicPartition("orders", 3), 5_000_000_000, 7)) == (
        "00066f726465727300000003 000000012a05f2000000000000000007"
    )


def test_a_checkpoint_is_javas() -> None:
    place = TopicPartition("a.orders", 3)
    assert shown(checkpoint("grün", place, 12, OffsetAndMetadata(-1, metadata="m"))) == (
        "00056772c3bc6e0008612e6f726465727300000003 0000000000000000000cffffffffffffffff00016d"
    )


def test_a_heartbeat_is_javas() -> None:
    assert shown(heartbeat("a", "b", 1_796_110_984_123)) == ("000161000162 0000000001a2308ea3bb")


def test_topics_have_the_names_of_the_default_replication_policy() -> None:
    assert offset_syncs_topic("b") == "mm2-offset-syncs.b.internal"
    assert checkpoints_topic("a") == "a.checkpoints.internal"


def test_heartbeats_are_copied_whatever_the_topics_and_tagged_under_the_same_names() -> None:
    names = TopicNames(["orders"], [], prefix="", alias="a", target_alias="b", beats=True)
    assert "heartbeats" in names
    assert names.copy_of("heartbeats") == "a.heartbeats"
    assert names.copy_of("orders") == "orders"
    names = TopicNames(["orders"], [], prefix="a.", alias="a", target_alias="b", beats=True)
    assert names.copy_of("c.heartbeats") == "a.c.heartbeats"
    assert "b.heartbeats" not in names  # of the target itself
