"""Time on request: one wall clock for all nodes of a cluster, and passes that go by it.

cluster.json and the nodes' properties record every advance, so a node that is started later has
it from its first moment on. A node receives an advance with all earlier ones, perhaps twice.
"""

import http.client
import json
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from quorumlog.advances import Advance, Advances
from quorumlog.cluster import layout
from quorumlog.cluster.cluster_status import NodeState
from quorumlog.cluster.control_connections import open_connection, operator_context
from quorumlog.cluster.errors import ClusterError, InvalidArgument
from quorumlog.cluster.files import secret_file

if TYPE_CHECKING:
    from quorumlog.cluster.local_cluster import LocalCluster

TIMEOUT_S: Final = 120.0  # a pass over large logs
ROLL_TIMEOUT_S: Final = 10.0  # then no clock has moved
FILE_TIME_STEP_S: Final = 0.01  # Linux gives files the time of its last tick
_SECRET_HEADER: Final = "X-Quorumlog-Secret"  # noqa: S105 - the header's name, not a secret


class _Unreachable(ClusterError):
    """The node does not answer."""


def in_ms(days: float, hours: float, minutes: float, seconds: float, ms: float) -> int:
    """Return a duration in ms. Raises InvalidArgument unless it is above 0."""
    if any(isinstance(one, bool) for one in (days, hours, minutes, seconds, ms)):
        raise InvalidArgument("an advance is by numbers, such as days=7: not by True or False")
    total = ms + 1000 * (seconds + 60 * (minutes + 60 * (hours + 24 * days)))
    if not isfinite(total) or int(total) <= 0:
        raise InvalidArgument(
            f"an advance by {total:.15g} ms: the clock goes only forwards; for example days=7"
        )
    return int(total)


def advance(cluster: "LocalCluster", by_ms: int) -> dict[str, Any]:
    """Advance the clock of every node: `LocalCluster.advance`."""
    now_ms = time.time_ns() // 1_000_000
    earlier = layout.load(cluster.directory).advances  # other processes record theirs, too
    _require_possible((*earlier, (now_ms, by_ms)))
    present, later = _nodes(cluster)
    _post_all(cluster, present, "roll")  # unless all answer, no clock moves
    made = (*earlier, (time.time_ns() // 1_000_000, by_ms))
    cluster.spec = replace(cluster.spec, advances=made)
    layout.save(cluster.directory, cluster.spec)
    with ThreadPoolExecutor(max_workers=len(present)) as pool:
        sent = {one: pool.submit(catch_up, cluster, one) for one in present}
    answers = {one: answer for one, future in sent.items() if (answer := future.result())}
    time.sleep(FILE_TIME_STEP_S)  # then records written from now on are later by their file's time
    return {
        "ahead_ms": sum(one for _, one in made),
        "nodes": [*answers],
        "later": sorted({*later, *present} - answers.keys()),  # some may have died meanwhile
        "removed": _united(answer["removed"] for answer in answers.values()),
    }


def catch_up(cluster: "LocalCluster", node_id: int) -> dict[str, Any] | None:
    """Send all advances to a node; return its answer.

    None: it does not answer. It makes them with its next start or resume, or the next advance.
    """
    made = cluster.spec.advances
    try:
        answer = _post(cluster, node_id, "advance", {"advances": made})
    except _Unreachable:
        return None
    cluster.advances_received[node_id] = len(made)
    return answer


def request_pass(cluster: "LocalCluster", verb: str, topic: str) -> dict[str, Any]:
    """Make a pass over a topic's logs on every running broker. Raises InvalidArgument."""
    brokers = _running_brokers(cluster)
    answers = _post_all(cluster, brokers, verb, {"topic": topic})
    return {"nodes": brokers, "removed": _united(answer["removed"] for answer in answers.values())}


def expire_groups(cluster: "LocalCluster") -> dict[str, Any]:
    """Delete the expired offsets of all groups: `LocalCluster.expire_groups`."""
    brokers = _running_brokers(cluster)
    answers = _post_all(cluster, brokers, "expire-groups")
    offsets: dict[str, int] = {}
    for answer in answers.values():
        offsets |= answer["offsets"]  # a group has one coordinator
    return {"nodes": brokers, "offsets": dict(sorted(offsets.items()))}


def _require_possible(made: tuple[tuple[int, int], ...]) -> None:
    try:
        Advances().extend(Advance(*one) for one in made)
    except ValueError as error:
        raise InvalidArgument(str(error)) from error


def _nodes(cluster: "LocalCluster") -> tuple[list[int], list[int]]:
    """Return the nodes that run, and those that are dead or paused. Raises ClusterError: none."""
    present: list[int] = []
    later: list[int] = []
    for node in cluster.nodes:
        runs = cluster.state(node.id) in {NodeState.RUNNING, NodeState.NO_ANSWER}
        (present if runs else later).append(node.id)
    if not present:
        raise ClusterError("no node of the cluster runs; start() starts them")
    return present, later


def _running_brokers(cluster: "LocalCluster") -> list[int]:
    present, _ = _nodes(cluster)
    brokers = [one for one in present if cluster.spec.node(one).is_broker]
    if not brokers:
        raise ClusterError("no broker of the cluster runs; start() starts them")
    return brokers


def _united(reports: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Return the largest removal of each partition: its replicas remove the same records."""
    united: dict[str, dict[str, int]] = {}
    for report in reports:
        for partition, removed in report.items():
            known = united.get(partition)
            if known is None or removed["records"] > known["records"]:
                united[partition] = dict(removed)
    return dict(sorted(united.items()))


def _post_all(
    cluster: "LocalCluster", node_ids: list[int], verb: str, body: object = None
) -> dict[int, dict[str, Any]]:
    """Send a request to nodes, all at once. Raises the first error, after all have answered."""
    with ThreadPoolExecutor(max_workers=len(node_ids)) as pool:
        sent = {one: pool.submit(_post, cluster, one, verb, body) for one in node_ids}
    return {node_id: future.result() for node_id, future in sent.items()}


def _post(cluster: "LocalCluster", node_id: int, verb: str, body: object = None) -> dict[str, Any]:
    """Send a request to a node's control listener; return its answer.

    Raises InvalidArgument: the node refuses it; ClusterError: it fails, or does not answer.
    """
    address = cluster.spec.control_address(cluster.spec.node(node_id))
    secret = secret_file(cluster.directory)
    headers = {} if secret is None else {_SECRET_HEADER: secret.read_text().strip()}
    timeout_s = ROLL_TIMEOUT_S if verb == "roll" else TIMEOUT_S
    connection = open_connection(address, operator_context(cluster.directory), timeout_s)
    try:
        connection.request("POST", f"/api/v1/{verb}", json.dumps(body or {}), headers)
        response = connection.getresponse()
        status, content = response.status, response.read()
        answer: dict[str, Any] = json.loads(content)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _Unreachable(f"node {node_id} does not answer {verb}: {error}") from error
    finally:
        connection.close()
    if status == http.client.OK:
        return answer
    if status == http.client.BAD_REQUEST:
        raise InvalidArgument(answer["error"])
    raise ClusterError(f"node {node_id}: {answer['error']}")
