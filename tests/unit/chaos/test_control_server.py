"""The control server over a nemesis whose back end only records: routes, errors, order, leaks."""

import asyncio
import http.client
import inspect
import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from quorumlog.chaos.control.histories import Histories
from quorumlog.chaos.control.lab import Lab
from quorumlog.chaos.control.manual_nemesis import ManualNemesis
from quorumlog.chaos.control.openapi import PATH, document
from quorumlog.chaos.control.server import BODY_BYTES_MAX, ControlServer
from quorumlog.chaos.control.verb import Verb
from quorumlog.chaos.control.verbs import VERBS
from quorumlog.cli.nemesis_commands import app
from quorumlog.client.sync.loop_thread import LoopThread
from quorumlog.cluster import ClusterError, LocalCluster
from tests.support.testing.fake_back_end import FakeBackEnd
from tests.support.waiting import until

TOKEN = "the token of this test"
SEND = {"process": 0, "f": "send", "micro": [{"key": "orders-0", "value": 7}]}


class FakeCluster:
    bootstrap = "127.0.0.1:1"

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.is_asked = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()

    def status(self) -> dict[str, Any]:
        self.is_asked.set()
        self.may_answer.wait(10)
        if self.error is not None:
            raise self.error
        return {"nodes": [{"id": 1}], "topics": {"orders": {}, "__consumer_offsets": {}}}


