"""A crowd of raw producers: many acks=all batches at once, each on a connection of its own.

On one connection the responses leave in the order of the requests, so that an early one waits for
those before it. Here each arrives as soon as it is sent, while the other batches still wait.
"""

import asyncio
from typing import Any, Final, NamedTuple

from quorumlog.chaos.history.exchanges import ALL
from quorumlog.chaos.rude_clients import produce_plans as plans
from quorumlog.chaos.rude_clients.cluster_view import Leader
from quorumlog.chaos.rude_clients.produce_attempts import (
    ProduceAttempt,
    produce_version,
    records_of,
)
from quorumlog.chaos.rude_clients.produce_plans import PlannedBatch
from quorumlog.chaos.rude_clients.raw_client import RawClient

CONNECTIONS: Final = 8


class _Producer(NamedTuple):
    """A member of the crowd. Its processes: in the rows of a log, and of exchanges."""

    slot: str
    of_log: int
    of_wire: int


class Crowd(RawClient):
    """Sends a burst to one partition after the other, without idempotence."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        numbers = self.numbers
        self._producers: Final = [
            _Producer(f"producer {index}", next(numbers.processes), next(numbers.wire_processes))
            for index in range(CONNECTIONS)
        ]

    async def run(self, working: asyncio.Event, gap_s: float) -> None:
        """Send a record every `gap_s` on average, until `working` is cleared."""
        try:
            while working.is_set():
                sent = await self._burst()
                if sent == 0:
                    await self.pause()
                await asyncio.sleep(self.rng.expovariate(1 / (gap_s * max(1, sent))))
        finally:
            await self.view.close()

    async def _burst(self) -> int:
        """Send a batch by each producer at once; return the number of the records."""
        partition = self.rng.randrange(self.partitions)
        leader = self.view.leaders.get(partition)
        if leader is None or await self.view.connection(leader.node) is None:
            return 0
        sent = await asyncio.gather(
            *(self._send(one, partition, leader) for one in self._producers)
        )
        return 0 if 0 in sent else sum(sent)

    async def _send(self, producer: _Producer, partition: int, leader: Leader) -> int:
        """Send one batch; return the number of its records, 0 if it was not acknowledged."""
        connection = await self.view.connection(leader.node, producer.slot)
        if connection is None:
            return 0
        version = produce_version(self, connection)
        batch: PlannedBatch = plans.draw_batches(self.rng, None, version, self.numbers.values)[0]
        messages = records_of(self.key(partition), [batch])
        self.history.append(producer.of_log, "invoke", "send", messages)
        self.begin("wire_produce", producer.of_wire)
        attempt = ProduceAttempt(self, partition, leader, connection)
        [result] = await attempt.send(ALL, version, [batch])
        self.end("wire_produce", attempt.facts, producer.of_wire)
        if result is None or result[0] != 0:
            error = "UNKNOWN: the batch was not acknowledged by all replicas"
            self.history.append(producer.of_log, "info", "send", messages, error=error)
            return 0
        completed = [one._replace(offset=result[1] + place) for place, one in enumerate(messages)]
        self.history.append(producer.of_log, "ok", "send", completed)
        return len(messages)
