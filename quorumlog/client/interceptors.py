"""Interceptors: the user's objects that see, and may change, every record of a client.

Source: KIP-42; Java's ProducerInterceptor and ConsumerInterceptor. The methods of a chain are
called in its order. An exception of a method is logged, and the next interceptor gets the record
that the last successful interceptor has returned.

The methods block the client: `on_send` its caller, all others the client's event loop. Keep them
short; a WARNING of the logger `quorumlog.client.io.interception` names a method that took too long.
"""

from collections.abc import Mapping
from typing import Any

from quorumlog.client.records import (
    ConsumerRecord,
    OffsetAndMetadata,
    ProducerRecord,
    RecordMetadata,
    TopicPartition,
)

AnyProducerRecord = ProducerRecord[Any, Any]
AnyRecords = dict[TopicPartition, list[ConsumerRecord[Any, Any]]]


class ProducerInterceptor:
    """The methods to override."""

    def on_send(self, record: AnyProducerRecord) -> AnyProducerRecord:
        """Return the record to send, before serialization and the choice of its partition.

        A SyncProducer calls it in the thread of `send`.
        """
        return record

    def on_acknowledgement(
        self,
        record: AnyProducerRecord,
        metadata: RecordMetadata | None,
        error: BaseException | None,
    ) -> None:
        """Handle the outcome of a record, as the chain of `on_send` has returned it.

        `metadata` is None if the record failed with `error`; `send` may have refused it. Called
        once for each record, before a waiter for its Delivery continues.
        """


class ConsumerInterceptor:
    """The methods to override."""

    def on_consume(self, records: AnyRecords) -> AnyRecords:
        """Return the records of a poll, after deserialization. The position includes all of them.

        `async for` calls it for each record.
        """
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Handle committed offsets, those of auto commits included."""
