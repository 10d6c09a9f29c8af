"""Deserializes the records of a chunk by the user's callables.

A record that cannot be deserialized stays in its chunk, as do all records behind it: the position
stays before it, and `poll` raises. The records before it were returned. Source: Java's consumer
(KIP-334), except that other partitions are read on.
"""

from collections.abc import Callable
from typing import Any, Final

from quorumlog.client.core.chunk import Chunk
from quorumlog.client.errors import DeserializationError
from quorumlog.client.records import ConsumerRecord, TopicPartition
from quorumlog.client.settings import ConsumerSettings, Deserializer

Reader = Callable[[Chunk, int], list[ConsumerRecord]]
"""Reads up to a number of records from a chunk, as `Chunk.read`."""


def reader_of(settings: ConsumerSettings) -> Reader | None:
    """Return the reader of a consumer with deserializers; None if it has none."""
    if settings.key_deserializer is None and settings.value_deserializer is None:
        return None
    return _Deserialization(settings).read


class _Deserialization:
    def __init__(self, settings: ConsumerSettings) -> None:
        self._of_keys: Final = settings.key_deserializer
        self._of_values: Final = settings.value_deserializer

    def read(self, chunk: Chunk, max_records: int) -> list[ConsumerRecord]:
        """Return the next records. Raises DeserializationError if the first of them is illegal."""
        records, done = chunk.read(max_records), []
        for record in records:
            try:
                done.append(self._deserialized(record))
            except DeserializationError:
                chunk.unread(records[len(done) :])
                if not done:
                    raise
                break
        return done

    def _deserialized(self, record: ConsumerRecord) -> ConsumerRecord:
        place, at = TopicPartition(record.topic, record.partition), record.offset
        key = _converted("key_deserializer", self._of_keys, record.key, (place, at))
        value = _converted("value_deserializer", self._of_values, record.value, (place, at))
        return ConsumerRecord(*record[:4], key, value, *record[6:])


def _converted(
    setting: str, deserializer: Deserializer | None, data: bytes | None, at: tuple[Any, int]
) -> Any:
    if deserializer is None or data is None:
        return data
    try:
        return deserializer(data)
    except Exception as error:
        raise DeserializationError(setting, error, at, data) from error