class Client:
    """Requests to one control server."""

    def __init__(self, url: str) -> None:
        self.address = urlsplit(url)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(
            cast(str, self.address.hostname), self.address.port, timeout=10
        )

    def __call__(
        self, method: str, path: str, body: object = None, token: str | None = TOKEN
    ) -> tuple[int, dict[str, Any]]:
        connection = self.connect()
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            connection.request(method, path, raw, headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()


@pytest.fixture
def back_end() -> FakeBackEnd:
    return FakeBackEnd({("partition-leader", "orders"): [2], ("partition-leader", "bills"): [3]})


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def histories(tmp_path: Path) -> Iterator[Histories]:
    made = Histories(tmp_path, lambda: {"bootstrap_servers": FakeCluster.bootstrap})
    yield made
    made.close()


@pytest.fixture
def ask(back_end: FakeBackEnd, cluster: FakeCluster, histories: Histories) -> Iterator[Client]:
    nemesis = ManualNemesis(
        back_end,
        topics=lambda: ["orders"],
        topic=None,
        seed=1,
        record=histories.note,
        outlives=False,
    )
    server = ControlServer(Lab(cast(LocalCluster, cluster), nemesis, histories), token=TOKEN)
    loop = LoopThread.acquire(server)
    try:
        with nemesis:
            yield Client(loop.run(server.start()))
            loop.run(server.stop())
    finally:
        loop.release(server)


def test_a_verb_hits_a_role_a_node_or_several(ask: Client, back_end: FakeBackEnd) -> None:
    assert ask("POST", "/v1/kill", {"target": "partition-leader", "topic": "orders"}) == (
        200,
        {"nodes": [2]},
    )
    assert ask("POST", "/v1/pause", {"target": 1}) == (200, {"nodes": [1]})
    assert ask("POST", "/v1/start") == (200, {"nodes": [2]})
    assert ask("POST", "/v1/resume", {"target": [1]}) == (200, {"nodes": [1]})
    assert back_end.done == [("kill", (2,)), ("pause", (1,)), ("start", (2,)), ("resume", (1,))]


def test_links_are_cut_and_mended(ask: Client, back_end: FakeBackEnd) -> None:
    delay = {"fault": "delay", "target": [1, 2], "min_us": 5, "spread_us": 0}
    assert ask("POST", "/v1/inflict", delay) == (200, {"nodes": [1, 2]})
    assert ask("POST", "/v1/isolate", {"target": "client"}) == (200, {"nodes": []})
    assert len(back_end.rules) == 2
    assert ask("POST", "/v1/mend") == (200, {"nodes": [1, 2]})
    assert back_end.rules == {}


def test_views_read_a_query(ask: Client) -> None:
    assert ask("GET", "/v1/holders?role=partition-leader&topic=bills") == (200, {"nodes": [3]})
    assert ask("GET", "/v1/nodes") == (200, {"nodes": [{"id": 1}]})
    assert ask("GET", "/v1/status")[1]["topics"].keys() == {"orders", "__consumer_offsets"}


@pytest.mark.parametrize("token", [None, "", "another", TOKEN + "x", "\xff"])
def test_without_the_token_no_verb_is_carried_out(
    ask: Client, back_end: FakeBackEnd, token: str | None
) -> None:
    status, answer = ask("POST", "/v1/kill", {"target": 1}, token)
    assert (status, {*answer}) == (401, {"error", "hint"})
    assert back_end.done == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("POST", "/v1/kil", {}, 404, "did you mean /v1/kill?"),
        ("POST", "/", {}, 404, PATH),
        ("GET", "/v1/kill", None, 405, "takes POST"),
        ("POST", "/v1/holders", None, 405, "takes GET"),
        ("POST", "/v1/kill", {"targt": 1}, 400, "did you mean target?"),
        ("POST", "/v1/mend", {"target": 1}, 400, "it has none"),
        ("POST", "/v1/kill", {"target": "partition-leadr"}, 400, "did you mean partition-leader?"),
        ("POST", "/v1/kill", {"target": "client"}, 400, "clients are no nodes"),
        ("POST", "/v1/kill", {"target": 7}, 409, "this cluster has 1,2,3"),
        ("POST", "/v1/kill", {"target": 1.5}, 400, "must be a role"),
        ("POST", "/v1/kill", {"target": True}, 400, "must be a role"),
        ("POST", "/v1/kill", {"target": []}, 400, "must be a role"),
        ("POST", "/v1/kill", {"topic": 1}, 400, "must be a text"),
        ("POST", "/v1/isolate", {}, 400, "isolate needs target"),
        ("POST", "/v1/kill?target=1", {}, 400, "as a JSON object"),
        ("POST", "/v1/kill", b'{"target": 1', 400, "no JSON"),
        ("POST", "/v1/kill", b"\xff", 400, "no JSON"),
        ("POST", "/v1/kill", b"[" * 100_000, 400, "no JSON"),
        ("POST", "/v1/kill", [1], 400, "no JSON object"),
        ("POST", "/v1/inflict", {"fault": "dela", "target": 1}, 400, "did you mean delay?"),
        ("POST", "/v1/inflict", {"fault": "delay", "target": 1, "min": 1}, 400, "min_us"),
        ("POST", "/v1/inflict", {"fault": "delay", "target": 1, "min_us": "1"}, 400, "whole"),
        ("POST", "/v1/inflict", {"fault": "delay", "target": 1, "min_us": -1}, 400, "from"),
        ("POST", "/v1/delay", {"min_ms": 1.5}, 400, "must be a whole number"),
        ("GET", "/v1/holders", None, 400, "holders needs role"),
        ("GET", "/v1/holders?role=leader", None, 400, "choose from partition-leader"),
        ("GET", "/v1/holders?role=any&topics=x", None, 400, "did you mean topic?"),
        ("GET", "/v1/holders?role=any&role=all", None, 400, "role is given twice"),
        ("POST", "/v1/kill", b'{"target": 1, "target": 2}', 400, "target is given twice"),
        ("POST", "/v1/histories", {"model": "regster"}, 400, "did you mean register?"),
        ("POST", "/v1/histories", {"model": "cas-register={"}, 400, "is not JSON"),
        ("POST", "/v1/histories", {"model": "os:sep"}, 400, "as an entry point"),
        ("POST", "/v1/histories/7/verdict", None, 400, "there is no history 7"),
        ("POST", "/v1/histories/x/verdict", None, 400, "must be a whole number"),
        ("POST", "/v1/histories/1/operations", {"operations": [], "id": 2}, 400, "in the path"),
    ],
)
def test_a_mistake_has_an_error_and_a_hint_and_no_effect(  # noqa: PLR0917 - a table
    ask: Client, back_end: FakeBackEnd, method: str, path: str, body: object, status: int, said: str
) -> None:
    answered, answer = ask(method, path, body)
    assert (answered, {*answer}) == (status, {"error", "hint"})
    assert said in f"{answer['error']}; {answer['hint']}"
    assert back_end.done == []
    assert back_end.rules == {}


def test_a_body_has_a_limit(ask: Client) -> None:
    connection = ask.connect()
    connection.putrequest("POST", "/v1/kill")
    connection.putheader("Authorization", f"Bearer {TOKEN}")
    connection.putheader("Content-Length", str(BODY_BYTES_MAX + 1))
    connection.endheaders()
    with suppress(ConnectionError):  # the server may close the connection before it has all
        connection.send(b" " * (BODY_BYTES_MAX + 1))
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize(
    ("error", "status", "hint"),
    [
        (ClusterError("it is down; start it"), 409, "start it"),
        (TimeoutError(), 409, "timeout_ms"),
        (OSError(28, "no space"), 409, "status"),
        (ZeroDivisionError("x"), 500, "a bug of quorumlog"),
    ],
)
def test_errors_of_the_cluster_have_a_status(
    ask: Client, cluster: FakeCluster, error: Exception, status: int, hint: str
) -> None:
    cluster.error = error
    answered, answer = ask("GET", "/v1/status")
    assert answered == status
    assert hint in answer["hint"]


