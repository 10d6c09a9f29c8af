"""The conditions on which a test waits, as pure functions of the views of nodes.

A condition returns its lack, as text; None: it holds.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Literal

from quorumlog.cluster.cluster_status import NodeState, View, leader_lack
from quorumlog.cluster.errors import InvalidArgument
from quorumlog.cluster.shape import require_numbers

GROUP_STATES: Final = (
    "Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling",
    "Dead",
)  # fmt: skip
"""Kafka's names. Dead: the group does not exist."""
REBALANCING: Final = frozenset(
    {"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"}
)
ANY: Final[Literal["any"]] = "any"
END: Final[Literal["end"]] = "end"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a suggestion for a mistyped name, or ""."""
    return "".join(f"; did you mean {like}?" for like in get_close_matches(name, [*known], n=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCondition:
    """Conditions on each partition of a topic, or on one of them.

    Every partition has a leader whose process runs. `leader`: that leader. `moved_from`: a node
    that no longer leads. `isr`: the number of replicas in sync.
    """

    topic: str
    partition: int | None = None
    leader: int | Literal["any"] = ANY
    moved_from: int | None = None
    isr: int | None = None

    def lack(self, view: View, states: Mapping[int, NodeState]) -> str | None:
        """Compare a node's view. `states`: of the processes, for dead leaders."""
        known: Mapping[str, Any] = view["topics"]
        if self.topic not in known:
            return f"there is no topic {self.topic}{did_you_mean(self.topic, known)}"
        partitions = known[self.topic]["partitions"]
        if self.partition is not None and self.partition >= len(partitions):
            return f"topic {self.topic} has {len(partitions)} partitions, none is {self.partition}"
        for index, partition in self.chosen(partitions):
            leader = partition["leader"]
            is_led = (
                leader >= 0
                and self.leader in {ANY, leader}
                and leader != self.moved_from
                and leader_lack(partition, states) != "dead"
            )
            if not is_led or self.isr not in {None, len(partition["isr"])}:
                return f"{self.topic}-{index} has {partition_text(partition, states)}"
        return None

    def chosen(self, partitions: Sequence[View]) -> Iterator[tuple[int, View]]:
        """Yield the partitions of the condition, with their indexes."""
        for index, partition in enumerate(partitions):
            if self.partition in {None, index}:
                yield index, partition

    def seen(self, view: View) -> dict[str, Any]:
        """Return the partitions as plain values."""
        partitions = self.chosen(view["topics"][self.topic]["partitions"])
        return {
            "topic": self.topic,
            "partitions": [
                {
                    "partition": index,
                    **{key: one[key] for key in ("leader", "leader_epoch", "isr", "replicas")},
                }
                for index, one in partitions
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCondition:
    """Conditions on a group: its state, its number of members, its committed offsets.

    `committed`: the least sum of the group's committed offsets; "end": in each partition with a
    commit, the committed offset is the high watermark. `topic` and `partition` restrict it, and
    then "end" requires a commit in each of these partitions.
    """

    group: str
    state: str | None = None
    members: int | None = None
    committed: int | Literal["end"] | None = None
    topic: str | None = None
    partition: int | None = None

    def __post_init__(self) -> None:
        if self.state is not None and self.state not in GROUP_STATES:
            hint = did_you_mean(self.state, GROUP_STATES) or did_you_mean(
                self.state.capitalize(), GROUP_STATES
            )
            raise InvalidArgument(
                f"no group has the state {self.state!r}{hint}; choose from"
                f" {', '.join(GROUP_STATES)}"
            )
        if isinstance(self.committed, str) and self.committed != END:
            raise InvalidArgument(f"committed={self.committed!r}: a number, or 'end' for no lag")

    def lack(self, seen: Mapping[str, Any], groups: Collection[str]) -> str | None:
        """Compare the state of the group, as `seen` by the admin client. `groups`: all ids."""
        group = self.group
        if seen["state"] == "Dead" and self.state not in {None, "Dead"}:
            return f"there is no group {group}{did_you_mean(group, groups)}"
        if self.state not in {None, seen["state"]} or self.members not in {None, seen["members"]}:
            return f"group {group} is {seen['state']} with {seen['members']} members"
        if self.committed is None:
            return None
        committed: Mapping[str, int] = seen["committed"]
        if self.committed == END:
            lags: Mapping[str, int | None] = seen["lag"]
            is_met = bool(lags) and not any(lag is None or lag > 0 for lag in lags.values())
        else:
            is_met = sum(committed.values()) >= self.committed
        if is_met:
            return None
        hint = "" if group in groups else did_you_mean(group, groups)
        known = dict(committed) or "nothing"
        return f"group {group} has committed {known}, its lag is {seen['lag']}{hint}"


def of_arguments(
    *,
    group: str | None,
    state: str | None,
    members: int | None,
    topic: str | None,
    partition: int | None,
    isr: int | None,
    leader: int | Literal["any"] | None,
    moved_from: int | None,
    committed: int | Literal["end"] | None,
) -> tuple[TopicCondition | None, GroupCondition | None]:
    """Return the conditions that the arguments of `LocalCluster.wait` describe.

    A topic that only restricts `committed` is no condition of its own. Raises InvalidArgument.
    """
    of_group = {"state": state, "members": members, "committed": committed}
    of_topic = {"leader": leader, "isr": isr, "leader_moved_from": moved_from}
    for noun, subject, needed in (("group", group, of_group), ("topic", topic, of_topic)):
        given = [name for name, value in needed.items() if value is not None]
        if subject is None and given:
            raise InvalidArgument(f"{given[0]} needs a {noun}: give {noun}=NAME, too")
    if topic is None and partition is not None:
        raise InvalidArgument("partition needs a topic: give topic=NAME, too")
    require_numbers(
        leader=None if isinstance(leader, str) else leader, leader_moved_from=moved_from
    )
    _require_counts(partition=partition, members=members, isr=isr, committed=committed)
    if isinstance(leader, str) and leader != ANY:
        raise InvalidArgument(f"leader={leader!r}: the id of a node, or 'any'")
    if topic is None and group is None:
        raise InvalidArgument("there is nothing to wait for: give topic= or group=")
    if group is not None and all(value is None for value in of_group.values()):
        raise InvalidArgument("group needs a condition: state=, members= or committed=")
    is_restriction = committed is not None and all(value is None for value in of_topic.values())
    topic_condition = group_condition = None
    if topic is not None and not is_restriction:
        topic_condition = TopicCondition(
            topic=topic,
            partition=partition,
            leader=ANY if leader is None else leader,
            moved_from=moved_from,
            isr=isr,
        )
    if group is not None:
        group_condition = GroupCondition(
            group=group,
            state=state,
            members=members,
            committed=committed,
            topic=topic,
            partition=partition,
        )
    return topic_condition, group_condition


def _require_counts(**counts: int | str | None) -> None:
    """Raise InvalidArgument for a number below 0, for which a wait would never end."""
    require_numbers(**{name: n for name, n in counts.items() if not isinstance(n, str)})
    for name, count in counts.items():
        if isinstance(count, int) and count < 0:
            raise InvalidArgument(f"{name}={count}: it is 0 or above")


def partition_text(partition: View, states: Mapping[int, NodeState]) -> str:
    """Return a partition's leader and ISR, for an error."""
    lack = leader_lack(partition, states) if partition["leader"] >= 0 else None
    leader = "no leader" if partition["leader"] < 0 else f"leader {partition['leader']}"
    return f"{leader}{f' ({lack})' if lack else ''} and ISR {partition['isr']}"


def settled_lack(
    newest: View,
    views: Mapping[int, View],
    states: Mapping[int, NodeState],
    brokers: Collection[int],
) -> str | None:
    """Return why a cluster is not at rest, apart from its groups; None: it is.

    Each running node answers, and its broker is unfenced; each dead or paused broker is fenced.
    Each partition has a leader, and all replicas on unfenced brokers are in its ISR. No partition
    is reassigned, and all unfenced brokers have the same metadata of topics.
    """
    fenced = {int(node): is_fenced for node, is_fenced in newest["fenced"].items()}
    node_lack = _node_lack(fenced, views, states, brokers)
    if node_lack is not None:
        return node_lack
    live = {node_id for node_id, is_fenced in fenced.items() if not is_fenced}
    for name, topic in newest["topics"].items():
        for index, partition in enumerate(topic["partitions"]):
            if partition["leader"] not in live:
                return f"{name}-{index} has {partition_text(partition, states)}"
            if not {*partition["isr"]} >= live & {*partition["replicas"]}:
                return f"{name}-{index} has the ISR {partition['isr']} of {partition['replicas']}"
            if partition["adding_replicas"] or partition["removing_replicas"]:
                return f"{name}-{index} is being reassigned"
    behind = (
        one for one in sorted(live & views.keys()) if views[one]["topics"] != newest["topics"]
    )
    return next((f"node {node_id} has older metadata" for node_id in behind), None)


def _node_lack(
    fenced: Mapping[int, bool],
    views: Mapping[int, View],
    states: Mapping[int, NodeState],
    brokers: Collection[int],
) -> str | None:
    for node_id, state in states.items():
        is_up = not state.is_dead and state is not NodeState.PAUSED
        if is_up and node_id not in views:
            return f"node {node_id} gives no answer"
        if node_id in brokers and fenced.get(node_id, True) is is_up:
            known = "fenced" if is_up else "not fenced yet"
            return f"node {node_id} is {state.value} and {known}"
    return None
