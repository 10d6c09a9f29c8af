"""One send as one operation of a history, for workloads that send value by value."""

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
    """Send a value; return whether all is known about it, so that the process may act again."""
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
