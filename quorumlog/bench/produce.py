"""Sends a ProduceLoad by quorumlog.client, and counts the outcomes.

It is a closed loop: while the cluster does not answer, no record is sent, so its latencies show
less of a stall than an open loop does (coordinated omission); see `latency`.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from quorumlog.bench.histogram import Histogram
from quorumlog.bench.load import (
    ACKNOWLEDGED,
    FAILED,
    NUMBER_BYTES,
    WARM_UP,
    Moment,
    ProduceLoad,
    ProduceResult,
)
from quorumlog.client import Consumer, Delivery, KafkaError, Producer, TopicPartition

Progress = Callable[[int], object]
"""Receives the number of acknowledged records; True releases the record that `hold_at` holds."""
Client = Mapping[str, Any]
"""The arguments of a client: addresses, TLS and login."""
_SAMPLE_S: Final = 0.05
_SHORT_SAMPLE_S: Final = 0.01
_STORED_WITHIN_S: Final = 5.0
_LATENCY_OF: Final = 50  # one record of so many
_REQUEST_TIMEOUT_MS: Final = 30_000
_DELIVERY_TIMEOUT_MS: Final = 120_000


class ProduceRun:
    """One run of a load. `outcomes`: of each record, if the load keeps them."""

    def __init__(self, client: Client, load: ProduceLoad, progress: Progress) -> None:
        self._client: Final = client
        self._load: Final = load
        self._progress: Final = progress
        self._padding: Final = bytes(load.size - NUMBER_BYTES)
        self._pending: Final = deque[tuple[int, Delivery]]()
        self._failed: Final = Counter[str]()
        self._latency: Final = Histogram()
        self._acknowledged = 0
        self._released: Final = asyncio.Event()
        self.outcomes: Final = bytearray(load.messages or 0 if load.keeps_outcomes else 0)

    async def run(self) -> ProduceResult:
        """Warm up, send, and wait for the last outcome. Raises KafkaError for an unusable topic."""
        load, loop = self._load, asyncio.get_running_loop()
        async with self._producer() as producer:
            partitions = await producer.partitions_for(load.topic)
            before = await self._log_ends(partitions)
            before += await self._warm_up(producer, partitions)
            earlier = Counter(_codes(producer))
            began_s = loop.time()
            timeline = _Timeline(began_s, producer)
            sampling = asyncio.create_task(self._sample(timeline))
            try:
                sent = await self._send_all(producer, partitions, began_s)
                await self._settle(down_to=0)
            finally:
                sampling.cancel()
            ended_s = loop.time()
            timeline.note(ended_s, self._acknowledged)
            stored = await self._stored(partitions, before, sent)
            return ProduceResult(
                began_s=began_s,
                seconds=ended_s - began_s,
                sent=sent,
                acknowledged=self._acknowledged,
                size=load.size,
                failed=dict(self._failed),
                attempts=dict(Counter(_codes(producer)) - earlier),
                stored=stored,
                moments=timeline.moments,
                latency=self._latency,
            )

    def _producer(self) -> Producer:
        load = self._load
        return Producer(
            **self._client,
            acks=load.acks,
            enable_idempotence=load.idempotent,
            retries=load.retries,
            linger_ms=load.linger_ms,
            compression_type=load.compression,  # type: ignore[arg-type]  # Producer checks it
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            delivery_timeout_ms=_DELIVERY_TIMEOUT_MS,
        )

    def _value(self, number: int) -> bytes:
        return number.to_bytes(NUMBER_BYTES, "big") + self._padding

    async def _warm_up(self, producer: Producer, partitions: list[int]) -> int:
        """Send to each partition, and for `warm_up_s` at least; return the number of records."""
        loop, number = asyncio.get_running_loop(), WARM_UP
        until_s = loop.time() + self._load.warm_up_s
        while number == WARM_UP or loop.time() < until_s:
            for partition in partitions:
                await producer.send(self._load.topic, self._value(number), partition=partition)
                number += 1
            await producer.flush()
        return number - WARM_UP

    async def _send_all(self, producer: Producer, partitions: list[int], began_s: float) -> int:
        """Send all records; return their number."""
        load, loop = self._load, asyncio.get_running_loop()
        one_by_one = load.mode == "one-by-one"
        number = 0
        while load.messages is None or number < load.messages:
            if load.duration_s is not None and loop.time() - began_s >= load.duration_s:
                break
            if load.rate_per_s is not None:
                await asyncio.sleep(began_s + number / load.rate_per_s - loop.time())
            if number == load.hold_at:
                await self._released.wait()
            partition = partitions[number % len(partitions)]
            sent_s = loop.time()
            try:
                delivery = await producer.send(load.topic, self._value(number), partition=partition)
            except KafkaError as error:
                self._fail(number, error)
            else:
                self._pending.append((number, delivery))
                if one_by_one or number % _LATENCY_OF == 0:
                    delivery.add_done_callback(partial(self._took, sent_s))
            number += 1
            await self._settle(down_to=0 if one_by_one else load.window)
        return number

    def _took(self, sent_s: float, delivery: Delivery) -> None:
        if delivery.exception() is None:
            self._latency.add((asyncio.get_running_loop().time() - sent_s) * 1000)

    async def _settle(self, *, down_to: int) -> None:
        """Wait until at most `down_to` records are unacknowledged."""
        pending = self._pending
        while len(pending) > down_to:
            with suppress(KafkaError):
                await pending[0][1]
            self._pop_settled()

    def _pop_settled(self) -> None:
        """Count the outcomes of the oldest records, up to the first without."""
        pending = self._pending
        while pending and self._is_settled(*pending[0]):
            pending.popleft()

    def _is_settled(self, number: int, delivery: Delivery) -> bool:
        """Count the outcome of a record; return False if there is none yet."""
        if not delivery.done():
            return False
        error = delivery.exception()
        if error is not None:
            self._fail(number, error)
        else:
            self._acknowledged += 1
            if self.outcomes:
                self.outcomes[number] = ACKNOWLEDGED
        return True

    def _fail(self, number: int, error: KafkaError) -> None:
        self._failed[error.code.name] += 1
        if self.outcomes:
            self.outcomes[number] = FAILED

    async def _sample(self, timeline: "_Timeline") -> None:
        """Note the progress again and again; before a kill, also behind the oldest record."""
        loop = asyncio.get_running_loop()
        pause_s = _SAMPLE_S if self._load.hold_at is None else _SHORT_SAMPLE_S
        while True:
            await asyncio.sleep(pause_s)
            self._pop_settled()
            done = self._acknowledged
            if self._load.hold_at is not None:  # else it would slow the load down
                done += sum(
                    delivery.done() and delivery.exception() is None
                    for _, delivery in self._pending
                )
            timeline.note(loop.time(), done)
            if self._progress(done) is True:
                self._released.set()

    async def _log_ends(self, partitions: list[int]) -> int:
        """Return the sum of the log end offsets; 0 if the load does not count them."""
        if not self._load.counts_stored:
            return 0
        async with Consumer(**self._client) as consumer:
            places = [TopicPartition(self._load.topic, partition) for partition in partitions]
            return sum((await consumer.end_offsets(places)).values())

    async def _stored(self, partitions: list[int], before: int, wanted: int) -> int | None:
        """Return the records that the logs have received: within 5 s, with acks=0, all of them."""
        if not self._load.counts_stored:
            return None
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _STORED_WITHIN_S
        stored = 0
        while stored < wanted and loop.time() < until_s:
            stored = await self._log_ends(partitions) - before
            await asyncio.sleep(_SAMPLE_S)
        return stored


class _Timeline:
    """The acknowledgements and failed attempts since the last note."""

    def __init__(self, began_s: float, producer: Producer) -> None:
        self._began_s: Final = began_s
        self._producer: Final = producer
        self._acknowledged = 0
        self._attempts = Counter(_codes(producer))
        self.moments: Final[list[Moment]] = []

    def note(self, now_s: float, acknowledged: int) -> None:
        attempts = Counter(_codes(self._producer))
        moment = Moment(
            at_s=round(now_s - self._began_s, 4),
            acknowledged=acknowledged - self._acknowledged,
            attempts=dict(attempts - self._attempts),
        )
        self.moments.append(moment)
        self._acknowledged, self._attempts = acknowledged, attempts


def _codes(producer: Producer) -> dict[str, int]:
    return {code.name: count for code, count in producer.failed_attempts.items()}
