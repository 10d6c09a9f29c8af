"""Orders and hashes as a JDK gives them for the same keys."""

import pytest

from quorumlog.broker.responses.java_maps import entity_hash, in_map_order, names_in_map_order


@pytest.mark.parametrize(
    ("names", "buckets", "expected"),
    [
        ("user client-id ip", 16, "ip client-id user"),
        ("user client-id", 2, "client-id user"),
        (
            "ann bob carl dora emil fay gus hal ina joe kim leo max",  # more than 12: 32 buckets
            16,
            "ann joe emil gus max kim hal bob dora carl leo ina fay",
        ),
        (
            "consumer_byte_rate controller_mutation_rate producer_byte_rate request_percentage",
            0,
            "producer_byte_rate consumer_byte_rate controller_mutation_rate request_percentage",
        ),
        (
            "consumer_byte_rate controller_mutation_rate request_percentage",
            0,
            "consumer_byte_rate controller_mutation_rate request_percentage",
        ),
        ("", 0, ""),
    ],
)
def test_names_are_in_the_order_of_a_map(names: str, buckets: int, expected: str) -> None:
    assert names_in_map_order(names.split(), buckets=buckets) == expected.split()


def test_a_map_grows_with_its_keys() -> None:
    keys = [f"key-{number}" for number in range(40)]
    order = [int(key[4:]) for key in names_in_map_order(keys, buckets=0)]
    expected = "18 17 39 19 14 36 13 35 16 38 15 37 1 10 32 0 31 12 34 11"
    expected += " 33 5 4 3 30 2 9 8 7 6 29 28 25 24 27 26 21 20 23 22"
    assert order == [int(number) for number in expected.split()]


def test_entities_have_the_hash_of_a_map_in_an_object() -> None:
    ann, default, both = [("user", "ann")], [("user", None)], [("user", "ann"), ("client-id", "c")]
    hashes = [entity_hash(one) for one in (ann, default, both, [("ip", "10.0.0.1")])]
    assert [value & 0xFFFFFFFF for value in hashes] == [
        value & 0xFFFFFFFF for value in (3641929, 3599338, -1900495737, 511551392)
    ]
    users = [(("user", f"u{number}"),) for number in range(14)]
    order = [users.index(one) for one in in_map_order(users, hash_of=entity_hash)]
    assert order == [1, 3, 2, 4, 10, 11, 12, 13, 8, 9, 0, 5, 7, 6]
