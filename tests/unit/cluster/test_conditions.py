"""The conditions of `LocalCluster.wait` and `settled`, on views that are written by hand."""

from typing import Any

import pytest

from quorumlog.cluster import InvalidArgument
from quorumlog.cluster.cluster_status import NodeState
from quorumlog.cluster.conditions import GroupCondition, TopicCondition, of_arguments, settled_lack

RUNNING = {1: NodeState.RUNNING, 2: NodeState.RUNNING, 3: NodeState.RUNNING}
NOTHING: dict[str, Any] = dict.fromkeys(
    ("group", "state", "members", "topic", "partition", "isr", "leader", "moved_from", "committed")
)


def partition(leader: int = 1, isr: tuple[int, ...] = (1, 2, 3), **more: Any) -> dict[str, Any]:
    replicas = {"replicas": [1, 2, 3], "adding_replicas": [], "removing_replicas": []}
    return {"leader": leader, "leader_epoch": 4, "isr": list(isr), **replicas, **more}


def view(*partitions: dict[str, Any], fenced: tuple[int, ...] = ()) -> dict[str, Any]:
    return {
        "fenced": {str(one): one in fenced for one in (1, 2, 3)},
        "topics": {"orders": {"partitions": list(partitions)}},
    }


def group(**values: Any) -> dict[str, Any]:
    return {"state": "Stable", "members": 2, "committed": {}, "lag": {}, **values}


@pytest.mark.parametrize(
    ("wanted", "seen", "lack"),
    [
        ({}, partition(), None),
        ({}, partition(-1), "orders-0 has no leader and ISR [1, 2, 3]"),
        ({"leader": 1}, partition(), None),
        ({"leader": 2}, partition(), "orders-0 has leader 1 and ISR [1, 2, 3]"),
        ({"moved_from": 1}, partition(), "orders-0 has leader 1 and ISR [1, 2, 3]"),
        ({"moved_from": 2}, partition(), None),
        ({"isr": 3}, partition(), None),
        ({"isr": 2}, partition(), "orders-0 has leader 1 and ISR [1, 2, 3]"),
        ({"partition": 1}, partition(), "topic orders has 1 partitions, none is 1"),
        ({"topic": "order"}, partition(), "there is no topic order; did you mean orders?"),
    ],
)
def test_a_topic_lacks(wanted: dict[str, Any], seen: dict[str, Any], lack: str | None) -> None:
    condition = TopicCondition(**{"topic": "orders", **wanted})
    assert condition.lack(view(seen), RUNNING) == lack


def test_a_leader_whose_process_is_dead_is_none() -> None:
    states = {**RUNNING, 1: NodeState.KILLED}
    assert TopicCondition(topic="orders").lack(view(partition()), states) == (
        "orders-0 has leader 1 (dead) and ISR [1, 2, 3]"
    )


def test_one_partition_is_enough_if_it_is_named() -> None:
    both = view(partition(), partition(2))
    assert TopicCondition(topic="orders", leader=1).lack(both, RUNNING) is not None
    condition = TopicCondition(topic="orders", leader=1, partition=0)
    assert condition.lack(both, RUNNING) is None
    assert [one["partition"] for one in condition.seen(both)["partitions"]] == [0]


