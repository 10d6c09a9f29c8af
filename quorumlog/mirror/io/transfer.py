"""Copies the records of one poll, and writes the positions after them.

Exactly once: one transaction has the records and the positions. Otherwise an idempotent producer
has the records acknowledged first; then a transaction has the positions, so that in both modes the
coordinator fences an older mirror of the alias (KIP-98).

Without a transaction around the records, one batch of a partition is sent at a time: after a batch
that failed or was refused, no later record of its partition may reach the target.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import takewhile
from typing import Any, Final

from quorumlog import clock
from quorumlog.client import (
    ConsumerRecord,
    Deliveries,
    ErrorCode,
    KafkaError,
    Producer,
    TopicPartition,
)
from quorumlog.client.errors import TransactionError
from quorumlog.client.settings import CompressionType
from quorumlog.mirror.core.copies import Copies
from quorumlog.mirror.core.offset_runs import runs_of
from quorumlog.mirror.core.position_records import Content, RecordKey, encode_content, encode_key
from quorumlog.mirror.core.slices import slice_end
from quorumlog.mirror.settings import MirrorSettings

BATCH_BYTES: Final = 512 * 1024
_BATCH_ROOM: Final = 1024  # of max.message.bytes, for the batch's header and its compression
_REQUEST_BYTES: Final = 32 * 1024 * 1024
_BUFFER_BYTES: Final = 64 * 1024 * 1024
_BLOCK_MS: Final = 15_000
_STOP_MS: Final = 3_000

REFUSED: Final = frozenset(
    {
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
"""Errors of one topic's records: another attempt has the same outcome until a person acts."""

Polled = Mapping[TopicPartition, Sequence[ConsumerRecord]]
OwnRecord = tuple[RecordKey, Content]
Sent = dict[TopicPartition, list[tuple[Sequence[ConsumerRecord], Deliveries]]]
"""The records of a poll that were sent, in order, with their outcomes."""


