"""A raw producer: pipelined bursts, repeats, gaps, old epochs; all acks, versions and codecs."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from quorumlog.chaos.history import UNKNOWN_OFFSET, Message
from quorumlog.chaos.history import exchanges as wire
from quorumlog.chaos.history.exchanges import ALL
from quorumlog.chaos.rude_clients import produce_plans as plans
from quorumlog.chaos.rude_clients.cluster_view import SECOND, Leader
from quorumlog.chaos.rude_clients.connection import Answered, RawConnection
from quorumlog.chaos.rude_clients.produce_plans import PlannedBatch, ProducerState
from quorumlog.chaos.rude_clients.raw_client import RawClient
from quorumlog.chaos.rude_clients.read_requests import look_at_the_end
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import ZERO_UUID
from quorumlog.wire.codec.messages.init_producer_id import InitProducerIdRequest
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

TIMEOUT_MS: Final = 1_500
ATTEMPTS_MAX: Final = 5
TOPIC_IDS_SINCE: Final = 13
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
        """Send one burst; return the number of its records."""
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
        version = self._version(connection)
        batches = plans.draw_batches(self.rng, state, version, self.numbers.values)
        messages = self._messages(partition, batches)
        self.history.append(self._of_log, "invoke", "send", messages)
        if state is None:
            ends = await self._attempt(partition, acks, version, batches)
            if len(ends) < len(batches) and acks != 0:
                await self.pause()
        else:
            ends = await self._idempotent(partition, state, version, batches, working)
        self._complete(messages, batches, ends if acks == ALL else {})
        return len(messages)

    def _version(self, connection: RawConnection) -> int:
        below = 1 << 15 if self.view.topic_id != ZERO_UUID else TOPIC_IDS_SINCE
        return self.view.draw_version(connection, ProduceRequest, least=3, below=below)

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
        answered = await connection.ask(request, version)
        if answered.response is None or answered.response.error_code:
            await self.pause()
            return None
        state = self._states[partition] = ProducerState(
            producer_id=answered.response.producer_id, epoch=answered.response.producer_epoch
        )
        return state

    def _messages(self, partition: int, batches: Sequence[PlannedBatch]) -> list[Message]:
        key = self.key(partition)
        return [Message(key, UNKNOWN_OFFSET, one.value) for batch in batches for one in batch.sent]

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
        told = [one._replace(offset=at) for one, at in zip(messages, offsets, strict=True)]
        is_ok = all(batch in ends for batch in batches)
        error = "" if is_ok else "UNKNOWN: not all batches were acknowledged by all replicas"
        self.history.append(self._of_log, "ok" if is_ok else "info", "send", told, error=error)

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
        new = [] if odd is None or not odd.is_new else self._messages(partition, [odd])
        if new:
            self.history.append(self._out_of_turn, "invoke", "send", new)
        self.begin("wire_produce")
        attempt = _Attempt(self, partition, self.view.leaders[partition], connection)
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
        told = [*messages]
        if error == 0:
            told = [one._replace(offset=base_offset + at) for at, one in enumerate(messages)]
        outcome = "ok" if error == 0 else "fail" if error in _FINAL else "info"
        code = "NO_ANSWER" if error is None else ErrorCode(error).name
        text = "" if error == 0 else f"{code}: sent out of turn"
        self.history.append(self._out_of_turn, outcome, "send", told, error=text)


class _Attempt:
    """One burst on one connection; `facts` has its exchanges.

    After each acks=all that is answered, a second connection requests the end of the log, while
    the other batches wait.
    """

    def __init__(
        self, client: RawClient, partition: int, leader: Leader, connection: RawConnection
    ) -> None:
        self.facts: Final[list[Message]] = []
        self._client: Final = client
        self._partition: Final = partition
        self._leader: Final = leader
        self._connection: Final = connection

    async def send(
        self, acks: int, version: int, batches: Sequence[PlannedBatch]
    ) -> list[tuple[int, int] | None]:
        """Return (error, base offset) of each batch; None without a response."""
        if acks == 0:
            await self._send_silently(version, batches)
            return [None for _ in batches]
        second = await self._client.view.connection(self._leader.node, SECOND)
        requests = [self._request(acks, batch) for batch in batches]
        pending = [self._connection.send(one, version) for one in requests]
        results: list[tuple[int, int] | None] = []
        looking: list[asyncio.Task[list[Message]]] = []
        for batch, future in zip(batches, pending, strict=True):
            answered = await self._connection.within(future)
            result = _result(answered)
            results.append(result)
            self._add(acks, batch, answered, result)
            if acks == ALL and result is not None and result[0] == 0 and second is not None:
                looking.append(asyncio.create_task(self._look(second, result[1])))
        for one in looking:
            self.facts.extend(await one)
        return results

    async def _send_silently(self, version: int, batches: Sequence[PlannedBatch]) -> None:
        """Send with acks=0; a request behind the batches shows that the broker has read them."""
        exchanges = [
            self._connection.send_silently(self._request(0, batch), version) for batch in batches
        ]
        key = self._client.key(self._partition)
        known = max(0, self._client.history.furthest.get(key, 0))
        looked = await self._look(self._connection, known)
        is_received = bool(looked)
        for batch, exchange in zip(batches, exchanges, strict=True):
            self._add(0, batch, Answered(exchange, None), None, is_received=is_received)
        self.facts.extend(looked)

    def _request(self, acks: int, batch: PlannedBatch) -> ProduceRequest:
        data = PartitionProduceData(index=self._partition, records=batch.encoded())
        view = self._client.view
        topic = TopicProduceData(name=view.topic, topic_id=view.topic_id, partition_data=[data])
        return ProduceRequest(acks=acks, timeout_ms=TIMEOUT_MS, topic_data=[topic])

    def _add(
        self,
        acks: int,
        batch: PlannedBatch,
        answered: Answered,
        result: tuple[int, int] | None,
        *,
        is_received: bool = False,
    ) -> None:
        told = {
            "exchange": answered.exchange,
            "acks": acks,
            "producer_id": batch.producer_id,
            "producer_epoch": batch.producer_epoch,
            "base_sequence": batch.base_sequence,
            "error": None if result is None else result[0],
            "leader_epoch": self._leader.epoch,
            "is_received": is_received,
            "records": batch.sent,
            "codec": batch.compression.name.lower(),
            "manner": batch.manner,
        }
        key = self._client.key(self._partition)
        offset = UNKNOWN_OFFSET if result is None else result[1]
        self.facts.append(wire.message(wire.PRODUCED, key, offset, told))

    async def _look(self, connection: RawConnection, offset: int) -> list[Message]:
        """Look up the end and fetch at once; return the facts, without a response none."""
        return await look_at_the_end(
            self._client, connection, self._partition, offset, epoch=self._leader.epoch
        )


def _result(answered: Answered) -> tuple[int, int] | None:
    if answered.response is None:
        return None
    one = answered.response.responses[0].partition_responses[0]
    return one.error_code, one.base_offset
