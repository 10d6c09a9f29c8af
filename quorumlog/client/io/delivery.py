"""The result of `send`: one record's outcome, which is its batch's outcome."""

import asyncio
from collections.abc import Callable, Generator, Iterable, Sequence
from contextvars import Context
from dataclasses import dataclass
from itertools import groupby
from typing import Final, overload

from quorumlog.client.core.batch import Batch, BatchState
from quorumlog.client.errors import KafkaError
from quorumlog.client.records import RecordMetadata
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

_NO_ANSWER: Final = frozenset({ErrorCode.NONE, ErrorCode.NETWORK_EXCEPTION})


async def wait_until_done(batch: Batch) -> None:
    """Wait until the batch is acknowledged or failed; cancelling the waiter keeps the batch."""
    if batch.state is not BatchState.DONE:
        await called(batch.on_done)


async def called(callbacks: list[Callable[[], None]]) -> None:
    """Wait until the owner of `callbacks` calls them."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not done.done():
            done.set_result(None)

    callbacks.append(wake)
    await done


class Outcome:
    """One record's outcome: the outcome of its batch, from the batch's end on."""

    __slots__ = ("_batch", "_index", "_timestamp_ms")

    def __init__(self, batch: Batch, index: int, timestamp_ms: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp_ms: Final = timestamp_ms

    def place(self, batch: Batch, index: int) -> None:
        """Set the record's batch, and its index there."""
        self._batch, self._index = batch, index

    def follow(self, other: "Outcome") -> None:
        """Take the place of the same record's other outcome."""
        self.place(other._batch, other._index)  # noqa: SLF001 - ours

    def done(self) -> bool:
        """Return whether the record is acknowledged or failed."""
        return self._batch.state is BatchState.DONE

    def call_when_done(self, callback: Callable[[], None]) -> None:
        """Call back at the end of the record's batch; at once if it has ended. On the loop."""
        if self.done():
            callback()
        else:
            self._batch.on_done.append(callback)

    def metadata(self) -> RecordMetadata:
        """Return the record's metadata. Raises KafkaError, or InvalidStateError if not done."""
        error = self.exception()
        if error is not None:
            raise error
        batch = self._batch
        offset = batch.base_offset
        append_time_ms = batch.log_append_time_ms
        return RecordMetadata(
            *batch.topic_partition,
            offset + self._index if offset >= 0 else -1,
            append_time_ms if append_time_ms >= 0 else self._timestamp_ms,
        )

    def exception(self) -> KafkaError | None:
        """Return why the record was not acknowledged. Raises InvalidStateError if not done."""
        batch = self._batch
        if batch.state is not BatchState.DONE:
            raise asyncio.InvalidStateError("the record is not acknowledged yet")
        if batch.error is None:
            return None
        return batch.error.again()


class Delivery(Outcome):
    """The future of one record: `await` it, once or repeatedly, for its RecordMetadata.

    Raises KafkaError if the record was not acknowledged; `error.definite` is False if the record
    may be in the log all the same. A delivery that is not awaited costs nothing. It has the methods
    of a future that asyncio.wait, as_completed and gather need; it cannot be cancelled, as a
    buffered record cannot be removed.
    """

    __slots__ = ()

    def result(self) -> RecordMetadata:
        """Return the record's metadata. Raises KafkaError, or InvalidStateError if not done."""
        return self.metadata()

    def cancelled(self) -> bool:
        """Return False; asyncio.wait needs this method."""
        return False

    def add_done_callback(
        self, callback: "Callable[[Delivery], object]", *, context: Context | None = None
    ) -> None:
        """Call `callback(delivery)` from the event loop when it is done, or soon if it is done."""
        call = _Callback(self, callback, asyncio.get_running_loop(), context)
        if self.done():
            call()
        else:
            self._batch.on_done.append(call)

    def remove_done_callback(self, callback: "Callable[[Delivery], object]") -> int:
        """Remove `callback`; return how often it had been added."""
        waiting = self._batch.on_done
        removed = [
            one
            for one in waiting
            if isinstance(one, _Callback) and one.delivery is self and one.callback == callback
        ]
        waiting[:] = [one for one in waiting if one not in removed]
        return len(removed)

    def __await__(self) -> Generator[None, None, RecordMetadata]:
        if self._batch.state is not BatchState.DONE:
            yield from wait_until_done(self._batch).__await__()
        return self.result()


