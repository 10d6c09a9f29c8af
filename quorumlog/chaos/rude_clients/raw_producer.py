"""A raw producer: pipelined bursts, repeats, gaps, old epochs; all acks, versions and codecs."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from quorumlog.chaos.history import UNKNOWN_OFFSET, Message
from quorumlog.chaos.history.exchanges import ALL
from quorumlog.chaos.rude_clients import produce_plans as plans
from quorumlog.chaos.rude_clients.connection import RawConnection
from quorumlog.chaos.rude_clients.produce_attempts import (
    ProduceAttempt,
    produce_version,
    records_of,
)
from quorumlog.chaos.rude_clients.produce_plans import PlannedBatch, ProducerState
from quorumlog.chaos.rude_clients.raw_client import RawClient
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.init_producer_id import InitProducerIdRequest

ATTEMPTS_MAX: Final = 5
_FINAL: Final = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH}
)
"""Errors after which a batch out of turn is never appended."""


class RawProducer(RawClient):
    """Sends one burst after the other; each partition has a producer id of its own."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._states: Final[dict[int, ProducerState]] = {}
        self._of_log: Final = next(self.numbers.processes)
        self._out_of_turn: Final = next(self.numbers.processes)

    async def run(self, working: asyncio.Event, gap_s: float) -> None:
        """Send a record every `gap_s` on average, until `working` is cleared."""
        loop = asyncio.get_running_loop()
        try:
            due_s = loop.time()
            while working.is_set():
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                records = await self._burst(working)
                due_s = max(due_s, loop.time() - 1.0)
                due_s += self.rng.expovariate(1 / (gap_s * max(1, records)))
        finally:
            await self.view.close()

    async def _burst(self, working: asyncio.Event) -> int:
        partition = self.rng.randrange(self.partitions)
        connection = await self._leading(partition)
        if connection is None:
            await self.pause()
            return 1
        state = None
        if plans.draws_idempotent(self.rng):
            state = await self._state(partition, connection)
            if state is None:
                return 1
        acks = plans.draw_acks(self.rng, idempotent=state is not None)
        version = produce_version(self, connection)
        batches = plans.draw_batches(self.rng, state, version, self.numbers.values)
        messages = records_of(self.key(partition), batches)
        self.history.append(self._of_log, "invoke", "send", messages)
        if state is None:
            ends = await self._attempt(partition, acks, version, batches)
            if len(ends) < len(batches) and acks != 0:
                await self.pause()
        else:
            ends = await self._idempotent(partition, state, version, batches, working)
        self._complete(messages, batches, ends if acks == ALL else {})
        return len(messages)

    async def _leading(self, partition: int) -> RawConnection | None:
        leader = self.view.leaders.get(partition)
        return None if leader is None else await self.view.connection(leader.node)

    async def _state(self, partition: int, connection: RawConnection) -> ProducerState | None:
        """Return the producer of a partition, a new one at times; None: no producer id."""
        state = self._states.get(partition)
        if state is not None and not plans.ends_life(self.rng):
            plans.maybe_next_epoch(self.rng, state)
            return state
        self._states.pop(partition, None)
        version = self.view.draw_version(connection, InitProducerIdRequest)
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000)
        answered = await connection.exchange(request, version)
        if answered.response is None or answered.response.error_code:
            await self.pause()
            return None
        state = self._states[partition] = ProducerState(
            producer_id=answered.response.producer_id, epoch=answered.response.producer_epoch
        )
        return state

    def _complete(
        self,
        messages: Sequence[Message],
        batches: Sequence[PlannedBatch],
        ends: dict[PlannedBatch, int],
    ) -> None:
        """Write the completion of a send; `ends`: base offsets of the acknowledged batches."""
        offsets = [
            ends[batch] + place if batch in ends else UNKNOWN_OFFSET
            for batch in batches
            for place in range(len(batch.records))
        ]
        completed = [one._replace(offset=at) for one, at in zip(messages, offsets, strict=True)]
        is_ok = all(batch in ends for batch in batches)
        error = "" if is_ok else "UNKNOWN: not all batches were acknowledged by all replicas"
        self.history.append(self._of_log, "ok" if is_ok else "info", "send", completed, error=error)

    async def _idempotent(
        self,
        partition: int,
        state: ProducerState,
        version: int,
        batches: Sequence[PlannedBatch],
        working: asyncio.Event,
    ) -> dict[PlannedBatch, int]:
        """Send batches until all are acknowledged, as a producer with retries does.

        Return the base offsets. After ATTEMPTS_MAX the producer id is given up.
        """
        following = batches[-1].base_sequence + len(batches[-1].records)
        odd = plans.draw_out_of_turn(self.rng, state, following, version, self.numbers.values)
        ends: dict[PlannedBatch, int] = {}
        for attempt in range(ATTEMPTS_MAX):
            left = [one for one in batches if one not in ends]
            behind = odd if attempt == 0 else None
            ends |= await self._attempt(partition, ALL, version, left, behind)
            if len(ends) == len(batches):
                state.next_sequence = following
                state.recent.extend(batches)
                return ends
            if not working.is_set():
                break
            await self.pause()
        del self._states[partition]
        return ends

    async def _attempt(
        self,
        partition: int,
        acks: int,
        version: int,
        batches: Sequence[PlannedBatch],
        odd: PlannedBatch | None = None,
    ) -> dict[PlannedBatch, int]:
        """Send each batch once, all at once; return the base offsets of the acknowledged ones.

        odd: a batch out of turn, to send behind them.
        """
        connection = await self._leading(partition)
        if connection is None:
            return {}
        every = [*batches, *([] if odd is None else [odd])]
        new = [] if odd is None or not odd.is_new else records_of(self.key(partition), [odd])
        if new:
            self.history.append(self._out_of_turn, "invoke", "send", new)
        self.begin("wire_produce")
        attempt = ProduceAttempt(self, partition, self.view.leaders[partition], connection)
        results = await attempt.send(acks, version, every)
        self.end("wire_produce", attempt.facts)
        if new:
            self._complete_odd(new, results[-1])
        return {
            batch: result[1]
            for batch, result in zip(batches, results, strict=False)
            if result is not None and result[0] == 0
        }

    def _complete_odd(self, messages: Sequence[Message], result: tuple[int, int] | None) -> None:
        """Write the completion of a send out of turn: mostly a refusal, which is final."""
        error, base_offset = result or (None, UNKNOWN_OFFSET)
        completed = [*messages]
        if error == 0:
            completed = [one._replace(offset=base_offset + at) for at, one in enumerate(messages)]
        outcome = "ok" if error == 0 else "fail" if error in _FINAL else "info"
        code = "NO_ANSWER" if error is None else ErrorCode(error).name
        text = "" if error == 0 else f"{code}: sent out of turn"
        self.history.append(self._out_of_turn, outcome, "send", completed, error=text)
