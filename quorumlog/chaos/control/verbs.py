"""The verbs of a running cluster, in one table: HTTP, OpenAPI and `quorumlog nemesis` come from it.

A verb has a name, a method and a path, its parameters, and the function that carries it out on a
`Lab`. The functions are the methods of the nemesis and of the cluster: so the three faces, and
Python, cannot differ. Light: `quorumlog nemesis` imports it for every verb.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from quorumlog.chaos.control.kinds import INTEGER, NODES, OBJECTS, TARGET, TEXT, Kind, Misuse

if TYPE_CHECKING:
    from quorumlog.chaos.control.acts import Act
    from quorumlog.chaos.control.lab import Lab


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. `leads`: an argument of the command, not an option; `in_path`: of the path."""

    name: str
    kind: Kind
    text: str
    required: bool = False
    leads: bool = False
    in_path: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One verb.

    `call`: with the lab and the given parameters, as keywords; it blocks.
    `in_line`: it changes the cluster: such verbs are carried out one after the other.
    `others`: the text on further parameters, whose names depend on the given ones; "": none.
    `answer`: an example of the answer.
    """

    name: str
    method: str
    path: str
    text: str
    call: Callable[..., Any]
    answer: Mapping[str, Any]
    parameters: tuple[Parameter, ...] = ()
    in_line: bool = True
    others: str = ""
    by_name: Mapping[str, Parameter] = field(init=False)

    def __post_init__(self) -> None:
        named = {parameter.name: parameter for parameter in self.parameters}
        object.__setattr__(self, "by_name", named)

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a request, checked. Raises Misuse."""
        for name in given:
            if name not in self.by_name and not self.others:
                known = [*self.by_name]
                hint = f"it has {', '.join(known)}" if known else "it has none"
                raise Misuse(f"{self.name} has no parameter {name!r}", like(name, known) + hint)
        for parameter in self.parameters:
            if parameter.required and given.get(parameter.name) is None:
                raise Misuse(
                    f"{self.name} needs {parameter.name}",
                    f"{parameter.name} is {parameter.kind.noun}: {parameter.text}",
                )
        return {
            name: self.by_name[name].kind.checked(name, value) if name in self.by_name else value
            for name, value in given.items()
            if value is not None
        }

    def read(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """Return the parameters that texts stand for, as those of a URL. Raises Misuse."""
        return self.checked(
            {
                name: self.by_name[name].kind.from_text(name, text)
                if name in self.by_name
                else text
                for name, text in texts.items()
            }
        )


def like(name: str, known: list[str]) -> str:
    """Return the beginning of a hint for a mistyped name, or ""."""
    return "".join(f"did you mean {one}? " for one in get_close_matches(name, known, n=1))


def _hit(act: "Act") -> dict[str, Any]:
    return {"nodes": list(act.node_ids)}


def _of_nemesis(name: str) -> Callable[..., dict[str, Any]]:
    """Return the function of a verb of the nemesis that answers with the affected nodes."""

    def call(lab: "Lab", **given: Any) -> dict[str, Any]:
        return _hit(getattr(lab.nemesis, name)(**given))

    return call


_ROLES: Final = (
    "a role (partition-leader, isr-follower, metadata-leader, group-coordinator, any, minority, "
    "majority, all), a node id, or several"
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
        text="Begin a fault on links, until mend.",
        call=_of_nemesis("inflict"),
        answer=_NODES,
        parameters=(
            Parameter(
                "fault",
                TEXT,
                "a fault on links of `quorumlog chaos list faults`",
                required=True,
                leads=True,
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
        text="End every fault on links; held back bytes arrive.",
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
        call=lambda lab, **given: {"nodes": list(lab.nemesis.holders(**given, in_line=False))},
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
_HISTORIES: Final = (
    Verb(
        name="open-history",
        method="POST",
        path="/v1/histories",
        text="Open a history of clients' operations.",
        call=lambda lab, **given: lab.histories.open(**given),
        answer={"id": 1, "directory": "/path/of/the/cluster/histories/1"},
        parameters=(Parameter("name", TEXT, "the name of the test, for the report"),),
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
    verb.name: verb for verb in (*_PROCESSES, *_LINKS, *_VIEWS, *_HISTORIES)
}
