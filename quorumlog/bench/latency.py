"""Latencies of an open loop: to the acknowledgement, and to a consumer of the same process.

A record is due at its time, whether or not earlier ones are acknowledged, and its latency counts
from then: a stall is in the latency of every record that was due meanwhile (no coordinated
omission). If the timer alone was late, by at most TIMER_MS, it counts from the send.
"""

import asyncio
from asyncio import FIRST_COMPLETED
from collections import Counter
from functools import partial
from typing import Any, Final

from quorumlog.bench.histogram import Histogram
from quorumlog.bench.load import NUMBER_BYTES, WARM_UP, LatencyLoad, LatencyResult
from quorumlog.bench.produce import Client, Progress
from quorumlog.client import Consumer, Delivery, KafkaError, Producer, TopicPartition

TIMER_MS: Final = 2.0
_POLL_MS: Final = 500
_LAST_READ_S: Final = 10.0


class LatencyRun:
    """One run of a load."""

    def __init__(self, client: Client, load: LatencyLoad, progress: Progress) -> None:
        self._client: Final = client
        self._load: Final = load
        self._progress: Final = progress
        self._producer_ms: Final = Histogram()
        self._end_to_end_ms: Final = Histogram()
        self._failed: Final = Counter[str]()
        self._due_s: Final[list[float]] = [0.0] * load.messages
        self._all_read: Final = asyncio.Event()
        self._unread = load.messages

    async def run(self) -> LatencyResult:
        """Warm up, send at the rate, and wait for the last outcomes. Raises KafkaError."""
        load, loop = self._load, asyncio.get_running_loop()
        producer = Producer(
            **self._client,
            acks=load.acks,
            linger_ms=0,
            compression_type=load.compression,  # type: ignore[arg-type]  # Producer checks it
        )
        async with producer, Consumer(**self._client, fetch_max_wait_ms=_POLL_MS) as consumer:
            partitions = await producer.partitions_for(load.topic)
            places = [TopicPartition(load.topic, partition) for partition in partitions]
            consumer.assign(places)
            consumer.seek_to_end(*places)
            for place in places:
                await consumer.position(place)
            reading = asyncio.create_task(self._read(consumer))
            try:
                await self._warm_up(producer, partitions)
                began_s = loop.time()
                await self._send_all(producer, partitions, began_s)
                seconds = loop.time() - began_s
                await self._wait_for_reads(reading)
            finally:
                reading.cancel()
        return LatencyResult(
            seconds=seconds,
            sent=load.messages,
            failed=dict(self._failed),
            producer=self._producer_ms,
            end_to_end=self._end_to_end_ms,
        )

    async def _warm_up(self, producer: Producer, partitions: list[int]) -> None:
        loop, number = asyncio.get_running_loop(), WARM_UP
        until_s = loop.time() + self._load.warm_up_s
        while number < WARM_UP + len(partitions) or loop.time() < until_s:
            partition = partitions[number % len(partitions)]
            value = number.to_bytes(NUMBER_BYTES, "big")
            await producer.send_and_wait(self._load.topic, value, partition=partition)
            number += 1

    async def _send_all(self, producer: Producer, partitions: list[int], began_s: float) -> None:
        load, loop = self._load, asyncio.get_running_loop()
        padding = bytes(load.size - NUMBER_BYTES)
        for number in range(load.messages):
            due_s = began_s + number / load.rate_per_s
            if (wait_s := due_s - loop.time()) > 0:
                await asyncio.sleep(wait_s)
            now_s = loop.time()
            is_by_timer = (now_s - due_s) * 1000 <= TIMER_MS
            self._due_s[number] = due_s = now_s if is_by_timer else due_s
            partition = partitions[number % len(partitions)]
            value = number.to_bytes(NUMBER_BYTES, "big") + padding
            try:
                delivery = await producer.send(load.topic, value, partition=partition)
            except KafkaError as error:
                self._fail(error)
            else:
                delivery.add_done_callback(partial(self._acknowledged, due_s))
        await producer.flush()
        await asyncio.sleep(0)  # the callbacks of the last records

    def _acknowledged(self, due_s: float, delivery: Delivery) -> None:
        error = delivery.exception()
        if error is not None:
            self._fail(error)
            return
        self._producer_ms.add((asyncio.get_running_loop().time() - due_s) * 1000)
        self._progress(self._producer_ms.count)

    def _fail(self, error: KafkaError) -> None:
        self._failed[error.code.name] += 1
        self._read_one_less()

    def _read_one_less(self) -> None:
        self._unread -= 1
        if self._unread <= 0:
            self._all_read.set()

    async def _read(self, consumer: Consumer) -> None:
        loop = asyncio.get_running_loop()
        while True:
            polled: dict[Any, Any] = await consumer.poll(_POLL_MS)
            now_s = loop.time()
            for records in polled.values():
                for record in records:
                    number = int.from_bytes(record.value[:NUMBER_BYTES], "big")
                    if number < self._load.messages:
                        self._end_to_end_ms.add((now_s - self._due_s[number]) * 1000)
                        self._read_one_less()

    async def _wait_for_reads(self, reading: "asyncio.Task[None]") -> None:
        """Wait for the consumer: records of unknown outcome may be missing. Raises KafkaError."""
        waiting = asyncio.create_task(self._all_read.wait())
        await asyncio.wait({waiting, reading}, timeout=_LAST_READ_S, return_when=FIRST_COMPLETED)
        waiting.cancel()
        if reading.done():
            await reading
