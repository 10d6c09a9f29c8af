"""Transactions of aiokafka, and its errors as DriverError."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import aiokafka
from aiokafka.errors import KafkaError

from quorumlog.chaos.drivers.driver import DriverError
from quorumlog.chaos.drivers.foreign_errors import driver_error


@contextmanager
def translated() -> Iterator[None]:
    """Translate errors of the library into DriverError."""
    try:
        yield
    except (KafkaError, OSError, asyncio.InvalidStateError) as error:
        raise driver_error(error) from error


@contextmanager
def _in_state() -> Iterator[None]:
    """Translate errors, also assertions of the library about its own states."""
    try:
        with translated():
            yield
    except AssertionError as error:
        raise DriverError("ILLEGAL_STATE", str(error)) from error


class Transactions:
    """The transactional methods of a producer."""

    _producer: Any

    async def begin(self) -> None:
        """Begin a transaction. Raises DriverError."""
        with _in_state():
            await self._producer.begin_transaction()

    async def send_offsets(self, group_id: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit a group's offsets if the transaction commits. Raises DriverError."""
        places = {
            aiokafka.TopicPartition(topic, index): offset for index, offset in offsets.items()
        }
        with _in_state():
            await self._producer.send_offsets_to_transaction(places, group_id)

    async def commit(self) -> None:
        """Commit. Raises DriverError, never definite: the library does not report the outcome."""
        with _in_state():
            await self._producer.commit_transaction()

    async def abort(self) -> None:
        """Abort. Raises DriverError."""
        with _in_state():
            await self._producer.abort_transaction()


class Committed:
    """The methods of a consumer that use a group's committed offsets."""

    _consumer: Any

    async def seek(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Seek assigned partitions to these offsets."""
        for index, offset in offsets.items():
            self._consumer.seek(aiokafka.TopicPartition(topic, index), offset)

    async def committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the group's committed offsets. Raises DriverError."""
        found: dict[int, int] = {}
        with translated():
            for index in partitions:
                offset = await self._consumer.committed(aiokafka.TopicPartition(topic, index))
                if offset is not None:
                    found[index] = offset
        return found
