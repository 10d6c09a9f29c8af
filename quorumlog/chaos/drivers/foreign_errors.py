"""Errors of aiokafka and kafka-python, which share an ancestor, by Kafka's names."""

import asyncio
import contextlib

from quorumlog.chaos.drivers.driver import DriverError
from quorumlog.wire.codec.error_codes import ErrorCode


def driver_error(error: BaseException) -> DriverError:
    """Translate an error that may have Kafka's number as `errno`.

    Never definite: the libraries do not report earlier attempts.
    """
    name = type(error).__name__
    number = getattr(error, "errno", None)
    if isinstance(number, int) and not isinstance(error, OSError):
        with contextlib.suppress(ValueError):
            name = ErrorCode(number).name
    elif name == "CorruptRecordError":  # detected by the client itself
        name = ErrorCode.CORRUPT_MESSAGE.name
    elif isinstance(error, asyncio.InvalidStateError):
        name = "NOT_OPEN"
    return DriverError(name, str(error))


def check_answer(code: int, text: str) -> None:
    """Raise DriverError if a broker's response has an error code."""
    if code != ErrorCode.NONE:
        raise DriverError(ErrorCode(code).name, text)
