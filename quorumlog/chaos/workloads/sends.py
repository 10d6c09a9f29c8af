"""Sends as operations of a history: one value, or a batch of values, and the records of both."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from quorumlog.chaos.drivers.driver import AT_ONCE, Batching, DriverProducer, Headers, SendFailed
from quorumlog.chaos.history import UNKNOWN_OFFSET, Message, checksum_of
from quorumlog.chaos.workloads.readers import key_of
from quorumlog.chaos.workloads.workload import Setup, opened

_KEYS: Final = 64
_SPAN_MS: Final = 1000  # timestamps are out of order within it
_PRIME: Final = 2_654_435_761  # Knuth's: neighbours are far apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A record to send. Its history has the checksum of all parts but the value."""

    value: int
    key: bytes
    headers: Headers
    timestamp_ms: int

    def message(self, key: str, f: str = "") -> Message:
        """Return the record as a message of a history; `key`: its partition."""
        checksum = checksum_of(self.key, self.headers, self.timestamp_ms)
        return Message(key, UNKNOWN_OFFSET, self.value, f=f, checksum=checksum)

    async def send(
        self, producer: DriverProducer, topic: str, partition: int
    ) -> asyncio.Future[int]:
        """Send the record as `DriverProducer.send` does."""
        return await producer.send(
            topic,
            partition,
            str(self.value).encode(),
            key=self.key,
            headers=self.headers,
            timestamp_ms=self.timestamp_ms,
        )


def record_of(
    setup: Setup[Any], value: int, *, key: bytes | None = None, timestamp_ms: int | None = None
) -> Outgoing:
    """Return the record of a value: its key, headers and timestamp follow from the value.

    Its timestamp lies up to 1 s before the start of the run.
    """
    mixed = value * _PRIME % (1 << 32)
    if timestamp_ms is None:
        timestamp_ms = setup.history.started_wall_ms - mixed % _SPAN_MS
    return Outgoing(
        value=value,
        key=b"key-%d" % (value % _KEYS) if key is None else key,
        headers=(("value", b"%d" % value), ("trace", b"%08x" % mixed)),
        timestamp_ms=timestamp_ms,
    )


async def attempt(
    setup: Setup[Any],
    producer: DriverProducer,
    process: int,
    partition: int,
    record: Outgoing,
    *,
    f: str = "send",
    key: str = "",
) -> int | SendFailed:
    """Send a record as one operation `f`; return its offset or the error.

    key: its key in the history; "": the partition.
    """
    message = record.message(key or key_of(setup.topic, partition))
    setup.history.append(process, "invoke", f, [message])
    try:
        offset = await (await record.send(producer, setup.topic, partition))
    except SendFailed as error:
        outcome = "fail" if error.definite else "info"
        setup.history.append(process, outcome, f, [message], error=str(error))
        return error
    setup.history.append(process, "ok", f, [message._replace(offset=offset)])
    return offset


async def send_one(
    setup: Setup[Any], producer: DriverProducer, process: int, partition: int, value: int
) -> bool:
    """Send a value; return whether the outcome is certain, so that the process may act again."""
    sent = await attempt(setup, producer, process, partition, record_of(setup, value))
    return isinstance(sent, int) or sent.definite


async def keep_sending(
    setup: Setup[Any],
    processes: Iterator[int],
    working: asyncio.Event,
    send: Callable[[DriverProducer, int], Awaitable[bool]],
    *,
    rng: random.Random,
    gap_s: float,
    batching: Batching = AT_ONCE,
) -> None:
    """Send until `working` is cleared, every `gap_s` on average.

    send: sends as a process; returns whether its outcome is certain. If not, the next process
        continues with a new producer.
    """
    process = next(processes)
    producer: DriverProducer | None = None
    try:
        while working.is_set():
            await asyncio.sleep(rng.expovariate(1 / gap_s))
            if producer is None:
                opening = setup.driver.producer(setup.bootstrap, f"p{process}", batching)
                producer = await opened(opening)
            elif not await send(producer, process):
                process = next(processes)
                unsure, producer = producer, None
                await unsure.close()
    finally:
        if producer is not None:
            await producer.close()


async def send_batch(
    setup: Setup[Any],
    producer: DriverProducer,
    process: int,
    partition: int,
    values: Sequence[int],
    *,
    timestamps_ms: Sequence[int] = (),
) -> bool:
    """Send values in one operation, so that they may be one batch; return as `send_one` does."""
    topic = setup.topic
    times: Sequence[int | None] = timestamps_ms or [None] * len(values)
    records = [
        record_of(setup, value, timestamp_ms=time_ms)
        for value, time_ms in zip(values, times, strict=True)
    ]
    messages = [record.message(key_of(topic, partition)) for record in records]
    setup.history.append(process, "invoke", "send", messages)
    pending: list[asyncio.Future[int]] = []
    results: list[int | BaseException] = []
    try:
        for record in records:
            sending = record.send(producer, topic, partition)
            pending.append(await sending)
    except SendFailed as failed:  # the rest is not tried
        results = [failed, *(SendFailed("NOT_SENT", definite=True) for _ in values)]
    results = [*await asyncio.gather(*pending, return_exceptions=True), *results][: len(values)]
    return complete(setup, process, messages, results)


def complete(
    setup: Setup[Any],
    process: int,
    messages: Sequence[Message],
    results: Sequence[int | BaseException],
) -> bool:
    """Write the completion of sends in one operation, with the offset or the error of each.

    Return whether every outcome is certain. A cancelled send has an unknown outcome.
    """
    told = [
        message._replace(offset=result) if isinstance(result, int) else message
        for message, result in zip(messages, results, strict=True)
    ]
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in errors:
        if not isinstance(error, SendFailed | asyncio.CancelledError):
            raise error
    if not errors:
        outcome = "ok"
    elif len(errors) == len(results) and all(map(_is_definite, errors)):
        outcome = "fail"
    else:
        outcome = "info"
    said = "; ".join(dict.fromkeys(str(error) or "no answer yet" for error in errors))
    setup.history.append(process, outcome, "send", told, error=said)
    return outcome != "info"


def _is_definite(error: BaseException) -> bool:
    return isinstance(error, SendFailed) and error.definite
