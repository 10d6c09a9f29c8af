"""confluent-kafka's administrator: topics, and offsets by time."""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Unpack

import confluent_kafka
from confluent_kafka import TopicCollection
from confluent_kafka import admin as library
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from quorumlog.chaos.drivers.common import translating
from quorumlog.chaos.drivers.driver import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    DriverError,
    OffsetAt,
    TopicOptions,
)
from quorumlog.chaos.drivers.worker import Worker
from quorumlog.wire.codec.error_codes import ErrorCode

_NO_LOG: Final = logging.getLogger(f"{__name__}.librdkafka")
_NO_LOG.addHandler(logging.NullHandler())
_NO_LOG.propagate = False
QUIET: Final[dict[str, Any]] = {
    # Lost connections and fenced producers are expected in a chaos run. The latter are logged at
    # level 0, too: without a logger, librdkafka writes them to stderr.
    "log_level": 0,
    "logger": _NO_LOG,
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


_QUESTION_TIMEOUT_S: Final = 5.0
_NO_ANSWER: Final = -1001  # RD_KAFKA_OFFSET_INVALID; a broker without such a record responds -1
_CREATE_TIMEOUT_S: Final = 30.0


class ConfluentAdmin:
    """Changes and describes topics, and looks up offsets by time."""

    def __init__(self, place: Mapping[str, Any], client_id: str) -> None:
        settings = {**QUIET, **place, "client.id": client_id}
        self._worker = Worker(client_id)
        self._admin = AdminClient(settings)

    async def _result(self, ask: Callable[[AdminClient], Mapping[Any, "Future[Any]"]]) -> Any:
        """Return the only result of `ask`, whose futures the library completes."""

        def wait() -> Any:
            (future,) = ask(self._admin).values()
            return future.result(_CREATE_TIMEOUT_S)

        return await self._called(wait)

    async def _called(self, wait: Callable[[], Any]) -> Any:
        """Call `wait` in the worker's thread. Raises DriverError, also if a future is too late."""
        try:
            with translated():
                return await self._worker.call(wait)
        except TimeoutError as error:
            if isinstance(error, DriverError):
                raise
            raise DriverError("_TIMED_OUT", "no answer") from error

    async def create(self, topic: str, **options: Unpack[TopicOptions]) -> None:
        """Create a topic. Raises DriverError."""
        partitions, factor = options["partitions"], options["replication_factor"]
        wanted = NewTopic(topic, partitions, factor, config={**options.get("config", {})})
        await self._result(lambda admin: admin.create_topics([wanted]))

    async def delete(self, topic: str) -> None:
        """Delete a topic. Raises DriverError."""
        await self._result(lambda admin: admin.delete_topics([topic]))

    async def exists(self, topic: str) -> bool:
        """Return whether a broker has the topic. Raises DriverError."""
        asked = TopicCollection([topic])
        try:
            await self._result(
                lambda admin: admin.describe_topics(asked, request_timeout=_QUESTION_TIMEOUT_S)
            )
        except DriverError as error:
            if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name:
                return False
            raise
        return True

    async def ask(self, topic: str, timestamps: Mapping[int, int]) -> dict[int, OffsetAt]:
        """Look up the offset of a time in each partition. Raises DriverError.

        The library has an offset of its own for a partition whose leader did not respond, and no
        error beside it: that is no answer of the cluster.
        """
        wanted = {
            confluent_kafka.TopicPartition(topic, partition): _spec(timestamp)
            for partition, timestamp in timestamps.items()
        }

        def wait() -> dict[int, OffsetAt]:
            asked = self._admin.list_offsets(wanted, request_timeout=_QUESTION_TIMEOUT_S)
            found = {place: future.result(_QUESTION_TIMEOUT_S) for place, future in asked.items()}
            if missing := [one for one in found if found[one].offset == _NO_ANSWER]:
                where = f"{missing[0].topic}-{missing[0].partition}"
                raise DriverError("_NO_OFFSET", f"the library has no response for {where}")
            return {
                place.partition: OffsetAt(one.offset, one.timestamp) for place, one in found.items()
            }

        answered: dict[int, OffsetAt] = await self._called(wait)
        return answered

    async def close(self) -> None:
        """Release all resources."""
        self._worker.close()


def _spec(timestamp: int) -> Any:
    specs: Any = library.OffsetSpec  # type: ignore[attr-defined]  # public, by its documentation
    special = {
        EARLIEST: specs.earliest,
        LATEST: specs.latest,
        MAX_TIMESTAMP: specs.max_timestamp,
    }.get(timestamp)
    return specs.for_timestamp(timestamp) if special is None else special()
