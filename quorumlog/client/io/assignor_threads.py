"""Runs an assignor in a thread: its work grows with partitions, and a user's assignor may block."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, TypeVar

from quorumlog.client.assignor import Members
from quorumlog.client.core.assignors import assign
from quorumlog.client.core.group_protocol import encode_assignment
from quorumlog.client.core.membership_events import ComputeAssignment
from quorumlog.client.core.metadata_cache import MetadataCache, Node, TopicView, racks_of
from quorumlog.client.errors import AssignorError
from quorumlog.wire.codec.identifiers import TopicPartition

T = TypeVar("T")

_NO_RACKS: Final = frozenset[str]()


async def computed_assignments(
    effect: ComputeAssignment, metadata: MetadataCache, limit_ms: float
) -> tuple[tuple[str, bytes], ...]:
    """Return each member's encoded assignment, by member id.

    Raises AssignorError, also if the assignor does not return within `limit_ms`: its thread is left
    alone then.
    """
    # Later metadata replaces these objects, but for leaders.
    topics = {name: metadata.topics[name] for name in effect.counts if name in metadata.topics}
    nodes = {**metadata.nodes}

    def compute() -> tuple[tuple[str, bytes], ...]:
        partitions = _partitions(effect.counts, effect.members, topics, nodes)
        assignment = assign(effect.assignor, effect.members, partitions)
        return tuple((one, encode_assignment(assignment[one])) for one in sorted(assignment))

    if not effect.assignor.is_own:
        return await asyncio.get_running_loop().run_in_executor(None, compute)
    try:
        async with asyncio.timeout(limit_ms / 1000):
            return await _in_daemon_thread(compute)
    except TimeoutError:
        why = f"did not return within max_poll_interval_ms={limit_ms:g}"
        raise AssignorError(effect.assignor.name, why) from None


def _partitions(
    counts: Mapping[str, int],
    members: Members,
    topics: Mapping[str, TopicView],
    nodes: Mapping[int, Node],
) -> dict[TopicPartition, frozenset[str]]:
    """Return all partitions, sorted, with the racks of their replicas if a member has a rack."""
    has_racks = any(member.rack is not None for member in members.values())
    known: dict[tuple[int, ...], frozenset[str]] = {}

    def racks(topic: str, index: int) -> frozenset[str]:
        view = topics[topic].partitions.get(index) if has_racks and topic in topics else None
        if view is None:
            return _NO_RACKS
        if view.replicas not in known:
            known[view.replicas] = racks_of(view.replicas, nodes)
        return known[view.replicas]

    return {
        TopicPartition(topic, index): racks(topic, index)
        for topic in sorted(counts)
        for index in range(counts[topic])
    }


async def _in_daemon_thread(work: Callable[[], T]) -> T:
    """Return the result of `work`. A thread that is still blocked does not keep Python alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def end(result: T | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # T, as there is no error

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as raised:  # noqa: BLE001 - it is raised in the event loop
            error = raised
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(end, result, error)

    threading.Thread(target=run, name="quorumlog-assignor", daemon=True).start()
    return await future