def test_a_node_that_refuses_is_a_conflict(ask: Client, back_end: FakeBackEnd) -> None:
    back_end.refuses.add(2)
    assert ask("POST", "/v1/kill", {"target": 2}) == (
        409,
        {"error": "kill: no", "hint": "GET /v1/nodes shows the nodes and their states"},
    )


def test_a_view_that_waits_does_not_block_a_verb(
    ask: Client, cluster: FakeCluster, back_end: FakeBackEnd
) -> None:
    cluster.may_answer.clear()
    view = threading.Thread(target=ask, args=("GET", "/v1/status"))
    view.start()
    assert cluster.is_asked.wait(10)
    assert ask("POST", "/v1/kill", {"target": 1})[0] == 200
    assert view.is_alive()
    cluster.may_answer.set()
    view.join()
    assert back_end.done == [("kill", (1,))]


async def test_the_verb_of_a_client_that_has_gone_is_carried_out(
    ask: Client, back_end: FakeBackEnd
) -> None:
    connection = ask.connect()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    connection.request("POST", "/v1/kill", json.dumps({"target": [1, 2, 3]}), headers)
    connection.close()
    await until(lambda: back_end.done == [("kill", (1, 2, 3))])
    assert ask("POST", "/v1/start")[1] == {"nodes": [1, 2, 3]}


def test_a_thousand_calls_leave_nothing(ask: Client) -> None:
    calls = [
        ("POST", "/v1/pause", {"target": 1}, TOKEN),
        ("POST", "/v1/resume", {}, TOKEN),
        ("POST", "/v1/kil", {}, TOKEN),
        ("POST", "/v1/kill", {"target": "nobody"}, TOKEN),
        ("GET", "/v1/status", None, TOKEN),
        ("POST", "/v1/heal", {}, "wrong"),
        ("POST", "/v1/histories/9/verdict", {}, TOKEN),
        ("GET", PATH, None, None),
    ]
    for call in calls * 9:  # threads of views are started up to their number
        ask(*call)
    before = _held()
    for _ in range(125):
        for call in calls:
            ask(*call)
    assert _held() == before


def _held() -> tuple[int, int, int]:
    """Return the numbers of open descriptors, of threads, and of tasks on the server's loop."""
    loop = cast(LoopThread, LoopThread.shared)

    async def tasks() -> int:
        while len(asyncio.all_tasks()) > 1:  # the ends of the last connections
            await asyncio.sleep(0.005)
        return len(asyncio.all_tasks())

    count = loop.run(tasks(), timeout_s=10)
    return len([*Path("/proc/self/fd").iterdir()]), threading.active_count(), count


def test_a_history_takes_operations_whole_or_not_at_all(ask: Client, histories: Histories) -> None:
    status, opened = ask("POST", "/v1/histories", {"name": "orders"})
    assert (status, opened["id"]) == (200, 1)
    path = "/v1/histories/1/operations"
    invoked = {**SEND, "type": "invoke"}
    for wrong, said in [
        ({**SEND, "type": "ok"}, "process 0 has begun no operation"),
        ({**invoked, "index": 0}, "index is assigned"),
        ({**invoked, "proces": 0}, "did you mean process?"),
        ({**invoked, "process": -1}, "process must be"),
        ({**invoked, "type": "done"}, "type must be"),
        ({**invoked, "f": "sendd"}, "did you mean send?"),
        ({**invoked, "f": "write"}, "none of the operations of kafka_log"),
        ({**invoked, "f": ""}, "none of the operations of kafka_log"),
        ({**invoked, "f": "txn"}, "none of the micro-operations of a txn"),
        ({**invoked, "micro": [{"key": "orders", "value": 1}]}, "topic-partition"),
        ({**invoked, "micro": [{"key": "orders-0", "value": None}]}, "value must be"),
        ({**invoked, "micro": [{"key": "orders-0", "value": 1 << 63}]}, "beyond 64 bits"),
        ({**invoked, "micro": [{"key": "orders-0", "offset": -2}]}, "offset must be"),
    ]:
        status, answer = ask("POST", path, {"operations": [{**invoked, "process": 5}, wrong]})
        assert status == 400
        assert said in answer["error"], answer
        assert answer["error"].startswith("operations[1]")
    acknowledged = {**SEND, "type": "ok"}
    assert ask("POST", path, {"operations": [invoked, acknowledged]}) == (200, {"events": 2})
    ask("POST", "/v1/kill", {"target": 1})
    rows = (Path(opened["directory"]) / "history.jsonl").read_text().splitlines()[1:]
    assert [(row["process"], row["f"], row["type"]) for row in map(json.loads, rows)] == [
        (0, "send", "invoke"),
        (0, "send", "ok"),
        (-1, "kill", "info"),
    ]


