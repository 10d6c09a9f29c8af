"""The verbs of a running cluster, in one table: HTTP, OpenAPI and `quorumlog nemesis` come from it.

The functions of the verbs are the methods of the nemesis and of the cluster: so the three faces,
and Python, cannot differ. Light: `quorumlog nemesis` imports it for every verb.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from quorumlog.chaos.control.kinds import (
    INTEGER,
    NODES,
    NUMBER,
    OBJECTS,
    TARGET,
    TEXT,
    TEXT_OR_INTEGER,
    Misuse,
)
from quorumlog.chaos.control.verb import Parameter, Verb

if TYPE_CHECKING:
    from quorumlog.chaos.control.acts import Act
    from quorumlog.chaos.control.lab import Lab

WAIT_MS_MAX: Final = 600_000


def _hit(act: "Act") -> dict[str, Any]:
    return {"nodes": list(act.node_ids)}


def _of_nemesis(name: str) -> Callable[..., dict[str, Any]]:
    """Return the function of a verb of the nemesis that answers with the affected nodes."""

    def call(lab: "Lab", **given: Any) -> dict[str, Any]:
        return _hit(getattr(lab.nemesis, name)(**given))

    return call


def _of_cluster(name: str) -> Callable[..., Any]:
    """Return the function of a method of the cluster whose result is the answer."""

    def call(lab: "Lab", **given: Any) -> Any:
        return getattr(lab.cluster, name)(**given)

    return call


def _done_by_cluster(name: str) -> Callable[..., dict[str, Any]]:
    """Return the function of a method without a result: the answer repeats its arguments."""

    def call(lab: "Lab", **given: Any) -> dict[str, Any]:
        getattr(lab.cluster, name)(**given)
        return given

    return call


def _rule(lab: "Lab", name: str, **given: Any) -> dict[str, Any]:
    rule = getattr(lab.nemesis, name)(**given)
    _ = rule.node_ids  # its error
    return {"rule": rule.number}


def _waiting(name: str) -> Callable[..., dict[str, Any]]:
    """Return the function of a wait of the cluster: it returns the state that was seen."""

    def call(lab: "Lab", timeout_ms: int | None = None, **given: Any) -> dict[str, Any]:
        if timeout_ms is not None:
            if not 0 < timeout_ms <= WAIT_MS_MAX:
                raise Misuse(f"timeout_ms = {timeout_ms}", f"choose one from 1 to {WAIT_MS_MAX}")
            given["timeout_s"] = timeout_ms / 1000
        return dict(getattr(lab.cluster, name)(**given))

    return call


def _holders(lab: "Lab", **given: Any) -> dict[str, Any]:
    held = lab.nemesis.holders(**given, in_line=False)
    return {"nodes": [node_id for node_id in held if node_id >= 0]}  # -1: no node leads


_ROLES: Final = (
    "a role (partition-leader, isr-follower, metadata-leader, group-coordinator, any, rack, "
    "minority, majority, all), a rack (rack:b), a node id, or several"
)
_NODES: Final = {"nodes": [2]}


def _target(*, required: bool = False, clients: bool = False) -> Parameter:
    text = f"{_ROLES}; or client" if clients else _ROLES
    return Parameter("target", TARGET, text, required=required, leads=True)


_SOME: Final = Parameter("target", NODES, "node ids; without it: all such nodes", leads=True)
_TOPIC: Final = Parameter("topic", TEXT, "the topic of the leaders and followers; without it: any")
_HISTORY: Final = Parameter(
    "id", INTEGER, "the id of a history", required=True, leads=True, in_path=True
)

_PROCESSES: Final = (
    Verb(
        name="kill",
        method="POST",
        path="/v1/kill",
        text="Kill nodes (SIGKILL).",
        call=_of_nemesis("kill"),
        answer=_NODES,
        parameters=(_target(), _TOPIC),
    ),
    Verb(
        name="start",
        method="POST",
        path="/v1/start",
        text="Start killed nodes again, and wait for them.",
        call=_of_nemesis("start"),
        answer=_NODES,
        parameters=(_SOME,),
    ),
    Verb(
        name="pause",
        method="POST",
        path="/v1/pause",
        text="Freeze nodes (SIGSTOP); their connections stay open.",
        call=_of_nemesis("pause"),
        answer=_NODES,
        parameters=(_target(), _TOPIC),
    ),
    Verb(
        name="resume",
        method="POST",
        path="/v1/resume",
        text="Continue paused nodes (SIGCONT).",
        call=_of_nemesis("resume"),
        answer=_NODES,
        parameters=(_SOME,),
    ),
)
_LINKS: Final = (
    Verb(
        name="isolate",
        method="POST",
        path="/v1/isolate",
        text="Cut nodes off from all other nodes and clients.",
        call=_of_nemesis("isolate"),
        answer=_NODES,
        parameters=(_target(required=True, clients=True), _TOPIC),
    ),
    Verb(
        name="partition",
        method="POST",
        path="/v1/partition",
        text="Cut nodes off from all other nodes, not from clients.",
        call=_of_nemesis("partition"),
        answer=_NODES,
        parameters=(_target(required=True), _TOPIC),
    ),
    Verb(
        name="delay",
        method="POST",
        path="/v1/delay",
        text="Delay all bytes that nodes send and receive.",
        call=_of_nemesis("delay"),
        answer=_NODES,
        parameters=(
            _target(clients=True),
            Parameter("min_ms", INTEGER, "the shortest delay; default: 20"),
            Parameter("spread_ms", INTEGER, "at most so much longer; default: 80"),
            _TOPIC,
        ),
    ),
    Verb(
        name="inflict",
        method="POST",
        path="/v1/inflict",
        text="Begin a fault, until mend.",
        call=_of_nemesis("inflict"),
        answer=_NODES,
        parameters=(
            Parameter(
                "fault", TEXT, "a fault of `quorumlog chaos list faults`", required=True, leads=True
            ),
            _target(required=True, clients=True),
            _TOPIC,
        ),
        others="the parameters of the fault, by their names",
    ),
    Verb(
        name="mend",
        method="POST",
        path="/v1/mend",
        text="End every inflicted fault; held back bytes arrive.",
        call=_of_nemesis("mend"),
        answer=_NODES,
    ),
    Verb(
        name="heal",
        method="POST",
        path="/v1/heal",
        text="End all faults, start all nodes, and wait for them.",
        call=_of_nemesis("heal"),
        answer=_NODES,
    ),
)
_VIEWS: Final = (
    Verb(
        name="holders",
        method="GET",
        path="/v1/holders",
        text="Show the nodes that hold a role now.",
        call=_holders,
        answer=_NODES,
        parameters=(
            Parameter("role", TEXT, "such as partition-leader", required=True, leads=True),
            _TOPIC,
        ),
        in_line=False,
    ),
    Verb(
        name="nodes",
        method="GET",
        path="/v1/nodes",
        text="Show the nodes: addresses, processes, states.",
        call=lambda lab: {"nodes": lab.cluster.status()["nodes"]},
        answer={"nodes": [{"id": 1, "kafka": "127.0.0.1:9092", "pid": 4242, "state": "running"}]},
        in_line=False,
    ),
    Verb(
        name="status",
        method="GET",
        path="/v1/status",
        text="Show the cluster, as `quorumlog status --json`.",
        call=lambda lab: lab.cluster.status(),
        answer={"bootstrap": "127.0.0.1:9092", "controller_id": 1, "nodes": [], "topics": {}},
        in_line=False,
    ),
)
_TIMEOUT: Final = Parameter("timeout_ms", INTEGER, "the longest wait; default: 15000")
_FILTERS: Final = (
    Parameter("topic", TEXT, "only requests that name this topic"),
    Parameter("partition", INTEGER, "only requests that name this partition"),
    Parameter("client_id", TEXT, "only requests of this client.id"),
)
_API: Final = Parameter("api", TEXT, "Kafka's name, such as Produce", required=True, leads=True)
_RULES: Final = (
    Verb(
        name="answer",
        method="POST",
        path="/v1/answer",
        text="Answer requests of clients with an error.",
        call=lambda lab, **given: _rule(lab, "answer", **given),
        answer={"rule": 1},
        parameters=(
            _API,
            Parameter(
                "error",
                TEXT_OR_INTEGER,
                "Kafka's name, such as NOT_LEADER_OR_FOLLOWER, or number",
                required=True,
                leads=True,
            ),
            *_FILTERS,
            Parameter("times", INTEGER, "so many requests; without it: each"),
            Parameter("on_call", INTEGER, "only that matching request, counted from 1"),
            Parameter("probability", NUMBER, "each with this probability, up to 1"),
            Parameter("after", TEXT, "refused (default), or appended: carried out before"),
        ),
    ),
    Verb(
        name="observe",
        method="POST",
        path="/v1/observe",
        text="Count requests of clients.",
        call=lambda lab, **given: _rule(lab, "observe", **given),
        answer={"rule": 2},
        parameters=(_API, *_FILTERS),
    ),
    Verb(
        name="rules",
        method="GET",
        path="/v1/rules",
        text="Show all rules, and the requests that each matched.",
        call=lambda lab: {"rules": lab.nemesis.rules()},
        answer={"rules": [{"rule": 1, "api": "Produce", "in_force": True, "matches": 3}]},
        in_line=False,
    ),
)
_WAITS: Final = (
    Verb(
        name="wait",
        method="GET",
        path="/v1/wait",
        text="Wait until a topic or a group is in a state.",
        call=_waiting("wait"),
        answer={"group": "billing", "state": "Stable", "members": 2},
        parameters=(
            Parameter("group", TEXT, "the group"),
            Parameter("state", TEXT, "the state of the group, such as Stable, Empty or Dead"),
            Parameter("members", INTEGER, "the number of its members"),
            Parameter("committed", TEXT_OR_INTEGER, "the sum of its offsets, or end: no lag"),
            Parameter("topic", TEXT, "the topic: each partition has a leader"),
            Parameter("partition", INTEGER, "only this partition"),
            Parameter("isr", INTEGER, "the number of replicas in sync"),
            Parameter("leader", TEXT_OR_INTEGER, "the leader, or any"),
            Parameter("leader_moved_from", INTEGER, "a node that leads no more"),
            _TIMEOUT,
        ),
        in_line=False,
    ),
    Verb(
        name="settled",
        method="GET",
        path="/v1/settled",
        text="Wait until nothing changes by itself any more.",
        call=_waiting("settled"),
        answer={"topics": 1, "groups": 1},
        parameters=(_TIMEOUT,),
        in_line=False,
    ),
)
_NAME: Final = Parameter("name", TEXT, "the name of the snapshot", required=True, leads=True)
_STATES: Final = (
    Verb(
        name="mark",
        method="POST",
        path="/v1/mark",
        text="Remember topics, groups and settings, for reset.",
        call=_done_by_cluster("mark"),
        answer={},
    ),
    Verb(
        name="reset",
        method="POST",
        path="/v1/reset",
        text="Return to the mark, or to a new cluster.",
        call=_done_by_cluster("reset"),
        answer={},
    ),
    Verb(
        name="snapshot",
        method="POST",
        path="/v1/snapshot",
        text="Keep a copy of all logs under a name.",
        call=_done_by_cluster("snapshot"),
        answer={"name": "loaded"},
        parameters=(_NAME,),
    ),
    Verb(
        name="restore",
        method="POST",
        path="/v1/restore",
        text="Put back the logs of a snapshot.",
        call=_done_by_cluster("restore"),
        answer={"name": "loaded"},
        parameters=(_NAME,),
    ),
)
_REMOVED: Final = {"orders-0": {"records": 100, "segments": 1, "bytes": 7000}}
_OF_TOPIC: Final = Parameter("topic", TEXT, "the topic", required=True, leads=True)
_TIMES: Final = (
    Verb(
        name="advance",
        method="POST",
        path="/v1/advance",
        text="Advance the wall clock of all nodes.",
        call=_of_cluster("advance"),
        answer={"ahead_ms": 604_800_000, "nodes": [1, 2, 3], "later": [], "removed": _REMOVED},
        parameters=tuple(
            Parameter(unit, NUMBER, f"so many {unit}")
            for unit in ("days", "hours", "minutes", "seconds", "ms")
        ),
    ),
    Verb(
        name="apply-retention",
        method="POST",
        path="/v1/apply-retention",
        text="Delete expired and surplus segments of a topic now.",
        call=_of_cluster("apply_retention"),
        answer={"nodes": [1, 2, 3], "removed": _REMOVED},
        parameters=(_OF_TOPIC,),
    ),
    Verb(
        name="compact",
        method="POST",
        path="/v1/compact",
        text="Compact the logs of a topic now.",
        call=_of_cluster("compact"),
        answer={"nodes": [1, 2, 3], "removed": _REMOVED},
        parameters=(_OF_TOPIC,),
    ),
    Verb(
        name="expire-groups",
        method="POST",
        path="/v1/expire-groups",
        text="Delete all expired offsets of groups now.",
        call=_of_cluster("expire_groups"),
        answer={"nodes": [1, 2, 3], "offsets": {"billing": 3}},
    ),
)
_HISTORIES: Final = (
    Verb(
        name="open-history",
        method="POST",
        path="/v1/histories",
        text="Open a history of clients' operations.",
        call=lambda lab, **given: lab.histories.open(**given),
        answer={"id": 1, "directory": "/path/of/the/cluster/histories/1"},
        parameters=(
            Parameter("name", TEXT, "the name of the test, for the report"),
            Parameter("model", TEXT, "as of `quorumlog verify --model`; default: kafka_log"),
        ),
        in_line=False,
    ),
    Verb(
        name="record",
        method="POST",
        path="/v1/histories/{id}/operations",
        text="Append operations to a history, in their order.",
        call=lambda lab, **given: lab.histories.record(**given),
        answer={"events": 2},
        parameters=(
            _HISTORY,
            Parameter(
                "operations",
                OBJECTS,
                "events as in history.jsonl, without index and time_ns",
                required=True,
            ),
        ),
        in_line=False,
    ),
    Verb(
        name="verdict",
        method="POST",
        path="/v1/histories/{id}/verdict",
        text="Heal, read all to the end, and judge a history.",
        call=lambda lab, **given: lab.histories.verdict(**given),
        answer={"valid": True, "operations": 1, "anomalies": {}, "unknown_because": []},
        parameters=(_HISTORY,),
    ),
)

VERBS: Final[Mapping[str, Verb]] = {
    verb.name: verb
    for verb in (*_PROCESSES, *_LINKS, *_RULES, *_VIEWS, *_WAITS, *_STATES, *_TIMES, *_HISTORIES)
}
