"""Transactions and committed offsets of kafka-python. Its calls block."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import kafka
from kafka.errors import KafkaTimeoutError

from quorumlog.chaos.drivers.kafka_python_threads import Threaded

_OFFSET_TIMEOUT_MS: Final = 5_000
_END_TIMEOUT_MS: Final = 10_000


class Transactions(Threaded):
    """The transactional methods of a producer."""

    async def initialize(self) -> None:
        """Fence the predecessors. Raises DriverError."""
        await self._call(self._client.init_transactions)

    async def begin(self) -> None:
        """Begin a transaction. Raises DriverError."""
        await self._call(self._client.begin_transaction)

    async def send_offsets(self, group_id: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit a group's offsets if the transaction commits. Raises DriverError."""
        wanted = {
            kafka.TopicPartition(topic, index): kafka.OffsetAndMetadata(offset, "", -1)
            for index, offset in offsets.items()
        }
        await self._ended(lambda manager: manager.send_offsets_to_transaction(wanted, group_id))

    async def commit(self) -> None:
        """Commit. Raises DriverError, never definite: the library does not report the outcome."""
        await self._ended(lambda manager: manager.begin_commit())

    async def abort(self) -> None:
        """Abort. Raises DriverError."""
        await self._ended(lambda manager: manager.begin_abort())

    async def _ended(self, begin: Callable[[Any], Any]) -> None:
        """Begin a request and wait for its result. The library's own calls wait without a limit."""

        def work() -> None:
            result = begin(self._client._transaction_manager)  # noqa: SLF001 - as above
            self._client._sender.wakeup()  # noqa: SLF001 - as above
            if not result.wait(timeout_ms=_END_TIMEOUT_MS):
                raise KafkaTimeoutError(f"no answer within {_END_TIMEOUT_MS} ms")

        await self._call(work)


class Committed(Threaded):
    """The methods of a consumer that use a group's committed offsets."""

    async def seek(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Seek assigned partitions to these offsets."""

        def seek() -> None:
            for index, offset in offsets.items():
                self._client.seek(kafka.TopicPartition(topic, index), offset)

        await self._call(seek)

    async def committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the group's committed offsets. Raises DriverError."""

        def ask() -> dict[int, int]:
            found = {
                index: self._client.committed(
                    kafka.TopicPartition(topic, index), timeout_ms=_OFFSET_TIMEOUT_MS
                )
                for index in partitions
            }
            return {index: offset for index, offset in found.items() if offset is not None}

        found: dict[int, int] = await self._call(ask)
        return found
