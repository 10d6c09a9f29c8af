"""confluent-kafka's administrator: topics, and offsets by time."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final

import confluent_kafka
from confluent_kafka import TopicCollection
from confluent_kafka import admin as library
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from quorumlog.chaos.drivers.confluent_errors import QUIET, translated
from quorumlog.chaos.drivers.driver import EARLIEST, LATEST, MAX_TIMESTAMP, DriverError, OffsetAt
from quorumlog.chaos.drivers.worker import Worker
from quorumlog.wire.codec.error_codes import ErrorCode

_QUESTION_TIMEOUT_S: Final = 5.0
_CREATE_TIMEOUT_S: Final = 30.0


class ConfluentAdmin:
    """Changes and describes topics, and looks up offsets by time."""

    def __init__(self, bootstrap: str, client_id: str) -> None:
        settings = {**QUIET, "bootstrap.servers": bootstrap, "client.id": client_id}
        self._worker = Worker(client_id)
        self._admin = AdminClient(settings)

    async def _result(self, ask: Callable[[AdminClient], Mapping[Any, "Future[Any]"]]) -> Any:
        """Return the only result of `ask`, whose futures the library completes."""

        def wait() -> Any:
            (future,) = ask(self._admin).values()
            return future.result(_CREATE_TIMEOUT_S)

        try:
            with translated():
                return await self._worker.call(wait)
        except TimeoutError as error:
            if isinstance(error, DriverError):
                raise
            raise DriverError("_TIMED_OUT", "no answer") from error

    async def create(
        self,
        topic: str,
        *,
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic. Raises DriverError."""
        wanted = NewTopic(topic, partitions, replication_factor, config={**(config or {})})
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
        """Look up the offset of a time in each partition. Raises DriverError."""
        wanted = {
            confluent_kafka.TopicPartition(topic, partition): _spec(timestamp)
            for partition, timestamp in timestamps.items()
        }

        def wait() -> dict[int, OffsetAt]:
            asked = self._admin.list_offsets(wanted, request_timeout=_QUESTION_TIMEOUT_S)
            return {
                place.partition: OffsetAt(found.offset, found.timestamp)
                for place, future in asked.items()
                for found in (future.result(_QUESTION_TIMEOUT_S),)
            }

        with translated():
            return await self._worker.call(wait)

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
