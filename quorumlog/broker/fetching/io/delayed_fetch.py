"""A fetch under way: the records read of each partition, and the changes that it awaits."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from quorumlog.broker.fetching.core.fetch_sessions import FetchSession
from quorumlog.broker.fetching.core.fetch_spec import FetchSpec
from quorumlog.broker.partitions.core.data_path import (
    NO_REPLICA,
    DivergingEpoch,
    FetchedPartition,
    PartitionFetch,
)
from quorumlog.broker.partitions.core.effects import AnswerFetch
from quorumlog.broker.partitions.core.purgatory import WaitingFetch
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, TopicPartition
from quorumlog.wire.codec.message import Sendable

_NONE: Final = ErrorCode.NONE  # an attribute of an enum costs a call
FetchAnswers = list[FetchedPartition]
READING_MS_MAX: Final = 10_000  # a fetch may wait for the disk so long after its deadline


class PartitionRead:
    """The progress of one partition of a fetch.

    `size`: of the chunks in bytes; `held`: in memory, without ranges of files;
    `missing`: the maximum size of the records being brought into memory for it, in bytes;
    `bring_ins`: how often that was begun since its last read. `is_final`: reading has ended, by an
    error, a diverging log, or another replica.
    """

    __slots__ = (
        "bring_ins",
        "chunks",
        "diverging",
        "error_code",
        "fetch",
        "held",
        "is_final",
        "missing",
        "next_offset",
        "preferred_replica",
        "size",
    )

    def __init__(self, fetch: PartitionFetch) -> None:
        self.fetch = fetch
        self.error_code: ErrorCode = _NONE
        self.diverging: DivergingEpoch | None = None
        self.chunks: list[Sendable] = []
        self.size = self.held = self.missing = self.bring_ins = 0
        self.next_offset = fetch.fetch_offset
        self.preferred_replica = NO_REPLICA
        self.is_final = False

    def judged(self, judgement: AnswerFetch) -> None:
        """Record the replica's judgement of the fetch, before the first read."""
        self.error_code, self.diverging = judgement.error_code, judgement.diverging
        self.is_final = self.error_code is not ErrorCode.NONE or self.diverging is not None

    def failed(self, error_code: ErrorCode) -> None:
        """Record an error: reading has ended."""
        self.error_code, self.is_final = error_code, True

    def is_elsewhere(self, replica: BrokerId) -> None:
        """Record the replica to read from instead, if any."""
        self.preferred_replica, self.is_final = replica, replica != NO_REPLICA


class DelayedFetch(WaitingFetch):
    """A long poll that has too few bytes yet (Kafka's DelayedFetch).

    `response` is done once it is completed; a cancel of it calls `ended` with this fetch.
    """

    __slots__ = ("_ended", "_joined", "_render", "is_late", "reads", "response", "spec")

    def __init__(
        self,
        deadline_ms: int,
        spec: FetchSpec,
        reads: list[PartitionRead],
        *,
        render: Callable[[FetchAnswers], Any],
        ended: "Callable[[DelayedFetch], None]",
    ) -> None:
        self.deadline_ms, self.is_over = deadline_ms, False
        # A session records the changes of its partitions itself.
        self.keys: Sequence[TopicPartition] = ()
        if spec.session is None:
            self.keys = [partition.topic_partition for partition in spec.partitions]
        self.awaited = spec.awaited
        self.spec = spec
        self.reads = reads
        self.is_late = False
        self._ended = ended
        self.expect(render)
        self._joined: set[int] | None = None  # the identities of the fetches in `reads`

    def expect(self, render: Callable[[FetchAnswers], Any]) -> None:
        """Begin a response, after the last one if the fetch waits again."""
        self.response: asyncio.Future[Any] = _Cancellable(self, self._ended)
        self._render = render

    def answer_and_keep(self, answers: FetchAnswers) -> None:
        """Answer, and hold no reference to the response: the fetch may wait again."""
        response, render = self.response, self._render
        del self.response, self._render
        if not response.done():
            response.set_result(render(answers))

    def answer(self, answers: FetchAnswers) -> None:
        """Complete the response, unless its client has gone."""
        if not self.response.done():
            self.response.set_result(self._render(answers))

    def postpone(self) -> bool:
        """Extend the deadline once, if records are being read; then any size is enough."""
        if self.is_late or not any(read.missing for read in self.reads):
            return False
        self.is_late, self.is_over = True, False
        self.deadline_ms += READING_MS_MAX
        self.spec.min_bytes = 0
        return True

    def join(self, fetch: PartitionFetch) -> None:
        """Add a partition of the session that was left out as settled."""
        if self._joined is None:  # most fetches need no such set
            if len(self.reads) == 1 and self.reads[0].fetch is fetch:
                return
            self._joined = {id(read.fetch) for read in self.reads}
        if id(fetch) not in self._joined:
            self._joined.add(id(fetch))
            self.reads.append(PartitionRead(fetch))


def last_fetch(spec: FetchSpec, session: FetchSession) -> DelayedFetch | None:
    """Return the fetch that has waited last, with its unused read, if `spec` may wait in it again.

    None: the session has got another request meanwhile.
    """
    delayed, session.answered = session.answered, None
    if not isinstance(delayed, DelayedFetch) or delayed.spec is not spec:
        return None
    read, fetches = delayed.reads[0], spec.partitions
    if len(fetches) != 1 or fetches[0] is not read.fetch:
        return None
    read.next_offset = read.fetch.fetch_offset
    return delayed


class _Cancellable(asyncio.Future[Any]):
    """A future that notes its cancel at once, and calls its connection within `set_result`.

    A callback of a future is called in another turn of the loop, with a context of its own.
    """

    __slots__ = ("_deliver", "_ended", "_waits")

    def __init__(self, waits: DelayedFetch, ended: Callable[[DelayedFetch], None]) -> None:
        asyncio.Future.__init__(self)  # `super` makes an object
        self._waits: DelayedFetch | None = waits
        self._ended = ended
        self._deliver: Callable[[Any], object] | None = None

    def add_done_callback(self, fn: Callable[[Any], object], *, context: Any = None) -> None:
        if context is None:
            self._deliver = fn
        else:  # a task waits
            super().add_done_callback(fn, context=context)

    def set_result(self, result: Any) -> None:
        deliver, self._deliver = self._deliver, None
        self._waits = None  # and no cycle is left to the garbage collector
        asyncio.Future.set_result(self, result)
        if deliver is not None:
            deliver(self)

    def cancel(self, msg: Any = None) -> bool:
        waits, self._waits = self._waits, None
        if waits is not None:
            self._ended(waits)
        return super().cancel(msg)
