"""`transform`: consume, transform and produce, exactly once.

The user's function maps a record to its results. For each poll, one transaction has the results and
the offsets behind the records (KIP-98, KIP-447): readers at `read_committed` see both, or neither.
The function runs before the transaction begins, so that slow functions meet no transaction timeout.

| after | the transaction | the records |
|---|---|---|
| a rebalance, a failover, lost batches | is aborted | are read, transformed and sent again |
| an error of the function, a serializer | is aborted, if it began | are read by the next call |
| a fatal error: another process has its id | has ended, or will be aborted | stay with the group |
| a commit without an answer | is requested until its outcome is certain | |

A function whose effects outside of Kafka matter must be idempotent: it is called again for records
that are read again.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from quorumlog.backoff import Backoff
from quorumlog.chance import random_fraction
from quorumlog.client.consumer import Consumer
from quorumlog.client.core.transactions import ABORT, COMMIT, INITIALIZE, TransactionState
from quorumlog.client.errors import KafkaError, TransactionError
from quorumlog.client.producer import Producer, transactor_of
from quorumlog.client.records import (
    ConsumerRecord,
    GroupMetadata,
    OffsetAndMetadata,
    ProducerRecord,
    TopicPartition,
)
from quorumlog.client.settings import ConsumerSettings, ProducerSettings
from quorumlog.wire.codec.error_codes import RETRIABLE, ErrorCode

_logger: Final = logging.getLogger(__name__)

Results = ProducerRecord[Any, Any] | Iterable[ProducerRecord[Any, Any]] | None
Function = Callable[[ConsumerRecord[Any, Any]], Results | Awaitable[Results]]
Polled = Mapping[TopicPartition, Sequence[ConsumerRecord[Any, Any]]]

POLL_MS: Final = 500  # the longest time between two calls of `stop`
FAILURES_MAX: Final = 10  # transactions in a row

_REPLAYED: Final = frozenset(
    {
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
)
"""Errors beside the retriable ones that another transaction, after the next poll, may not have."""
_UNKNOWN_ENDS: Final = frozenset({TransactionState.COMMITTING, TransactionState.FATAL_ERROR})


async def transform(
    consumer: Consumer[Any, Any],
    producer: Producer[Any, Any],
    function: Function,
    *,
    max_records: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Send the results of `function` for each record that is read, exactly once.

    `function(record)` returns a ProducerRecord, an iterable of them, or None; it may be a
    coroutine function. `max_records` (max_poll_records) bounds a transaction. Runs until `stop`
    returns True between two transactions, or until it is cancelled; returns the number of records
    that were read and committed.

    The consumer is subscribed, or has partitions from `assign`. Calls `init_transactions` if that
    was not done. Raises ValueError, with the setting, for a consumer with auto commit or without
    read_committed, or a producer without transactional_id; the error of `function`; KafkaError:
    after a `fatal` error open another producer and another consumer. After any other error the next
    call continues at the first record that is not committed.
    """
    check_settings(consumer.settings, producer.settings)
    replays = Replays(producer.settings)
    count = 0
    await settle(producer)
    while not stop():
        polled = await consumer.poll(POLL_MS, max_records)
        if not polled:
            continue
        try:
            results = await results_of(function, polled)
        except BaseException:
            rewind(consumer, polled)
            raise
        error = await move(consumer, producer, polled, results)
        if error is None:
            count += sum(map(len, polled.values()))
        await replays.note(error)
    return count


def check_settings(consumer: ConsumerSettings, producer: ProducerSettings) -> None:
    """Raise ValueError, with the setting to change, if records could be lost or repeated."""
    if producer.transactional_id is None:
        raise ValueError("transform needs a producer with transactional_id")
    if consumer.group_id is None:
        raise ValueError("transform needs a consumer with group_id")
    if consumer.enable_auto_commit:
        raise ValueError("transform commits the offsets: set enable_auto_commit=False")
    if consumer.isolation_level != "read_committed":
        raise ValueError(
            "transform would read aborted records: set isolation_level='read_committed'"
        )


async def results_of(function: Function, polled: Polled) -> list[ProducerRecord[Any, Any]]:
    """Return the results of all records."""
    results: list[ProducerRecord[Any, Any]] = []
    for record in chain.from_iterable(polled.values()):
        given = function(record)
        results += listed(await given if inspect.isawaitable(given) else given)
    return results


