"""The records of `__transaction_state`, in Kafka's own format.

Key: TransactionLogKey 0. Value: TransactionLogValue 0 or 1 (flexible); None is a tombstone. An
int16 version comes before each. Source: the schemas of Kafka's transaction coordinator; tagged
fields that a newer Kafka adds are ignored.
"""

from dataclasses import dataclass, fields
from itertools import groupby
from typing import Final

from quorumlog.broker.coordination.core.versioned_messages import (
    decode_versioned,
    encode_versioned,
    version_of,
)
from quorumlog.broker.transactions.core.states import (
    PREPARED,
    STATUS,
    WITHOUT_TRANSACTION,
    TransactionState,
)
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.identifiers import NO_EPOCH, NO_PRODUCER_ID, TopicPartition
from quorumlog.wire.codec.message import Message, Struct, wire

KEY_VERSION: Final = 0
FLEXIBLE_VALUE_VERSION: Final = 1  # written since transaction.version 1
NO_TIMESTAMP: Final = -1
_STATES: Final = {
    status: state
    for state, status in STATUS.items()
    if state not in {TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE}
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """The metadata of a transactional id, as in its record. Times in ms since 1970; -1: none.

    `partitions`: of the open transaction, sorted; empty once all of them have their markers.
    `previous_producer_id`: before the last change. `next_producer_id`: in the Prepare states, the
    producer id after the transaction, because the epochs of `producer_id` are exhausted.
    `client_transaction_version`: 2 if the last transaction was ended with an epoch bump.
    `last_update_ms` rises with every change, so it identifies a change (`Transaction`).
    `last_producer_epoch`: an older epoch that a producer may send when it recovers from an error
    (KIP-360); in no record.
    """

    producer_id: int
    producer_epoch: int
    transaction_timeout_ms: int
    state: TransactionState
    partitions: tuple[TopicPartition, ...] = ()
    last_update_ms: int
    start_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_transaction_version: int = 0
    next_producer_epoch: int = NO_EPOCH
    last_producer_epoch: int = NO_EPOCH


def contradiction(metadata: TransactionMetadata) -> str | None:
    """Return the contradiction in the metadata, else None. A record that has one is malformed."""
    has_transaction = metadata.state not in WITHOUT_TRANSACTION
    if min(metadata.producer_id, metadata.producer_epoch) < 0:
        return "no producer"
    if metadata.partitions and not has_transaction:
        return "partitions without a transaction"
    if has_transaction and metadata.start_ms == NO_TIMESTAMP:
        return "a transaction without a start"
    if metadata.next_producer_id != NO_PRODUCER_ID and metadata.state not in PREPARED:
        return "a next producer id without a decision"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRecord:
    """The newest metadata of a transactional id; None: expired. `value_version` is 0 or 1."""

    transactional_id: str
    metadata: TransactionMetadata | None
    value_version: int = FLEXIBLE_VALUE_VERSION


class _TransactionLogKey(Message):
    transactional_id: str = wire("string", default="")

    VERSIONS = range(KEY_VERSION, KEY_VERSION + 1)
    FLEXIBLE_SINCE = KEY_VERSION + 1


class _Partitions(Struct):
    topic: str = wire("string", default="")
    partition_ids: list[int] = wire(["int32"], default_factory=list)


class _TransactionLogValue(Message):
    producer_id: int = wire("int64", default=0)
    producer_epoch: int = wire("int16", default=0)
    transaction_timeout_ms: int = wire("int32", default=0)
    transaction_status: int = wire("int8", default=0)
    transaction_partitions: list[_Partitions] | None = wire(
        [_Partitions], default_factory=list, nullable="0+"
    )
    last_update_ms: int = wire("int64", default=0)
    start_ms: int = wire("int64", default=0)
    previous_producer_id: int = wire("int64", "1+", default=NO_PRODUCER_ID, tag=0)
    next_producer_id: int = wire("int64", "1+", default=NO_PRODUCER_ID, tag=1)
    client_transaction_version: int = wire("int16", "1+", default=0, tag=2)
    next_producer_epoch: int = wire("int16", "1+", default=NO_EPOCH, tag=3)

    VERSIONS = range(FLEXIBLE_VALUE_VERSION + 1)
    FLEXIBLE_SINCE = FLEXIBLE_VALUE_VERSION


_SHARED: Final = tuple(
    sorted(
        {one.name for one in fields(TransactionMetadata)}
        & {one.name for one in _TransactionLogValue.FIELDS}
    )
)
"""The fields that metadata and its value have under the same name, with the same content."""


def encode(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """Return the record's key and value."""
    key = encode_versioned(
        KEY_VERSION, _TransactionLogKey(transactional_id=record.transactional_id)
    )
    if record.metadata is None:
        return key, None
    return key, encode_versioned(record.value_version, _value_of(record.metadata))


def _value_of(metadata: TransactionMetadata) -> _TransactionLogValue:
    partitions = [
        _Partitions(topic=topic, partition_ids=[where.partition for where in of_topic])
        for topic, of_topic in groupby(metadata.partitions, key=lambda where: where.topic)
    ]
    return _TransactionLogValue(
        transaction_status=STATUS[metadata.state],
        transaction_partitions=None if metadata.state is TransactionState.EMPTY else partitions,
        **{name: getattr(metadata, name) for name in _SHARED},
    )


def decode(key: bytes, value: bytes | None) -> TransactionRecord:
    """Return the record. Raises MalformedFrame, a ValueError, also for an unknown version."""
    transactional_id = decode_versioned(_TransactionLogKey, key).transactional_id
    if value is None:
        return TransactionRecord(transactional_id=transactional_id, metadata=None)
    found = decode_versioned(_TransactionLogValue, value)
    state = _STATES.get(found.transaction_status)
    if state is None:
        raise MalformedFrame(f"{transactional_id}: status {found.transaction_status} in a record")
    partitions = sorted(
        TopicPartition(of_topic.topic, partition)
        for of_topic in found.transaction_partitions or ()
        for partition in of_topic.partition_ids
    )
    metadata = TransactionMetadata(
        state=state,
        partitions=tuple(partitions),
        **{name: getattr(found, name) for name in _SHARED},
    )
    wrong = contradiction(metadata)
    if wrong is not None:
        raise MalformedFrame(f"{transactional_id}: {wrong}")
    return TransactionRecord(
        transactional_id=transactional_id, metadata=metadata, value_version=version_of(value)
    )
