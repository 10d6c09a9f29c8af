"""Sends as operations of a history: one value, or a batch of values."""

import asyncio
from collections.abc import Sequence
from typing import Any

from quorumlog.chaos.drivers.driver import DriverProducer, Headers, SendFailed
from quorumlog.chaos.history import UNKNOWN_OFFSET, Message
from quorumlog.chaos.workloads.readers import key_of
from quorumlog.chaos.workloads.workload import Setup


async def send_one(
    setup: Setup[Any],
    producer: DriverProducer,
    process: int,
    partition: int,
    value: int,
    *,
    record_key: bytes | None = None,
    headers: Headers = (),
    timestamp_ms: int | None = None,
) -> bool:
    """Send a value; return whether the outcome is certain, so that the process may act again."""
    message = Message(key_of(setup.topic, partition), UNKNOWN_OFFSET, value)
    setup.history.append(process, "invoke", "send", [message])
    try:
        pending = await producer.send(
            setup.topic,
            partition,
            str(value).encode(),
            key=record_key,
            headers=headers,
            timestamp_ms=timestamp_ms,
        )
        offset = await pending
    except SendFailed as error:
        outcome = "fail" if error.definite else "info"
        setup.history.append(process, outcome, "send", [message], error=str(error))
        return error.definite
    setup.history.append(process, "ok", "send", [message._replace(offset=offset)])
    return True


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
    topic, history = setup.topic, setup.history
    messages = [Message(key_of(topic, partition), UNKNOWN_OFFSET, value) for value in values]
    history.append(process, "invoke", "send", messages)
    pending: list[asyncio.Future[int]] = []
    results: list[int | BaseException] = []
    try:
        for place, value in enumerate(values):
            timestamp_ms = timestamps_ms[place] if timestamps_ms else None
            text = str(value).encode()
            pending.append(await producer.send(topic, partition, text, timestamp_ms=timestamp_ms))
    except SendFailed as failed:  # the rest is not tried
        results = [failed, *(SendFailed("NOT_SENT", definite=True) for _ in values)]
    results = [*await asyncio.gather(*pending, return_exceptions=True), *results][: len(values)]
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in errors:
        if not isinstance(error, SendFailed):
            raise error
    is_certain = all(isinstance(error, SendFailed) and error.definite for error in errors)
    if not errors:
        outcome = "ok"
    else:
        outcome = "fail" if is_certain and len(errors) == len(values) else "info"
    told = [
        message._replace(offset=result) if isinstance(result, int) else message
        for message, result in zip(messages, results, strict=True)
    ]
    said = "; ".join(dict.fromkeys(str(error) for error in errors))
    history.append(process, outcome, "send", told, error=said)
    return outcome != "info"