@dataclass(frozen=True, slots=True, eq=False)
class _Callback:
    """Calls the user's callback from the event loop, so that its errors do not reach the sender."""

    delivery: Delivery
    callback: Callable[[Delivery], object]
    loop: asyncio.AbstractEventLoop
    context: Context | None

    def __call__(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.callback, self.delivery, context=self.context)


class Deliveries(Sequence[Delivery]):
    """The outcomes of the records of one `send_many`, in their order.

    `await` it to wait for all of them: raises the first error of a record. An index gives the
    Delivery of one record.
    """

    def __init__(self) -> None:
        self._batches: Final[list[Batch]] = []
        self._indices: Final[list[int]] = []
        self._timestamps_ms: Final[list[int]] = []

    def add(self, batch: Batch, timestamp_ms: int) -> None:
        """Add the next record, the last of its batch."""
        self._batches.append(batch)
        self._indices.append(len(batch.records) - 1)
        self._timestamps_ms.append(timestamp_ms)

    def follow(self, delivery: Delivery) -> None:
        """Add the next record by its own Delivery."""
        self._batches.append(delivery._batch)  # noqa: SLF001 - ours, as the next two
        self._indices.append(delivery._index)  # noqa: SLF001 - ours
        self._timestamps_ms.append(delivery._timestamp_ms)  # noqa: SLF001 - ours

    def fail(self, error: KafkaError, timestamps_ms: Sequence[int]) -> None:
        """Add the remaining records, which are not buffered."""
        self._batches.extend([failed_batch(error)] * len(timestamps_ms))
        self._indices.extend([0] * len(timestamps_ms))
        self._timestamps_ms.extend(timestamps_ms)

    def __len__(self) -> int:
        return len(self._batches)

    @overload
    def __getitem__(self, index: int) -> Delivery: ...

    @overload
    def __getitem__(self, index: slice) -> list[Delivery]: ...

    def __getitem__(self, index: int | slice) -> Delivery | list[Delivery]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        return Delivery(self._batches[index], self._indices[index], self._timestamps_ms[index])

    def timestamp_ms(self, index: int) -> int:
        """Return a record's own timestamp."""
        return self._timestamps_ms[index]

    def done(self) -> bool:
        """Return whether every record is acknowledged or failed."""
        return all(batch.state is BatchState.DONE for batch in self._distinct())

    def raise_error(self) -> None:
        """Raise the KafkaError of the first record that has failed."""
        for batch in self._distinct():
            if batch.error is not None:
                raise batch.error.again()

    def stretches(self) -> list[tuple[int, int]]:
        """Return the first offset and the count of records of each stretch of the log, in order.

        The offset is -1 where `RecordMetadata.offset` would be -1. Raises as `await` does, and
        InvalidStateError before the end of every record.
        """
        if not self.done():
            raise asyncio.InvalidStateError("not every record is acknowledged yet")
        self.raise_error()
        found: list[tuple[int, int]] = []
        index = 0
        for batch, records in groupby(self._batches):
            count = len([*records])
            offset = batch.base_offset
            found.append((offset + self._indices[index] if offset >= 0 else -1, count))
            index += count
        return found

    def refusal(self) -> ErrorCode:
        """Return the broker's first error for a failed batch of these records; NONE: it sent none.

        A failed batch of a transaction fails the other batches, too: these were not refused.
        """
        for batch in self._distinct():
            if batch.error is not None and batch.last_code not in _NO_ANSWER:
                return batch.last_code
        return ErrorCode.NONE

    def _distinct(self) -> Iterable[Batch]:
        return dict.fromkeys(self._batches)

    async def wait(self) -> None:
        """Wait until every record is acknowledged or failed."""
        for batch in self._distinct():
            await wait_until_done(batch)

    def __await__(self) -> Generator[None, None, None]:
        yield from self.wait().__await__()
        self.raise_error()


def failed_batch(error: KafkaError) -> Batch:
    """Return a batch that ended with `error`, for records that are in no batch."""
    return Batch(TopicPartition("", -1), 0.0, state=BatchState.DONE, error=error)