class TopicRefused(Exception):
    """The target refuses records of one topic."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic: Final = topic
        self.reason: Final = reason
        super().__init__(f"{topic}: {reason}")


class Transfer:
    """The producers of a mirror.

    Invariant: `copies` advances only after the acknowledgement of records and position.
    """

    def __init__(self, settings: MirrorSettings, copies: Copies, message_bytes: int | None) -> None:
        """message_bytes: the smallest max.message.bytes of the copies."""
        self._settings: Final = settings
        self._copies: Final = copies
        batch_bytes = BATCH_BYTES
        if message_bytes is not None:
            batch_bytes = max(min(batch_bytes, message_bytes - _BATCH_ROOM), 0)
        self.batch_bytes: Final = batch_bytes
        common = dict(settings.target) | {"max_block_ms": _BLOCK_MS}
        transactional_id = f"mirror.{settings.alias}"
        data = _data_options(batch_bytes, settings.compression_type)
        if settings.exactly_once:
            self._data = Producer(**common, **data, transactional_id=transactional_id)
            self._owner = self._data
        else:
            self._data = Producer(**common, **data)
            self._owner = Producer(**common, transactional_id=transactional_id)
        self._stack: Final = AsyncExitStack()

    # --- life ---

    async def start(self) -> None:
        """Fence older mirrors of the alias, and abort their transaction. Raises KafkaError."""
        for producer in dict.fromkeys((self._data, self._owner)):
            await producer.start()
            self._stack.push_async_callback(producer.stop, timeout_ms=_STOP_MS)
        await self._owner.init_transactions()

    async def stop(self) -> None:
        """Close the producers; records without acknowledgement fail, a transaction is aborted."""
        await self._stack.aclose()

    # --- records ---

    async def copy(self, polled: Polled, own: Sequence[OwnRecord] = ()) -> int:
        """Copy the records of a poll, write positions and `own` records; return the bytes copied.

        Raises KafkaError, TopicRefused.
        """
        sent: Sent = {}
        try:
            if self._data is self._owner:
                self._owner.begin_transaction()
                size = await self._send_all(polled, sent)
            else:
                size = await self._send_in_steps(polled, sent)
        except KafkaError as error:
            refused = _refused(sent, polled, error)
            if refused is None:
                raise
            if self._data is not self._owner:
                await self._record(_acknowledged(sent), own)
            raise refused from error
        await self._record(sent, own)
        return size

    async def _send_all(self, polled: Polled, sent: Sent) -> int:
        """Send all records and wait for their acknowledgement; return their bytes."""
        size = 0
        for place, records in polled.items():
            deliveries, count = await self._send(place, records)
            sent[place] = [(records, deliveries)]
            size += count
        await self._data.flush()
        for parts in sent.values():
            for _, deliveries in parts:
                deliveries.raise_error()
        return size

    async def _send_in_steps(self, polled: Polled, sent: Sent) -> int:
        """Send one batch of each partition at a time; return the bytes of all."""
        size, begins = 0, dict.fromkeys(polled, 0)
        while begins:
            step: Sent = {}
            for place, begin in [*begins.items()]:
                records = polled[place]
                end = slice_end(records, begin, self.batch_bytes)
                part = records[begin:end]
                deliveries, count = await self._send(place, part)
                step[place] = [(part, deliveries)]
                sent.setdefault(place, []).extend(step[place])
                size += count
                begins[place] = end
                if end == len(records):
                    del begins[place]
            await self._data.flush()
            for ((_, deliveries),) in step.values():
                deliveries.raise_error()
        return size

    async def write(self, own: Sequence[OwnRecord]) -> None:
        """Write records of the positions topic, without copies. Raises KafkaError."""
        self._owner.begin_transaction()
        await self._commit(own)

    async def _record(self, sent: Sent, own: Sequence[OwnRecord]) -> None:
        """Write the positions after acknowledged records and commit; then the copies advance."""
        if self._data is not self._owner:
            self._owner.begin_transaction()
        steps = []
        for place, parts in sent.items():
            runs = [
                run
                for records, deliveries in parts
                for run in runs_of([one.offset for one in records], deliveries.stretches())
            ]
            last = parts[-1][0][-1]
            steps.append((place, last.offset + 1, last.leader_epoch, runs))
        # A position may be among `own`, too: the newer one comes last.
        await self._commit([*own, *(self._copies.position_record(*step) for step in steps)])
        for step in steps:
            self._copies.advance(*step)

    async def _commit(self, own: Iterable[OwnRecord]) -> None:
        topic = self._settings.positions_topic
        for key, content in own:
            await self._owner.send(topic, encode_content(content), encode_key(key), partition=0)
        await self._owner.commit_transaction()

    async def _send(
        self, place: TopicPartition, records: Sequence[ConsumerRecord]
    ) -> tuple[Deliveries, int]:
        """Buffer the records for their copy's partition; return their bytes, too."""
        topic, partition = self._copies.copy_of(place)
        values = [one.value for one in records]
        keys = [one.key for one in records]
        times = [one.timestamp_ms for one in records]
        if min(times) < 0:  # without a timestamp, as from clients before 0.10: as in Connect, now
            now_ms = clock.wall_clock_ms()
            times = [one if one >= 0 else now_ms for one in times]
        headers = [one.headers for one in records]
        deliveries = await self._data.send_many(
            topic,
            values,
            keys,
            partition=partition,
            headers=headers if any(headers) else None,
            timestamps_ms=times,
        )
        size = sum(map(len, filter(None, values))) + sum(map(len, filter(None, keys)))
        return deliveries, size


def _refused(sent: Sent, polled: Polled, error: KafkaError) -> TopicRefused | None:
    """Return the topic whose records the target refuses; None for any other error.

    In a transaction the first refusal fails all other batches, too: these accuse no topic.
    """
    for place, parts in sent.items():
        for _, deliveries in parts:
            code = deliveries.refusal() if deliveries.done() else ErrorCode.NONE
            if code in REFUSED:
                reason = f"the target refuses its records: {code.name} ({error.message})"
                return TopicRefused(place.topic, reason)
    if error.code in REFUSED and not isinstance(error, TransactionError):
        for place, records in polled.items():
            if sum(len(part) for part, _ in sent.get(place, ())) < len(records):
                return TopicRefused(place.topic, f"a record is refused: {error}")
    return None


def _acknowledged(sent: Sent) -> Sent:
    """Return the records before the first that is not acknowledged, of each partition."""
    found: Sent = {}
    for place, parts in sent.items():
        whole = [*takewhile(lambda part: _is_acknowledged(part[1]), parts)]
        if whole:
            found[place] = whole
    return found


def _is_acknowledged(deliveries: Deliveries) -> bool:
    """Return whether every record is acknowledged."""
    if not deliveries.done():
        return False
    try:
        deliveries.raise_error()
    except KafkaError:
        return False
    return True


def _data_options(batch_bytes: int, compression_type: CompressionType) -> dict[str, Any]:
    return {
        "batch_size": batch_bytes,
        "buffer_memory": _BUFFER_BYTES,
        "compression_type": compression_type,
        "max_request_size": _REQUEST_BYTES,
    }
