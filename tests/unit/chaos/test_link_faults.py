"""Which links the faults of a network cut, and how those rules are told to the forwarders."""

import json
from random import Random
from typing import Any

import pytest

from quorumlog.chaos.faults.fault import Scene
from quorumlog.chaos.faults.links import EFFECTS, DropRequest, Effect, Link, LinkRule
from quorumlog.chaos.faults.partitions import (
    IsolateRole,
    PartitionHalves,
    PartitionOne,
    PartitionOneWay,
    PartitionRing,
)
from quorumlog.chaos.faults.requests import DropRequests, ReplyLost
from quorumlog.chaos.network.links import plain_rule, rule_of


def scene(count: int, victims: tuple[int, ...] = (1,), *, seed: int = 1) -> Scene:
    nodes = tuple(range(1, count + 1))
    return Scene(
        action_id="7",
        victims=victims,
        running=nodes,
        all_nodes=nodes,
        rng=Random(seed),
        hits_clients=not victims,
    )


def pairs(rules: tuple[LinkRule, ...]) -> set[tuple[str, str]]:
    return {(link.source, link.destination) for rule in rules for link in rule.links}


def test_one_node_is_cut_off_from_the_others_and_not_from_clients() -> None:
    cut = pairs(PartitionOne().rules(scene(3)))
    assert cut == {("1", "2"), ("2", "1"), ("1", "3"), ("3", "1")}
    assert pairs(PartitionOneWay(direction="in").rules(scene(3))) == {("2", "1"), ("3", "1")}
    assert pairs(PartitionOneWay(direction="out").rules(scene(3))) == {("1", "2"), ("1", "3")}


def test_who_is_isolated_reaches_nobody() -> None:
    cut = pairs(IsolateRole().rules(scene(3)))
    assert ("1", "clients") in cut
    assert len(cut) == 6
    assert pairs(IsolateRole().rules(scene(2, ()))) == {
        *(("clients", "1"), ("1", "clients"), ("clients", "2"), ("2", "clients"))
    }


@pytest.mark.parametrize("count", range(2, 10))
@pytest.mark.parametrize("seed", range(5))
def test_of_two_halves_one_is_a_majority(count: int, seed: int) -> None:
    cut = pairs(PartitionHalves().rules(scene(count, seed=seed)))
    reach = [1 + sum((str(a), str(b)) not in cut for b in nodes(count, a)) for a in all_of(count)]
    majority = count // 2 + 1
    assert sorted(reach) == sorted([majority] * majority + [count - majority] * (count - majority))


@pytest.mark.parametrize("count", range(3, 10))
@pytest.mark.parametrize("seed", range(5))
def test_in_a_ring_every_node_sees_a_majority_and_none_sees_all(count: int, seed: int) -> None:
    cut = pairs(PartitionRing().rules(scene(count, seed=seed)))
    assert cut
    assert {(b, a) for a, b in cut} == cut
    sees = [
        frozenset({a, *(b for b in nodes(count, a) if (str(a), str(b)) not in cut)})
        for a in all_of(count)
    ]
    assert all(len(seen) > count // 2 for seen in sees)
    assert len({*sees}) == count or count <= 4


def all_of(count: int) -> range:
    return range(1, count + 1)


def nodes(count: int, but: int) -> list[int]:
    return [node_id for node_id in all_of(count) if node_id != but]


def test_a_kind_of_request_is_lost_on_its_own_listener() -> None:
    (rule,) = DropRequests(api="Fetch").rules(scene(3))
    assert rule == LinkRule(
        "7", (Link("1", "2", "kafka"), Link("1", "3", "kafka")), DropRequest("Fetch")
    )
    (rule,) = DropRequests(api="AlterPartition", sender="nodes").rules(scene(3))
    assert rule.links == (Link("2", "1", "control"), Link("3", "1", "control"))
    (rule,) = DropRequests(api="control/Fetch").rules(scene(2))
    assert (rule.links, rule.effect) == ((Link("1", "2", "control"),), DropRequest("Fetch"))
    (rule,) = ReplyLost(api="EndTxn").rules(scene(2, (2,)))
    assert rule.links == (Link("clients", "2", "kafka"),)
    with pytest.raises(ValueError, match="no request is called 'Fech'; did you mean Fetch"):
        DropRequests(api="Fech")


@pytest.mark.parametrize("kind", sorted(EFFECTS, key=str))
def test_a_rule_is_told_as_json(kind: type[Effect]) -> None:
    values: dict[str, Any] = {"api": "Fetch", "us": 5, "min_us": 3, "bytes_per_s": 9}
    needed: dict[str, Any] = {name: values[name] for name in kind.__match_args__ if name in values}
    effect = kind(**needed)
    rule = LinkRule("3-x", (Link("1", "clients", "kafka"), Link("2", "1")), effect)
    assert rule_of(json.loads(json.dumps(plain_rule(rule)))) == rule
