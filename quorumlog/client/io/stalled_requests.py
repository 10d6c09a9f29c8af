"""Cancels requests to a leader that does not answer: it is paused, cut off, or no longer leads.

Its connection stays open. So the client asks for metadata when an answer is overdue, and cancels
the request once another broker leads all of its partitions. That is safe for requests that can be
repeated: a fetch always, a produce request if it is idempotent.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from quorumlog.client.io.cluster import Cluster
from quorumlog.wire.codec.identifiers import TopicPartition

OVERDUE_AFTER_MS: Final = 1_000
OVERDUE_CHECK_MS: Final = 200  # while a request is overdue


@dataclass(slots=True, kw_only=True, eq=False)
class Outstanding:
    """One request that waits for its answer, in `task`."""

    broker_id: int
    partitions: Collection[TopicPartition]
    task: "asyncio.Task[None]"
    overdue_ms: float


class StalledRequests:
    """Watches one client's requests to leaders; cancels those that other brokers must answer."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster: Final = cluster
        self._loop: Final = asyncio.get_running_loop()
        self._requests: Final[dict[Outstanding, None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        cluster.on_change.append(self._cancel_superseded)

    def begin(
        self, broker_id: int, partitions: Collection[TopicPartition], *, wait_ms: float = 0
    ) -> Outstanding:
        """Watch the current task's request; `wait_ms`: how long the broker was asked to wait."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only a task's request can be given up")
        outstanding = Outstanding(
            broker_id=broker_id,
            partitions=partitions,
            task=task,
            overdue_ms=self._cluster.now_ms() + wait_ms + OVERDUE_AFTER_MS,
        )
        self._requests[outstanding] = None
        if self._timer is None:
            self._timer = self._loop.call_later(OVERDUE_AFTER_MS / 1000, self._check)
        return outstanding

    def end(self, outstanding: Outstanding) -> None:
        """Note that the answer came, or will not come."""
        self._requests.pop(outstanding, None)

    def _overdue(self) -> list[Outstanding]:
        now_ms = self._cluster.now_ms()
        return [request for request in self._requests if request.overdue_ms <= now_ms]

    def _check(self) -> None:
        self._timer = None
        delay_ms = OVERDUE_AFTER_MS
        if self._overdue():
            self._cluster.request_update()
            delay_ms = OVERDUE_CHECK_MS
        if self._requests:
            self._timer = self._loop.call_later(delay_ms / 1000, self._check)

    def _cancel_superseded(self) -> None:
        leader = self._cluster.metadata.leader
        for request in self._overdue():
            leaders = [leader(partition) for partition in request.partitions]
            if all(one is not None and one.broker_id != request.broker_id for one in leaders):
                self.end(request)
                request.task.cancel()

    def close(self) -> None:
        """Stop watching."""
        self._cluster.on_change.remove(self._cancel_superseded)
        if self._timer is not None:
            self._timer.cancel()
