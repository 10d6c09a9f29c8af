"""Where the controller puts replicas: spread over racks, over brokers, and leaders over all."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from quorumlog.metadata_quorum.controller import placement
from quorumlog.metadata_quorum.controller.placement import place_replicas
from quorumlog.metadata_quorum.controller_client import NewTopic
from quorumlog.wire.codec.identifiers import BrokerId
from tests.support.metadata_quorum.controllers import Bench, ids

Racks = Mapping[BrokerId, str | None]


def racks(*names: str | None) -> Racks:
    """Brokers from 1 on, each with its rack."""
    return {BrokerId(number): name for number, name in enumerate(names, start=1)}


def place(
    where: Racks, replication_factor: int, start: int, fenced: Sequence[BrokerId] = ()
) -> list[list[str | None]]:
    """Return the racks of 24 partitions, after a look that no broker has two replicas of one."""
    usable = [broker_id for broker_id in where if broker_id not in fenced]
    placed = place_replicas(
        usable,
        fenced,
        partitions=24,
        replication_factor=replication_factor,
        start=start,
        racks=where,
    )
    assert all(len({*replicas}) == replication_factor for replicas in placed)
    return [[where[one] for one in replicas] for replicas in placed]


@pytest.mark.parametrize("start", [0, 1, 7, 2**32 - 1])
@pytest.mark.parametrize(
    "where",
    [
        racks("a", "a", "b", "b", "c", "c"),
        racks("a", "b", "c"),
        racks("a", "a", "a", "a", "b", "c"),
        racks("a", None, None, "b", "b"),
    ],
    ids=["even", "one each", "uneven", "some without"],
)
def test_no_rack_has_two_replicas_while_another_has_none(where: Racks, start: int) -> None:
    known = {*where.values()}
    for replication_factor in range(1, len(where) + 1):
        for found in place(where, replication_factor, start):
            assert len({*found}) == min(replication_factor, len(known))
    for found in place(where, 3, start, fenced=[BrokerId(1)]):
        assert len({*found[:2]}) == 2


@pytest.mark.parametrize("start", [0, 1, 7, 2**32 - 1])
def test_leaders_are_even_over_brokers_and_followers_over_racks(start: int) -> None:
    where = racks("a", "a", "b", "b", "c", "c")
    placed = place_replicas(
        [*where], (), partitions=36, replication_factor=3, start=start, racks=where
    )
    assert {*Counter(replicas[0] for replicas in placed).values()} == {6}
    assert {*Counter(r for replicas in placed for r in replicas).values()} == {18}
    assert len({replicas[1] for replicas in placed if replicas[0] == 1}) > 1


def test_a_fenced_broker_is_taken_last_although_its_rack_is_free() -> None:
    where = racks("a", "a", "b")
    placed = place_replicas(
        ids(1, 2), ids(3), partitions=4, replication_factor=2, start=0, racks=where
    )
    assert {frozenset(replicas) for replicas in placed} == {frozenset({1, 2})}


def test_brokers_of_one_rack_are_placed_as_without_racks() -> None:
    where = racks("a", "a", "a", "a")
    for one in (where, None):
        placed = place_replicas(
            [*where], (), partitions=12, replication_factor=3, start=5, racks=one
        )
        assert placed[:2] == [(2, 4, 1), (3, 1, 2)]


def test_a_topic_is_spread_over_the_racks_of_its_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_spread() -> bool:
        bench = Bench()
        where = {1: "a", 2: "a", 3: "b", 4: "b"}
        for broker_id, rack in where.items():
            bench.ask(bench.registration(broker_id, "x", rack=rack))
            bench.heartbeat(broker_id)
        bench.create(NewTopic(name="t", partitions=8, replication_factor=2))
        partitions = bench.controller.cluster.partitions("t")
        return all({where[r] for r in one.replicas} == {"a", "b"} for one in partitions)

    assert is_spread()
    # The planted bug: racks are not looked at.
    monkeypatch.setattr(placement, "_spread", lambda stripe, count, *_: [*stripe[:count]])
    monkeypatch.setattr(placement, "_ring", lambda ring, _: [*ring])
    assert not is_spread()