def listed(given: Any) -> list[ProducerRecord[Any, Any]]:
    """Return the results of one record as a list. Raises TypeError."""
    if given is None:
        return []
    results = [given] if isinstance(given, ProducerRecord) else [*given]
    for one in results:
        if not isinstance(one, ProducerRecord):
            raise TypeError(f"the function of transform returns ProducerRecords, not {one!r}")
    return results


class Replays:
    """Counts transactions in a row that have failed, and waits between them."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._client_id: Final = settings.client_id
        self._backoff: Final = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._failures = 0

    async def note(self, error: KafkaError | None) -> None:
        """Handle the outcome of a transaction. Raises `error` after `FAILURES_MAX` in a row."""
        if error is None:
            self._failures = 0
            return
        self._failures += 1
        _logger.warning("%s: the records are transformed again: %s", self._client_id, error)
        if self._failures >= FAILURES_MAX:
            raise error
        await asyncio.sleep(self._backoff.delay_ms(self._failures, random_fraction()) / 1000)


async def settle(producer: Producer[Any, Any]) -> None:
    """Get the identity of the producer, and the outcome of a transaction that an error has left."""
    transactions = transactor_of(producer).transactions
    if transactions.state is TransactionState.IN_TRANSACTION:
        raise RuntimeError("a transaction is open: commit or abort it before transform")
    if transactions.state in {TransactionState.UNINITIALIZED, TransactionState.INITIALIZING}:
        pending = transactions.pending
        if pending is None or pending.operation == INITIALIZE:
            await producer.init_transactions()
    pending = transactions.pending
    if pending is not None and pending.operation == COMMIT:
        try:
            await _until_certain(producer.commit_transaction)
        except TransactionError as error:
            if error.fatal:
                raise
    if transactions.state is TransactionState.ABORTABLE_ERROR or (
        pending is not None and pending.operation == ABORT
    ):
        await _until_certain(producer.abort_transaction)


async def move(
    consumer: Consumer[Any, Any],
    producer: Producer[Any, Any],
    polled: Polled,
    results: Iterable[ProducerRecord[Any, Any]],
) -> KafkaError | None:
    """Send the results and the offsets behind the polled records in one transaction.

    Returns None once it is committed, or the error after which the next poll returns the records
    again. Raises all other errors.
    """
    transactor = transactor_of(producer)
    try:
        await settle(producer)
        producer.begin_transaction()
        for topic, value, key, partition, headers, timestamp_ms in results:
            await producer.send(
                topic, value, key, partition=partition, headers=headers, timestamp_ms=timestamp_ms
            )
        await producer.send_offsets_to_transaction(_places(polled), _member(consumer))
        await _until_certain(producer.commit_transaction)
    except BaseException as error:
        await transactor.abort_after(error)
        if transactor.transactions.state in _UNKNOWN_ENDS:
            for name in polled:  # as a new consumer does
                consumer._positions.look_up(name)  # noqa: SLF001 - ours
        else:
            rewind(consumer, polled)
        if isinstance(error, KafkaError) and _is_replayed(error):
            return error
        raise
    return None


def _places(polled: Polled) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        name: OffsetAndMetadata(records[-1].offset + 1, records[-1].leader_epoch)
        for name, records in polled.items()
    }


def _member(consumer: Consumer[Any, Any]) -> GroupMetadata:
    """Return the group of `assign`, or a member. Raises KafkaError if the consumer is no member.

    A commit without a generation is not fenced.
    """
    group = consumer.group_metadata()
    client = consumer._running().group  # noqa: SLF001 - ours
    if group.generation_id < 0 and client is not None and client.is_subscribed:
        message = f"not a member of group {group.group_id} now: poll joins it again"
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, message, definite=True)
    return group


def _is_replayed(error: KafkaError) -> bool:
    return not error.fatal and (error.code in RETRIABLE or error.code in _REPLAYED)


async def _until_certain(end: Callable[[], Awaitable[None]]) -> None:
    """Repeat a call that gives up after max_block_ms, until the transaction has ended."""
    while True:
        try:
            await end()
        except KafkaError as error:
            is_late = error.code == ErrorCode.REQUEST_TIMED_OUT
            if not is_late or isinstance(error, TransactionError):
                raise
            _logger.warning("transform: %s", error)
        else:
            return


def rewind(consumer: Consumer[Any, Any], polled: Polled) -> None:
    """Let the next poll return the records again. Partitions that were lost stay lost."""
    for name, records in polled.items():
        if name in consumer.assignment():
            consumer.seek(name, records[0].offset)
