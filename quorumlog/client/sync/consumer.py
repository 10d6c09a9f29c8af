"""The consumer without an event loop."""

import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, Unpack

from quorumlog.client.consumer import ITERATION_POLL_MS, Consumer, Records
from quorumlog.client.io.committer import CommitCallback
from quorumlog.client.records import (
    ConsumerRecord,
    GroupMetadata,
    KeyT,
    OffsetAndMetadata,
    TopicPartition,
    ValueT,
)
from quorumlog.client.settings import BootstrapServers, ConsumerOptions, with_servers
from quorumlog.client.sync.blocking_client import Blocking, blocking, on_loop

if TYPE_CHECKING:
    import pyarrow as pa

Result = TypeVar("Result")

_logger: Final = logging.getLogger(__name__)
_EndedCommit = tuple[CommitCallback, dict[TopicPartition, OffsetAndMetadata], Any]
"""The callback, the offsets, and the error or None."""


class SyncConsumer(Blocking[Consumer[Any, Any]], Generic[KeyT, ValueT]):
    """Consumer without an event loop. Use it in one thread.

    The methods of a RebalanceListener, deserializers and interceptors run on the event loop that
    all blocking clients share; the callback of a commit in the thread of the consumer.
    """

    @with_servers
    def __init__(
        self, bootstrap_servers: BootstrapServers, **options: Unpack[ConsumerOptions]
    ) -> None:
        # Polled for a caller that was interrupted (Ctrl-C): the first offsets.
        self._unseen: Mapping[TopicPartition, int] = {}
        self._ended: Final[deque[_EndedCommit]] = deque()
        super().__init__(Consumer(bootstrap_servers, **options))

    def close(self) -> None:
        """Close the client; see the asynchronous client's `stop`."""
        if self._unseen:  # the last poll's records are not processed
            interrupted = KeyboardInterrupt()
            self._close(self._client.__aexit__(type(interrupted), interrupted, None))
        else:
            super().close()

    def _close(self, stop: Coroutine[Any, Any, None]) -> None:
        super()._close(stop)
        self._call_back()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return super()._run(self._after_rewind(work) if self._unseen else work)

    async def _after_rewind(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Seek back to the records of the interrupted call, which are not processed, then work."""
        unseen, self._unseen = self._unseen, {}
        for partition, offset in unseen.items():
            with suppress(KeyError):  # no longer assigned
                self._client.seek(partition, offset)
        return await work

    subscribe = on_loop(Consumer.subscribe)
    unsubscribe = blocking(Consumer.unsubscribe)
    assign = on_loop(Consumer.assign)
    pause = on_loop(Consumer.pause)
    resume = on_loop(Consumer.resume)

    seek = on_loop(Consumer.seek)
    seek_to_beginning = on_loop(Consumer.seek_to_beginning)
    seek_to_end = on_loop(Consumer.seek_to_end)
    seek_to_time = on_loop(Consumer.seek_to_time)
    position = blocking(Consumer.position)

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        timeout_ms: float | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """Commit as `Consumer.commit` does.

        A callback runs in this thread, during a later `poll`, `commit` or `close`, and may call the
        consumer. Its error is logged.
        """
        note = None
        if callback is not None:
            ended = self._ended

            def note(places: dict[TopicPartition, OffsetAndMetadata], error: Any) -> None:
                ended.append((callback, places, error))

        self._run(self._client.commit(offsets, timeout_ms, note))
        self._call_back()

    def _call_back(self) -> None:
        """Call the callbacks of the commits that have ended, in order."""
        while self._ended:
            callback, places, error = self._ended.popleft()
            try:
                callback(places, error)
            except Exception:
                _logger.exception("a commit callback failed")

    committed = blocking(Consumer.committed)

    beginning_offsets = blocking(Consumer.beginning_offsets)
    end_offsets = blocking(Consumer.end_offsets)
    offsets_for_times = blocking(Consumer.offsets_for_times)
    partitions_for = blocking(Consumer.partitions_for)

    # These methods only read: they do not run on the loop, and a listener may call them.

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that are assigned now."""
        return self._client.assignment()

    def subscription(self) -> frozenset[str]:
        """Return the topics of `subscribe`."""
        return self._client.subscription()

    def highwater(self, partition: TopicPartition) -> int:
        """Return the partition's high watermark as of the last fetch; -1 before."""
        return self._client.highwater(partition)

    def group_metadata(self) -> GroupMetadata:
        """Return the group, the generation (-1: not a member now) and the member's id."""
        return self._client.group_metadata()

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> Records[KeyT, ValueT]:
        """Return records as soon as there are any; {} after `timeout_ms` without records.

        The records of a call that an exception ended (Ctrl-C) are not processed: the next call
        returns them, unless the consumer seeks first.
        """
        self._call_back()
        poll = partial(self._client.poll, timeout_ms, max_records)
        return self._seen(poll, lambda records: records[0].offset)

    def poll_batches(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> "dict[TopicPartition, pa.Table]":
        """Return records as `poll` does, as one Arrow table for each partition.

        The columns are listed at `Consumer.poll_batches`.
        """
        self._call_back()
        poll = partial(self._client.poll_batches, timeout_ms, max_records)
        return self._seen(poll, lambda table: int(table["offset"][0].as_py()))

    def _seen(
        self,
        poll: Callable[[], Coroutine[Any, Any, dict[TopicPartition, Result]]],
        first_offset: Callable[[Result], int],
    ) -> dict[TopicPartition, Result]:
        async def work() -> dict[TopicPartition, Result]:
            polled = await poll()
            self._unseen = {name: first_offset(records) for name, records in polled.items()}
            return polled

        polled = self._run(work())
        self._unseen = {}
        return polled

    def __iter__(self) -> Iterator[ConsumerRecord[KeyT, ValueT]]:
        """Yield record after record, for ever. Each is processed when the next is requested.

        `poll` is many times faster: here, every record needs a call to the loop's thread.
        """
        while True:
            for records in self.poll(ITERATION_POLL_MS, 1).values():
                yield from records
