"""Transactions of confluent-kafka. Its calls block, so a thread serves them."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import confluent_kafka

from quorumlog.chaos.drivers.confluent_errors import driver_error, error_code, translated
from quorumlog.chaos.drivers.driver import DriverError
from quorumlog.chaos.drivers.worker import Worker

_TIMEOUT_S: Final = 10.0
_QUESTION_TIMEOUT_S: Final = 5.0


class Transactions:
    """The transactional methods of a producer."""

    _producer: confluent_kafka.Producer
    _worker: Worker

    async def initialize(self) -> None:
        """Fence the predecessors. Raises DriverError."""
        await self._call(lambda: self._producer.init_transactions(_TIMEOUT_S))

    async def begin(self) -> None:
        """Begin a transaction. Raises DriverError."""
        await self._call(self._producer.begin_transaction)

    async def send_offsets(self, group_id: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit a group's offsets if the transaction commits. Raises DriverError."""
        places = [
            confluent_kafka.TopicPartition(topic, index, offset)
            for index, offset in offsets.items()
        ]

        def send() -> None:
            nameless = confluent_kafka.Consumer({"group.id": group_id})  # it connects to no broker
            try:
                group = nameless.consumer_group_metadata()
                self._producer.send_offsets_to_transaction(places, group, _TIMEOUT_S)
            finally:
                nameless.close()

        await self._call(send)

    async def commit(self) -> None:
        """Commit. Raises DriverError.

        The library does not report whether it sent the commit. After a failed commit, a successful
        abort proves that the transaction is not committed.
        """

        def commit() -> None:
            try:
                self._producer.commit_transaction(_TIMEOUT_S)
            except confluent_kafka.KafkaException as error:
                told = driver_error(error)
                if not _must_abort(error):
                    raise told from error
                with contextlib.suppress(confluent_kafka.KafkaException):
                    self._producer.abort_transaction(_TIMEOUT_S)
                    raise DriverError(told.code, str(error), definite=True) from error
                raise told from error

        await self._worker.call(commit)

    async def abort(self) -> None:
        """Abort. Raises DriverError."""
        await self._call(lambda: self._producer.abort_transaction(_TIMEOUT_S))

    async def _call(self, work: Callable[[], Any]) -> None:
        with translated():
            await self._worker.call(work)

    async def close(self) -> None:
        """Release all resources; the broker aborts an open transaction after its timeout."""
        self._worker.close()
        await super().close()  # type: ignore[misc]  # of the producer with this mixin


def _must_abort(error: confluent_kafka.KafkaException) -> bool:
    cause = error.args[0] if error.args else None
    return isinstance(cause, confluent_kafka.KafkaError) and cause.txn_requires_abort()


class Committed:
    """The methods of a consumer that use a group's committed offsets."""

    _consumer: confluent_kafka.Consumer
    _worker: Worker

    async def seek(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Seek all assigned partitions to these offsets.

        The library cannot seek before it has begun to read: the partitions are assigned anew.
        """
        places = [
            confluent_kafka.TopicPartition(topic, index, offset)
            for index, offset in offsets.items()
        ]
        with translated():
            await self._worker.call(lambda: self._consumer.assign(places))

    async def committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the group's committed offsets. Raises DriverError."""
        wanted = [confluent_kafka.TopicPartition(topic, partition) for partition in partitions]
        with translated():
            found = await self._worker.call(
                lambda: self._consumer.committed(wanted, timeout=_QUESTION_TIMEOUT_S)
            )
        for one in found:
            if one.error is not None:
                raise DriverError(error_code(one.error), one.error.str())
        return {one.partition: one.offset for one in found if one.offset >= 0}
