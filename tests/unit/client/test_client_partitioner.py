"""The partition of a key (murmur2, as in Java) and of a record without one."""

from kafka.partitioner.default import murmur2 as kafka_pythons_murmur2

from quorumlog.backoff import Backoff
from quorumlog.client.core.partitioner import StickyPartition, murmur2, partition_for_key


def test_murmur2_against_kafka_python() -> None:
    keys = [bytes(range(length)) for length in range(64)] + [b"\xff" * n for n in range(1, 20)]
    assert [murmur2(key) for key in keys] == [kafka_pythons_murmur2(key) for key in keys]


def test_the_vectors_of_javas_own_test() -> None:
    """UtilsTest.testMurmur2; Java's ints are signed."""
    vectors = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    assert {key: murmur2(key) for key in vectors} == {k: v % 2**32 for k, v in vectors.items()}


def test_a_key_stays_within_the_partitions() -> None:
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
