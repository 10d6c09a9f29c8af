"""Transactions of quorumlog's own client, and its errors as DriverError."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from quorumlog.chaos.drivers.driver import DriverError
from quorumlog.client import Consumer, GroupMetadata, KafkaError, Producer
from quorumlog.wire.codec.identifiers import TopicPartition


@contextmanager
def translated() -> Iterator[None]:
    """Translate errors of the client into DriverError."""
    try:
        yield
    except KafkaError as error:
        raise DriverError(error.code.name, error.message, definite=error.definite) from error


class Transactions:
    """The transactional methods of a producer."""

    _producer: Producer

    async def begin(self) -> None:
        """Begin a transaction. Raises DriverError."""
        with translated():
            self._producer.begin_transaction()

    async def send_offsets(self, group_id: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit a group's offsets if the transaction commits. Raises DriverError."""
        places = {TopicPartition(topic, index): offset for index, offset in offsets.items()}
        with translated():
            await self._producer.send_offsets_to_transaction(
                places, GroupMetadata(group_id, -1, "", None)
            )

    async def commit(self) -> None:
        """Commit; `definite` refers to the transaction. Raises DriverError."""
        with translated():
            await self._producer.commit_transaction()

    async def abort(self) -> None:
        """Abort. Raises DriverError."""
        with translated():
            await self._producer.abort_transaction()


class Committed:
    """The methods of a consumer that use a group's committed offsets."""

    _consumer: Consumer

    async def seek(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Seek assigned partitions to these offsets."""
        for index, offset in offsets.items():
            self._consumer.seek(TopicPartition(topic, index), offset)

    async def committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the group's committed offsets. Raises DriverError."""
        with translated():
            found = await self._consumer.committed(
                [TopicPartition(topic, index) for index in partitions]
            )
        return {asked.partition: place.offset for asked, place in found.items()}
