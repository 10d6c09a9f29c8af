"""The shards of one internal topic, driven by the running event loop."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from quorumlog.broker.coordination.core.coordinator import Coordinator, CoordinatorRequest
from quorumlog.broker.coordination.core.coordinator_shard import CoordinatorShard
from quorumlog.broker.coordination.core.effects import OwnEffect
from quorumlog.broker.coordination.driver.shard_driver import CoordinatorLog, ShardDependencies
from quorumlog.broker.coordination.driver.shard_set import ShardSet
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.identifiers import TopicPartition

R = TypeVar("R")
CoordinatorT = TypeVar("CoordinatorT", bound=Coordinator)


class EventLoopShards(ShardSet[CoordinatorT]):
    """A ShardSet with futures, whose timers are those of the event loop."""

    def __init__(
        self,
        topic: str,
        *,
        partitions: int,
        replicas: CoordinatorLog,
        new_coordinator: Callable[[], CoordinatorT],
        load_buffer_bytes: int,
        on_fatal: Callable[[InvariantViolation], None],
        perform_own: Callable[[TopicPartition, OwnEffect], None],
        wall_ms: Callable[[], int],
        shard: type[CoordinatorShard[CoordinatorT]] = CoordinatorShard,
    ) -> None:
        """Mutants replace `shard`."""
        self._wall_ms: Final = wall_ms
        self._started_ms: float | None = None
        dependencies = ShardDependencies(
            log=replicas,
            load_buffer_bytes=load_buffer_bytes,
            now_ms=self.now_ms,
            soon=_soon,
            call_at=self._call_at,
            perform_own=perform_own,
            on_fatal=on_fatal,
        )
        super().__init__(
            topic,
            partitions=partitions,
            new_shard=lambda: shard(new_coordinator, self.now_ms()),
            dependencies=dependencies,
        )

    def ask(
        self, topic_partition: TopicPartition, request: CoordinatorRequest[R]
    ) -> asyncio.Future[R]:
        """Return a Future of the response, already done if the response needs no commit."""
        response: asyncio.Future[R] = asyncio.get_running_loop().create_future()

        def answer(result: R) -> None:
            if not response.done():  # cancelled if the client has disconnected
                response.set_result(result)

        self.serve(topic_partition, request, answer)
        return response

    def now_ms(self) -> int:
        """Return the wall-clock time of the start, plus the monotonic time and advances since."""
        elapsed_ms = asyncio.get_running_loop().time() * 1000
        if self._started_ms is None:
            self._started_ms = self._wall_ms() - elapsed_ms
        return int(self._started_ms + elapsed_ms)

    def advance(self, by_ms: int) -> None:
        """Follow an advance of the wall clock, and check all expiries; 0: only check them."""
        if self._started_ms is None:
            return  # no coordinator is here, and the first will start at the advanced clock
        self._started_ms += by_ms
        self.clock_advanced(by_ms)

    def _call_at(self, deadline_ms: int, action: Callable[[], None]) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        return loop.call_at(loop.time() + max(deadline_ms - self.now_ms(), 0) / 1000, action)


def _soon(action: Callable[..., None], *arguments: object) -> None:
    asyncio.get_running_loop().call_soon(action, *arguments)
