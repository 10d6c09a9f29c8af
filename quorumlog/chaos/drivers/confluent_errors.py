"""Settings and errors that all clients of confluent-kafka share."""

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import confluent_kafka

from quorumlog.chaos.drivers.common import translating
from quorumlog.chaos.drivers.driver import DriverError
from quorumlog.wire.codec.error_codes import ErrorCode

QUIET: Final[dict[str, Any]] = {
    "log_level": 0,  # lost connections are expected in a chaos run
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "socket.connection.setup.timeout.ms": 2_000,
}
_BAD_MESSAGE: Final = -199  # RD_KAFKA_RESP_ERR__BAD_MSG
_AUTO_OFFSET_RESET: Final = -140  # the text has the reason


def error_code(error: confluent_kafka.KafkaError) -> str:
    """Return Kafka's name of a broker's error, or librdkafka's (`_TIMED_OUT`) of its own."""
    number = error.code()
    if number == _BAD_MESSAGE:
        return ErrorCode.CORRUPT_MESSAGE.name
    if number == _AUTO_OFFSET_RESET and "out of range" in error.str().lower():
        return ErrorCode.OFFSET_OUT_OF_RANGE.name
    with contextlib.suppress(ValueError):
        return ErrorCode(number).name
    return str(error.name())


def driver_error(error: Exception) -> DriverError:
    """Translate a KafkaException. Never definite: the library does not report earlier attempts."""
    cause = error.args[0] if error.args else None
    if isinstance(cause, confluent_kafka.KafkaError):
        return DriverError(error_code(cause), cause.str())
    return DriverError(type(error).__name__, str(error))


translated: Final = partial(translating, driver_error, confluent_kafka.KafkaException)


def check_places(places: Sequence[Any]) -> None:
    """Raise DriverError if a partition of a response has an error."""
    for place in places:
        if place.error is not None:
            raise DriverError(error_code(place.error), place.error.str())
