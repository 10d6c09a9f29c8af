"""A fetch under way: how far each of its partitions has come, and what it waits for."""

from collections.abc import Callable

from quorumlog.broker.fetching.core.fetch_spec import FetchSpec
from quorumlog.broker.partitions.core.data_path import (
    DivergingEpoch,
    FetchedPartition,
    PartitionFetch,
    ReadEnd,
)
from quorumlog.broker.partitions.core.news import News
from quorumlog.broker.partitions.core.purgatory import WaitingFetch
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset

FetchAnswers = list[FetchedPartition]
Chunk = bytes | bytearray | memoryview


class Progress:
    """How far one partition of a fetch has come."""

    __slots__ = ("chunks", "diverging", "error_code", "next_offset", "size")

    def __init__(self, fetch_offset: Offset) -> None:
        self.error_code = ErrorCode.NONE
        self.diverging: DivergingEpoch | None = None
        self.chunks: list[Chunk] = []
        self.size = 0
        self.next_offset = fetch_offset

    @property
    def is_final(self) -> bool:
        """Whether there is nothing more to read: an error, or a log that has parted from ours."""
        return self.error_code is not ErrorCode.NONE or self.diverging is not None


class ParkedFetch(WaitingFetch):
    """A long poll that has not enough yet."""

    __slots__ = ("answer", "progress", "spec")

    def __init__(
        self,
        deadline_ms: int,
        spec: FetchSpec,
        progress: list[Progress],
        answer: Callable[[FetchAnswers], None],
    ) -> None:
        partitions = spec.partitions if spec.session is None else ()  # a session is told
        super().__init__(deadline_ms, [partition.topic_partition for partition in partitions])
        self.spec = spec
        self.progress = progress
        self.answer = answer

    def join(self, fetch: PartitionFetch) -> None:
        """Look at a partition of the session that was left out as settled."""
        if not any(fetch is one for one in self.spec.partitions):
            self.spec.partitions.append(fetch)
            self.progress.append(Progress(fetch.fetch_offset))


def of_interest(spec: FetchSpec) -> News:
    """Return the news for which a parked fetch is looked at again."""
    if spec.read_end is ReadEnd.HIGH_WATERMARK:
        return News.COMMITTED | News.CHANGED
    if spec.is_from_follower:
        return News.APPENDED | News.CHANGED | News.LOG_START
    # A follower, which a debugging consumer may read, learns with its records what is committed.
    return News.APPENDED | News.COMMITTED | News.CHANGED