@pytest.mark.parametrize(
    ("wanted", "seen", "lack"),
    [
        ({"state": "Stable"}, group(), None),
        ({"state": "Empty"}, group(), "group g is Stable with 2 members"),
        ({"members": 3}, group(), "group g is Stable with 2 members"),
        ({"members": 0}, group(state="Dead", members=0), None),
        (
            {"state": "Stable"},
            group(state="Dead", members=0),
            "there is no group g; did you mean gg?",
        ),
        ({"state": "Dead"}, group(state="Dead", members=0), None),
        ({"committed": 5}, group(committed={"a-0": 2, "a-1": 3}), None),
        (
            {"committed": 6},
            group(committed={"a-0": 5}, lag={"a-0": 1}),
            "group g has committed {'a-0': 5}, its lag is {'a-0': 1}; did you mean gg?",
        ),
        ({"committed": "end"}, group(committed={"a-0": 5}, lag={"a-0": 0}), None),
        (
            {"committed": "end"},
            group(),
            "group g has committed nothing, its lag is {}; did you mean gg?",
        ),
    ],
)
def test_a_group_lacks(wanted: dict[str, Any], seen: dict[str, Any], lack: str | None) -> None:
    assert GroupCondition(group="g", **wanted).lack(seen, ["gg"]) == lack


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "nothing to wait for"),
        ({"group": "g"}, "group needs a condition"),
        ({"state": "Stable"}, "state needs a group"),
        ({"isr": 3}, "isr needs a topic"),
        ({"moved_from": 3}, "leader_moved_from needs a topic"),
        ({"group": "g", "members": 1, "partition": 0}, "partition needs a topic"),
        ({"topic": "t", "partition": -1}, "0 or above"),
        ({"topic": "t", "isr": -1}, "isr=-1: it is 0 or above"),
        ({"group": "g", "members": -1}, "members=-1: it is 0 or above"),
        ({"group": "g", "committed": -1}, "committed=-1: it is 0 or above"),
        ({"topic": "t", "leader": "anyone"}, "the id of a node, or 'any'"),
        ({"group": "g", "state": "stable"}, "did you mean Stable?"),
        ({"group": "g", "state": "Stabel"}, "did you mean Stable?"),
        ({"group": "g", "committed": "begin"}, "'end' for no lag"),
    ],
)
def test_arguments_that_make_no_condition(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        of_arguments(**{**NOTHING, **given})
    assert message in str(error.value)


def test_a_topic_beside_committed_only_restricts_it() -> None:
    topic, group = of_arguments(**{**NOTHING, "topic": "t", "group": "g", "committed": "end"})
    assert topic is None
    assert group == GroupCondition(group="g", committed="end", topic="t")
    topic, _ = of_arguments(**{**NOTHING, "topic": "t", "group": "g", "committed": "end", "isr": 3})
    assert topic == TopicCondition(topic="t", isr=3)


@pytest.mark.parametrize(
    ("newest", "states", "lack"),
    [
        (view(partition()), {}, None),
        (view(partition(), fenced=(3,)), {}, "node 3 is running and fenced"),
        (view(partition()), {3: NodeState.KILLED}, "node 3 is killed and not fenced yet"),
        (view(partition()), {3: NodeState.PAUSED}, "node 3 is paused and not fenced yet"),
        (view(partition(isr=(1, 2)), fenced=(3,)), {3: NodeState.KILLED}, None),
        (view(partition(isr=(1, 2))), {}, "orders-0 has the ISR [1, 2] of [1, 2, 3]"),
        (view(partition(-1)), {}, "orders-0 has no leader and ISR [1, 2, 3]"),
        (view(partition(adding_replicas=[3])), {}, "orders-0 is being reassigned"),
    ],
)
def test_a_cluster_is_not_at_rest(
    newest: dict[str, Any], states: dict[int, NodeState], lack: str | None
) -> None:
    everything = {**RUNNING, **states}
    views = {one: newest for one, state in everything.items() if state is NodeState.RUNNING}
    assert settled_lack(newest, views, everything, {1, 2, 3}) == lack


def test_a_node_without_an_answer_or_with_older_metadata_is_not_at_rest() -> None:
    newest, older = view(partition()), view(partition(2))
    assert settled_lack(newest, {1: newest, 2: newest}, RUNNING, {1, 2, 3}) == (
        "node 3 gives no answer"
    )
    views = {1: newest, 2: older, 3: newest}
    assert settled_lack(newest, views, RUNNING, {1, 2, 3}) == "node 2 has older metadata"
