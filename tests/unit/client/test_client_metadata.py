"""What a client believes of topics and leaders, which partition it chooses, and what it loads."""

import subprocess
import sys

import pytest
from kafka.partitioner.default import murmur2 as kafka_pythons_murmur2

import quorumlog.client
import quorumlog.client.admin
from quorumlog.backoff import Backoff
from quorumlog.client.core.metadata_cache import Leader, MetadataCache, Node
from quorumlog.client.core.partitioner import StickyPartition, murmur2, partition_for_key
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


def test_epochs_decide_which_leader_is_believed() -> None:
    cache = MetadataCache()
    assert cache.update(answer(1, 5))
    assert not cache.update(answer(2, 4))
    assert cache.leader(PARTITION) == Leader(1, 5, ONE)
    assert not cache.update(answer(1, 5))
    assert cache.update(answer(2, 6))
    assert cache.leader(PARTITION) == Leader(2, 6, ONE)
    cache = MetadataCache()
    cache.update(answer(1, -1))
    assert cache.update(answer(2, -1))
    assert cache.leader(PARTITION) == Leader(2, -1, ONE)


def test_a_topic_of_the_same_name_is_another_topic_by_its_id() -> None:
    cache = MetadataCache()
    cache.update(answer(1, 5))
    assert cache.update(answer(2, 0, topic_id=OTHER))
    assert cache.leader(PARTITION) == Leader(2, 0, OTHER)
    assert cache.names == {OTHER: "t"}
    assert not cache.hint(PARTITION, Leader(1, 6, ONE), [])  # an answer of the deleted topic
    assert cache.leader(PARTITION) == Leader(2, 0, OTHER)
    cache = MetadataCache()
    cache.update(answer(1, 5, topic_id=ZERO_TOPIC_ID))
    assert not cache.update(answer(1, 5))
    cache.update(answer(2, 4, topic_id=ZERO_TOPIC_ID))
    assert cache.leader(PARTITION) == Leader(1, 5, ONE)


def test_an_error_or_a_missing_address_erases_nothing() -> None:
    cache = MetadataCache()
    assert not cache.update(answer(0, 0, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert cache.topics["t"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert cache.leader(PARTITION) is None
    cache.update(answer(1, 5))
    cache.update(answer(0, 0, error=ErrorCode.LEADER_NOT_AVAILABLE))
    assert cache.leader(PARTITION) == Leader(1, 5, ONE)
    assert cache.partition_counts(["t", "u"]) == {"t": 1}
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


def test_keys_are_placed_as_java_and_kafka_python_place_them() -> None:
    keys = [bytes(range(length)) for length in range(64)] + [b"\xff" * n for n in range(1, 20)]
    assert [murmur2(key) for key in keys] == [kafka_pythons_murmur2(key) for key in keys]
    # UtilsTest.testMurmur2; Java's ints are signed.
    vectors = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    assert {key: murmur2(key) for key in vectors} == {k: v % 2**32 for k, v in vectors.items()}
    assert {partition_for_key(b"%d" % number, 3) for number in range(50)} == {0, 1, 2}


def test_a_sticky_partition_stays_for_one_batch_and_then_moves() -> None:
    sticky = StickyPartition(batch_size=100)
    seen = []
    for random_fraction in (0.0, 0.0, 0.0, 0.9):
        assert sticky.needs_choice()
        sticky.choose([0, 1, 2], random_fraction)
        seen.append(sticky.current)
        sticky.used(60)
        assert not sticky.needs_choice()
        sticky.used(60)
    assert seen == [0, 1, 0, 2]
    sticky.choose([7], 0.5)
    sticky.give_up()
    sticky.choose([7], 0.5)
    assert sticky.current == 7


def test_backoff_doubles_up_to_its_cap_with_jitter() -> None:
    backoff = Backoff(100, 1_000)
    assert [backoff.delay_ms(failures, 0.5) for failures in (1, 2, 3, 4, 5, 10_000)] == [
        100, 200, 400, 800, 1_000, 1_000,
    ]  # fmt: skip
    assert backoff.delay_ms(1, 0.0) == 80
    assert 119 < backoff.delay_ms(1, 0.999) < 120


LOADED = """
import sys
{statement}
print(*sorted(name for name in sys.modules if name.startswith("quorumlog.")))
"""


def loaded_by(statement: str) -> set[str]:
    program = [sys.executable, "-c", LOADED.format(statement=statement)]
    ended = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
    return {*ended.stdout.split()}


def test_clients_load_neither_groups_nor_administration_before_they_are_used() -> None:
    loaded = loaded_by("from quorumlog import Admin, Consumer, Producer")
    assert "quorumlog.client.io.sender" in loaded
    late = {
        "core.membership",
        "core.assignors",
        "group_client",
        "admin.topics",
        "admin.groups",
        "sync",
    }
    assert not {f"quorumlog.client.{name}" for name in late} & loaded
    messages = {name for name in loaded if name.startswith("quorumlog.wire.codec.messages.")}
    assert not {name for name in messages if "group" in name or "config" in name}


def test_an_error_alone_loads_no_client() -> None:
    loaded = loaded_by("from quorumlog.client import ErrorCode, KafkaError, TopicPartition")
    assert not {"quorumlog.client.producer", "quorumlog.client.admin"} & loaded


def test_every_public_name_is_there() -> None:
    for name in quorumlog.client.__all__:
        assert getattr(quorumlog.client, name).__name__ == name
    assert dir(quorumlog.client) == sorted(quorumlog.client.__all__)
    for name in quorumlog.client.admin.__all__:
        assert getattr(quorumlog.client.admin, name) is not None


@pytest.mark.parametrize("module", ["quorumlog.client", "quorumlog.client.admin"])
def test_a_name_that_is_not_there_is_an_attribute_error(module: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'nothing'"):
        getattr(sys.modules[module], "nothing")  # noqa: B009 - mypy would see the mistake
