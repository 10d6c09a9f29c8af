"""The lines of `quorumlog status`, for people."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quorumlog.cluster.cluster_status import NodeState, leader_lack
from quorumlog.cluster.shape import CONTROLLER
from quorumlog.wire.codec.topic_names import INTERNAL_TOPICS


def partition_line(index: int, partition: Mapping[str, Any], leader_lack: str | None = None) -> str:
    """Return a partition's leader; without a leader, the brokers that may become leader.

    `leader_lack`: why the leader cannot serve: "dead", "paused"; None: it can.
    `racks`: of the replicas, if given. `elr` and `last_known_elr`: None if an older
    release does not send them.
    """
    lack = "" if leader_lack is None else f" ({leader_lack})"
    line = (
        f"{index:>4}  leader {partition['leader']}{lack}  epoch {partition['leader_epoch']}"
        f"  isr {partition['isr']}  replicas {partition['replicas']}"
    )
    if any(racks := partition.get("racks", ())):
        line += f"  racks [{', '.join(rack or '-' for rack in racks)}]"
    elr, last_known = partition.get("elr"), partition.get("last_known_elr")
    if last_known:
        line += f"  may lack records: {last_known}"
    if partition["leader"] >= 0:
        return line
    if elr:
        return f"{line}  waits for one of brokers {elr}"
    return f"{line}  waits for all of brokers {last_known}" if last_known else line


Described = Mapping[str, Any]


def status_lines(described: Described, *, internal: bool) -> Iterator[str]:
    """Yield the lines of a `LocalCluster.status`; `internal`: with internal topics."""
    states = {node["id"]: NodeState(node["state"]) for node in described["nodes"]}
    quorum, topics = described["quorum"], described["topics"]
    if not quorum["has_majority"] and not all(state.is_dead for state in states.values()):
        yield _no_quorum(quorum)
    controller = described["controller_id"]
    active = "none" if controller is None else f"node {controller}"
    yield f"cluster {described['cluster_id']}   active controller {active}"
    for node in described["nodes"]:
        yield (
            f"  node {node['id']}{rack_column(node, described['nodes'])}"
            f"  {'+'.join(node['roles']):17}"
            f"  {node['kafka'] or '':21}  {_state_of(node, quorum)}"
        )
    if quorum["view_of"] is not None:
        yield _summary(described)
    folded = {} if internal else {name: topics[name] for name in topics if name in INTERNAL_TOPICS}
    for name, topic in sorted(topics.items()):
        if name in folded:
            continue
        yield f"  topic {name}"
        for index, partition in enumerate(topic["partitions"]):
            yield f"    {partition_line(index, partition, leader_lack(partition, states))}"
    if folded:
        count = sum(len(topic["partitions"]) for topic in folded.values())
        names = _counted(len(folded), "internal topic")
        yield f"  {names}, {_counted(count, 'partition')}: --internal shows them"


def rack_column(node: Described, nodes: Sequence[Described]) -> str:
    """Return the rack of a node, as wide as the longest; "" in a cluster without racks."""
    width = max(len(one["rack"] or "-") for one in nodes)
    has_racks = any(one["rack"] is not None for one in nodes)
    return f"  rack {node['rack'] or '-':{width}}" if has_racks else ""


def _no_quorum(quorum: Described) -> str:
    count, total = len(quorum["answering"]), len(quorum["voters"])
    verb = "answers" if count == 1 else "answer"
    line = f"NO QUORUM: {count} of {_counted(total, 'voter')} {verb}"
    view_of = quorum["view_of"]
    return line if view_of is None else f"{line}; below is the last state of node {view_of}"


def _state_of(node: Described, quorum: Described) -> str:
    """Return the state of a node's process, its pid while it runs, and the node's defects."""
    state = NodeState(node["state"])
    if state.is_dead:
        return state.value
    words = [f"pid {node['pid']}"]
    if state is not NodeState.RUNNING:
        words.append(state.value)
    if node["fenced"]:
        words.append("fenced")
    if node["id"] in quorum["replaced"]:
        words.append("no voter yet: the voter set has its lost directory")
    elif _is_observer(node, quorum):
        words.append("no voter")
    native_lane = node["native_lane"]
    if native_lane is not None:
        words.append("native lane" if native_lane == "on" else f"no native lane: {native_lane}")
    return ", ".join(words)


def _is_observer(node: Described, quorum: Described) -> bool:
    is_known = quorum["view_of"] is not None
    return is_known and CONTROLLER in node["roles"] and node["id"] not in quorum["voters"]


def _summary(described: Described) -> str:
    nodes, counts = described["nodes"], described["partitions"]
    answering = sum(node["answers"] for node in nodes)
    parts = [f"{answering} of {_counted(len(nodes), 'node')}"]
    lacks = {
        "with fewer in-sync replicas": counts["fewer_in_sync"],
        "without a leader": counts["without_leader"],
        "led by a node that does not answer": counts["leader_not_answering"],
    }
    parts += [f"{_counted(count, 'partition')} {lack}" for lack, count in lacks.items() if count]
    replaced = described["quorum"]["replaced"]
    if replaced:
        parts.append(f"{_counted(len(replaced), 'voter')} with another directory")
    if len(parts) == 1:
        parts.append(f"{_counted(counts['total'], 'partition')}, all in sync")
    return "  " + ", ".join(parts)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
