"""Cancels requests to a leader that does not respond: it is paused, cut off, or was replaced.

The leader's connection stays open. So the client requests metadata when a response is overdue, and
cancels the request when other brokers lead all of its partitions. This is safe for requests that
can be repeated: a fetch always, a produce request if it is idempotent. The lookout logs leaders
with overdue requests as the cause for their partitions.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from quorumlog.client.io.cluster import Cluster
from quorumlog.client.io.lookout import Failure
from quorumlog.wire.codec.identifiers import TopicPartition

OVERDUE_AFTER_MS: Final = 1_000
OVERDUE_CHECK_MS: Final = 200  # while a request is overdue


@dataclass(slots=True, kw_only=True, eq=False)
class Outstanding:
    """One request that waits for its response, in `task`."""

    broker_id: int
    partitions: Collection[TopicPartition]
    task: "asyncio.Task[None] | None"  # None: never cancelled
    began_ms: float
    overdue_ms: float


class StalledRequests:
    """Watches one client's requests to leaders; cancels overdue requests to former leaders."""

    def __init__(self, cluster: Cluster, api: str) -> None:
        """Watch requests of the API with the name `api`."""
        self._cluster: Final = cluster
        self._api: Final = api
        self._loop: Final = asyncio.get_running_loop()
        self._requests: Final[dict[Outstanding, None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        cluster.on_change.append(self._cancel_superseded)
        cluster.lookout.silences.append(self._silent)

    def begin(
        self,
        broker_id: int,
        partitions: Collection[TopicPartition],
        *,
        wait_ms: float = 0,
        may_cancel: bool = True,
    ) -> Outstanding:
        """Watch the current task's request; `wait_ms`: how long the broker may wait by its fields.

        `may_cancel`: the request can be repeated.
        """
        task = asyncio.current_task() if may_cancel else None
        if task is None and may_cancel:
            raise RuntimeError("only a task's request can be given up")
        now_ms = self._cluster.now_ms()
        outstanding = Outstanding(
            broker_id=broker_id,
            partitions=partitions,
            task=task,
            began_ms=now_ms,
            overdue_ms=now_ms + wait_ms + OVERDUE_AFTER_MS,
        )
        self._requests[outstanding] = None
        if self._timer is None:
            self._timer = self._loop.call_later(OVERDUE_AFTER_MS / 1000, self._check)
        return outstanding

    def end(self, outstanding: Outstanding) -> None:
        """Stop watching a request, with or without a response."""
        self._requests.pop(outstanding, None)

    def _overdue(self) -> list[Outstanding]:
        now_ms = self._cluster.now_ms()
        return [request for request in self._requests if request.overdue_ms <= now_ms]

    def _silent(self) -> dict[int, Failure]:
        """Return the brokers with overdue requests, each with the begin of its oldest."""
        silent: dict[int, Failure] = {}
        for request in self._overdue():  # the oldest comes first
            cause = f"does not answer {self._api}"
            silent.setdefault(request.broker_id, Failure(cause, request.began_ms))
        return silent

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
            task = request.task
            if task is not None and all(
                one is not None and one.broker_id != request.broker_id for one in leaders
            ):
                self.end(request)
                task.cancel()

    def close(self) -> None:
        """Stop watching."""
        self._cluster.on_change.remove(self._cancel_superseded)
        self._cluster.lookout.silences.remove(self._silent)
        if self._timer is not None:
            self._timer.cancel()