@pytest.mark.parametrize(
    ("model", "events", "valid"),
    [
        ("register", [("write", 1), ("read", 1)], True),
        ("register", [("write", "a"), ("read", "b")], False),
        ("cas-register=0", [("read", 0), ("cas", [0, 1]), ("read", 1)], True),
        ("cas-register=0", [("read", 5)], False),
        ("set", [("add", 1), ("read", [1])], True),
        ("list-append", [("txn", [("append", 1), ("r", [1])])], True),
        ("list-append", [("txn", [("append", 1), ("r", [7])])], False),
    ],
)
def test_a_history_of_any_model_is_judged_by_its_rules(
    ask: Client, model: str, events: list[tuple[str, Any]], valid: bool
) -> None:
    assert ask("POST", "/v1/histories", {"model": model})[0] == 200
    operations = []
    for f, value in events:
        values: list[tuple[str, Any]] = [("", value)]
        if f == "txn":
            values = value
        elif f == "cas":
            values = [("", one) for one in value]
        micro = [{"key": "x", "value": one, **({"f": of} if of else {})} for of, one in values]
        begun = [
            {**one, "value": None} if (one.get("f") or f) in {"r", "read"} else one for one in micro
        ]
        operations += [
            {"process": 0, "type": "invoke", "f": f, "micro": begun},
            {"process": 0, "type": "ok", "f": f, "micro": micro},
        ]
    path = "/v1/histories/1/operations"
    assert ask("POST", path, {"operations": operations}) == (200, {"events": len(operations)})
    status, verdict = ask("POST", "/v1/histories/1/verdict")
    assert status == 200, verdict
    assert (verdict["model"], verdict["valid"]) == (model.partition("=")[0], valid), verdict
    wrong = {"process": 1, "type": "invoke", "f": "send"}
    assert ask("POST", "/v1/histories", {"model": model})[1]["id"] == 2
    status, answer = ask("POST", "/v1/histories/2/operations", {"operations": [wrong]})
    assert (status, "f = 'send' is none of the operations" in answer["error"]) == (400, True)


def test_open_histories_have_a_limit(ask: Client) -> None:
    for number in range(100):
        assert ask("POST", "/v1/histories")[1]["id"] == number + 1
    status, answer = ask("POST", "/v1/histories")
    assert status == 409
    assert "100 histories are open" in answer["error"]


# --- the faces of the table ---


def routes() -> set[tuple[str, str]]:
    server = ControlServer(cast(Lab, None), token="")
    found = {
        (route.method, route.resource.canonical)
        for route in server._runner.app.router.routes()
        if route.resource is not None
    }
    return found - {("GET", PATH)}


def test_routes_document_and_commands_are_the_table() -> None:
    documented = {
        (method.upper(), path): operation["operationId"]
        for path, methods in document()["paths"].items()
        for method, operation in methods.items()
    }
    assert documented == {(verb.method, verb.path): verb.name for verb in VERBS.values()}
    assert routes() == documented.keys()
    assert {one.name for one in app.registered_commands} == VERBS.keys()


@pytest.mark.parametrize("verb", VERBS.values(), ids=lambda verb: verb.name)
def test_a_parameter_is_documented_and_an_option(verb: Verb) -> None:
    operation = document()["paths"][verb.path][verb.method.lower()]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = body.get("schema", {"properties": {}})
    outside = {one["name"] for one in operation.get("parameters", ())}
    assert outside | schema["properties"].keys() == verb.by_name.keys()
    assert not outside & schema["properties"].keys()
    (command,) = [one for one in app.registered_commands if one.name == verb.name]
    options = inspect.signature(cast(Any, command.callback)).parameters.keys()
    assert options - {"directory", "json", "set"} == verb.by_name.keys()
    assert ("set" in options) == bool(verb.others)


async def test_the_document_needs_no_token(ask: Client) -> None:
    status, answer = ask("GET", PATH, None, None)
    assert (status, answer) == (200, document())
