"""The targets of the nemesis's verbs, and their results, with an event loop or without."""

import asyncio
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import Any, Final, Self

from quorumlog.chaos.back_ends.back_end import NodeUnavailable
from quorumlog.chaos.faults.fault import ALL, CLIENT, NODE_ROLES
from quorumlog.chaos.faults.node_groups import is_rack
from quorumlog.chaos.registered import registered
from quorumlog.cluster.conditions import did_you_mean

NodeIds = tuple[int, ...]
Target = str | int | Sequence[int]
"""A role, `all`, the id of a node, or several ids."""


class NoSuchNode(Exception):
    """No node holds the role; the message has the role and the state of the nodes."""


class NoSuchLink(Exception):
    """A fault on links would have no effect, as in a cluster of one node."""


MISTAKES: Final = (ValueError, NoSuchNode, NoSuchLink, NodeUnavailable)
"""Errors whose message suffices: the traceback ends with the line of the test."""


def is_mistake(info: Any) -> bool:
    """Return whether pytest hides the plugin's frames for this ExceptionInfo."""
    return info is None or isinstance(info.value, MISTAKES)


__tracebackhide__ = is_mistake  # of every function in this module


class Act:
    """One verb of the nemesis. Without an event loop it is finished; a coroutine may await it.

    `seen` is called before its error is raised to the test.
    """

    def __init__(self, future: "Future[NodeIds]", seen: Callable[[], object]) -> None:
        self._future: Final = future
        self._seen: Final = seen

    @property
    def node_ids(self) -> NodeIds:
        """The affected nodes. Waits until the verb is finished."""
        self._seen()
        try:
            return self._future.result()
        except MISTAKES as error:
            raise error.with_traceback(None) from None

    def __await__(self) -> Generator[Any, None, Self]:
        self._seen()
        try:
            yield from asyncio.wrap_future(self._future).__await__()
        except MISTAKES as error:
            raise error.with_traceback(None) from None
        return self


class Passing:
    """A fault for the time of a block: `with nemesis.paused(...)`, or `async with`.

    The block receives the ids of the nodes.
    """

    def __init__(self, begin: Callable[[], Act], end: Callable[[NodeIds], Act]) -> None:
        self._begin: Final = begin
        self._end: Final = end
        self._node_ids: NodeIds = ()

    def __enter__(self) -> NodeIds:
        self._node_ids = self._begin().node_ids
        return self._node_ids

    def __exit__(self, *_: object) -> None:
        _ = self._end(self._node_ids).node_ids

    async def __aenter__(self) -> NodeIds:
        self._node_ids = (await self._begin()).node_ids
        return self._node_ids

    async def __aexit__(self, *_: object) -> None:
        await self._end(self._node_ids)


def of_nodes(target: Target) -> Target:
    """Return the target. Raises ValueError for the clients, which have no process of ours."""
    if target == CLIENT:
        raise ValueError("clients are no nodes: only faults on links hit them")
    return target


def known_role(role: str) -> str:
    """Return the role. Raises ValueError, with all roles, for an unknown one."""
    if not is_rack(role):
        registered(dict.fromkeys((*NODE_ROLES, ALL)), role, "role")
    return role


def require_running(node_ids: Sequence[int], running: Sequence[int]) -> None:
    """Raise NodeUnavailable, before a verb has any effect, for nodes that do not run."""
    if dead := tuple(node_id for node_id in node_ids if node_id not in running):
        raise NodeUnavailable(f"node {names(dead)} does not run", dead)


def require_topic(topic: str, known: Sequence[str]) -> None:
    """Raise ValueError for a topic that does not exist. `known`: empty if no node answers."""
    if known and topic not in known and not topic.startswith("__"):
        raise ValueError(f"there is no topic {topic}{did_you_mean(topic, known)}")


def in_coroutine() -> bool:
    """Return whether an event loop runs in this thread: then a verb is awaited."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def names(node_ids: Sequence[int]) -> str:
    """Return the ids of nodes as they stand in a row of a history."""
    return ",".join(map(str, node_ids))
