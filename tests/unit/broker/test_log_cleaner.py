"""The cleaner of a broker with real logs: which log, up to where, and what lasts."""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from errno import EIO, ENOSPC
from pathlib import Path
from typing import Any, TypeVar

import pytest

from quorumlog.advances import Advance
from quorumlog.broker.replicas import Replicas
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, TopicImage
from quorumlog.storage.core.cleaning import CleanableRange, Dirtiness
from quorumlog.storage.core.retention import SegmentFacts
from quorumlog.storage.core.segment_index import NO_TIMESTAMP
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.cleaning import CleanedSegment, Cleaning
from quorumlog.storage.io.disk import Disk, RealDisk
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition
from quorumlog.wire.codec.message import contents
from quorumlog.wire.codec.records import Record, decode_batches, encode_batch
from tests.support.broker.faulty_disk import FaultyDisk
from tests.support.broker.held_queue import HeldQueue
from tests.support.broker.one_broker import AT, one_broker, publish, publish_all
from tests.support.broker.replica_calls import append_to
from tests.support.broker.replicas import ALL_ALIVE, image
from tests.support.broker.transactional import append_in, end, transactional

SMALL = LogSettings(segment_bytes=1, cleanup_policy="compact")  # one batch in each segment
ALONE = image(1, 0, 0, (1,), replicas=(1,))
T = TypeVar("T")
FACTS = [SegmentFacts(offset, 100, newest_ms=offset) for offset in (0, 10, 20, 30)]


@pytest.mark.parametrize(
    ("first_dirty", "high_watermark", "last_stable", "min_lag_ms", "expected"),
    [
        (0, 40, 40, 0, (30, 0, 300)),
        (10, 40, 40, 0, (30, 100, 200)),
        (0, 29, 40, 0, (20, 0, 200)),  # nothing above the high watermark
        (0, 40, 29, 0, (20, 0, 200)),  # nothing of a transaction that is open
        (0, 40, 40, 1000 - 10, (20, 0, 200)),  # too young
        (30, 40, 40, 0, (30, 300, 0)),
        (0, 0, 0, 0, (0, 0, 0)),
    ],
)
def test_what_is_dirty(
    first_dirty: int,
    high_watermark: int,
    last_stable: int,
    min_lag_ms: int,
    expected: tuple[int, int, int],
) -> None:
    found = CleanableRange().dirtiness(
        FACTS,
        first_dirty_offset=first_dirty,
        high_watermark=high_watermark,
        last_stable_offset=last_stable,
        min_lag_ms=min_lag_ms,
        wall_ms=1000,
    )
    assert (found.end_offset, found.clean_bytes, found.dirty_bytes) == expected


@pytest.mark.parametrize(
    ("clean", "dirty", "first_dirty_ms", "is_due"),
    [
        (50, 50, NO_TIMESTAMP, True),
        (51, 49, NO_TIMESTAMP, False),  # a batch without a time is not old
        (51, 49, 900, False),
        (51, 49, 899, True),
        (51, 49, 0, True),
        (0, 0, 0, False),
    ],
)
def test_what_is_due(clean: int, dirty: int, first_dirty_ms: int, is_due: bool) -> None:
    found = Dirtiness(first_dirty_offset=0, end_offset=9, clean_bytes=clean, dirty_bytes=dirty)
    answer = found.is_due(
        min_ratio=0.5, max_lag_ms=100, first_dirty_ms=first_dirty_ms, wall_ms=1000
    )
    assert answer == is_due


def write(
    replicas: Replicas, key: str, value: str, at: TopicPartition = AT, *, timestamp_ms: int = 1
) -> None:
    records = encode_batch([Record(0, timestamp_ms, key.encode(), value.encode())])
    outcome = append_to(replicas, at, records, acks=1, timeout_ms=0).result()
    assert outcome.error_code == ErrorCode.NONE


def found(replicas: Replicas) -> list[tuple[int, bytes | None]]:
    log = replicas.drivers[AT].log
    parts, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        read = log.read(offset, max_bytes=1 << 20, end_offset=log.log_end_offset)
        parts.append(read.records)
        offset = read.next_offset
    batches = decode_batches(b"".join(contents(parts)))
    return [(one.offset, one.value) for _, records in batches for one in records]


@asynccontextmanager
async def compacting(directory: Path, disk: Disk | None = None) -> AsyncIterator[Replicas]:
    """Run a broker with a compacted log of a batch in each segment."""
    async with one_broker(directory, disk=disk, log_settings=SMALL) as replicas:
        publish(replicas, ALONE, cleanup_policy="compact")
        yield replicas


async def test_a_compacted_log_keeps_the_newest_values_and_the_place_lasts(tmp_path: Path) -> None:
    async with compacting(tmp_path) as replicas:
        for number in range(6):
            write(replicas, f"k{number % 2}", f"{number}")
        assert await replicas.ticks.cleaner.clean_dirtiest()
        assert found(replicas) == [(3, b"3"), (4, b"4"), (5, b"5")]  # 5 is in the active segment
        assert replicas.ticks.cleaner.removed_count == 3
        assert not await replicas.ticks.cleaner.clean_dirtiest()
    async with compacting(tmp_path) as replicas:
        assert found(replicas) == [(3, b"3"), (4, b"4"), (5, b"5")]
        assert not await replicas.ticks.cleaner.clean_dirtiest()


async def test_a_record_of_an_open_transaction_replaces_no_committed_one(tmp_path: Path) -> None:
    async with compacting(tmp_path) as replicas:
        write(replicas, "k", "older")
        write(replicas, "k", "committed")
        await append_in(replicas, transactional(0, key=b"k"))
        write(replicas, "other", "1")
        assert await replicas.ticks.cleaner.clean_dirtiest()
        end(replicas, commits=False)
        write(replicas, "other", "2")
        assert await replicas.ticks.cleaner.clean_dirtiest()
        assert (1, b"committed") in found(replicas)


async def test_a_log_that_is_only_deleted_is_left_alone(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=LogSettings(segment_bytes=1)) as replicas:
        for number in range(4):
            write(replicas, "same", f"{number}")
        assert not await replicas.ticks.cleaner.clean_dirtiest()
        assert len(found(replicas)) == 4


@pytest.mark.parametrize(
    ("name", "is_cleaned"), [("__transaction_state", True), ("__consumer_offsets", False)]
)
async def test_the_records_of_transactions_are_compacted_and_groups_rewrite_their_own(
    tmp_path: Path, name: str, *, is_cleaned: bool
) -> None:
    at, topic_id = TopicPartition(name, 0), TopicId(bytes(range(16)))
    configs = {"cleanup.policy": "compact"}
    topic = TopicImage(name=name, topic_id=topic_id, partitions=(ALONE,), configs=configs)
    cluster = ClusterImage(brokers=ALL_ALIVE, topics={name: topic}, topic_names={topic_id: name})
    async with one_broker(tmp_path, log_settings=SMALL) as replicas:
        replicas.publish(ClusterDelta(partitions=frozenset({at})), cluster)
        for number in range(4):
            write(replicas, "id", f"{number}", at)
        assert await replicas.ticks.cleaner.clean_dirtiest() is is_cleaned


async def test_a_record_is_compacted_at_last_however_little_is_dirty(tmp_path: Path) -> None:
    """KIP-354; the records here have times that are long gone."""
    async with one_broker(tmp_path, log_settings=SMALL) as replicas:
        rarely = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.9"}
        publish(replicas, ALONE, **rarely)
        for number in range(4):
            write(replicas, f"k{number}", "old")
        assert await replicas.ticks.cleaner.clean_dirtiest()  # nothing was clean: all is dirty
        write(replicas, "k0", "new")
        write(replicas, "k9", "new")
        assert not await replicas.ticks.cleaner.clean_dirtiest()
        publish(replicas, ALONE, **rarely, max_compaction_lag_ms="1")
        assert replicas.drivers[AT].log.settings.segment_ms == 1  # only full segments are compacted
        assert await replicas.ticks.cleaner.clean_dirtiest()
        assert [offset for offset, _ in found(replicas)] == [1, 2, 3, 4, 5]
        write(replicas, "k1", "of no known time", timestamp_ms=-1)  # the active segment until now
        write(replicas, "k2", "of no known time", timestamp_ms=-1)
        assert await replicas.ticks.cleaner.clean_dirtiest()  # up to the first of those
        write(replicas, "k3", "new", timestamp_ms=-1)
        assert not await replicas.ticks.cleaner.clean_dirtiest()


class Renames(RealDisk):
    """Tells of each name that a swap changes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bool] = []
        self.note: Callable[[], None] = lambda: None

    def rename(self, source: str, target: str) -> None:
        if target.endswith(".log.swap") or source.endswith(".log.swap"):
            self.note()
        super().rename(source, target)


class Turns(HeldQueue):
    """Says whether a work of the log has ended and the next one has not begun."""

    def __init__(self) -> None:
        super().__init__()
        self.is_between = False  # two works of one log

    def submit(
        self, key: Hashable, work: Callable[[], T], done: Callable[[T | StorageError], None]
    ) -> None:
        def told(outcome: T | StorageError) -> None:
            self.is_between = key == AT
            done(outcome)
            self.is_between = False

        super().submit(key, work, told)


async def test_no_work_on_a_log_runs_while_a_cleaned_segment_is_swapped_in(tmp_path: Path) -> None:
    """A survey at that time misses a segment: retention would remove the records before it."""
    disk, queue = Renames(), Turns()
    disk.note = lambda: disk.seen.append(queue.is_between)
    async with one_broker(tmp_path, disk=disk, disk_queue=queue, log_settings=SMALL) as replicas:
        publish(replicas, ALONE, cleanup_policy="compact")
        for number in range(6):
            write(replicas, f"k{number % 2}", f"{number}")
        assert await replicas.ticks.cleaner.clean_dirtiest()
        assert [offset for offset, _ in found(replicas)] == [3, 4, 5]
    assert disk.seen
    assert all(disk.seen)


@pytest.mark.jumping_time
async def test_the_cleaner_reads_and_writes_so_many_bytes_in_a_second(tmp_path: Path) -> None:
    async with compacting(tmp_path) as replicas:
        rate = {"1": {"log.cleaner.io.max.bytes.per.second": "10.0"}}
        delta = ClusterDelta(broker_configs=frozenset(rate))
        replicas.publish(delta, replace(replicas.image, broker_configs=rate))
        for number in range(3):
            write(replicas, "k", f"{number}")
        size = replicas.drivers[AT].log.size // 3  # of a batch
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        assert await replicas.ticks.cleaner.clean_dirtiest()
        assert loop.time() - began_s >= size / 10


@pytest.mark.parametrize("operation", ["append", "fsync", "truncate"])
async def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path, operation: str) -> None:
    disk = FaultyDisk()
    async with compacting(tmp_path, disk) as replicas:
        for number in range(6):
            write(replicas, f"k{number % 2}", f"{number}")
        before = found(replicas)
        disk.on, disk.errors = ".cleaned", {operation: ENOSPC}
        assert not await replicas.ticks.cleaner.clean_dirtiest()
        assert found(replicas) == before
        assert list(tmp_path.rglob("*.cleaned")) == []
        write(replicas, "k0", "6")
        disk.errors = {}
        assert await replicas.ticks.cleaner.clean_dirtiest()
        assert found(replicas) == [(4, b"4"), (5, b"5"), (6, b"6")]
        assert not replicas.failure.done()


@pytest.mark.parametrize("code", [EIO, ENOSPC])
@pytest.mark.parametrize("stage", ["survey", "pass"])
async def test_a_log_that_cannot_be_cleaned_leaves_its_turn_to_the_next(
    tmp_path: Path, code: int, stage: str
) -> None:
    disk = FaultyDisk()
    other = TopicPartition(AT.topic, 1)
    async with one_broker(tmp_path, disk=disk, log_settings=SMALL) as replicas:
        publish_all(replicas, [ALONE, ALONE], cleanup_policy="compact")
        bad = replicas.drivers[AT].log
        for number in range(6):
            for at in (AT, other):
                write(replicas, "k", f"{number}", at)
        if stage == "survey":
            bad.survey.facts = refusing(code)  # type: ignore[method-assign]
        disk.on, disk.errors = f"{AT.topic}-0/{0:020}.log.cleaned", {"append": code}
        cleaner, checkpoints = replicas.ticks.cleaner, replicas._logs.checkpoints
        assert await cleaner.clean_dirtiest()
        assert not await cleaner.clean_dirtiest()
        assert (checkpoints.cleaned(AT), checkpoints.cleaned(other)) == (0, 5)
        disk.errors = {}
        vars(bad.survey).pop("facts", None)
        assert await cleaner.clean_dirtiest() == (code == ENOSPC)  # it is tried again, or never
        assert cleaner.uncleanable_count == (code == EIO)


def refusing(code: int) -> Callable[..., list[SegmentFacts]]:
    def refuse(advances: Sequence[Advance] = ()) -> list[SegmentFacts]:
        raise OSError(code, "refused")

    return refuse


async def test_a_checkpoint_that_is_not_written_says_nothing_of_the_log(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with compacting(tmp_path, disk) as replicas:
        for _ in range(2):
            for number in range(3):
                write(replicas, "k", f"{number}")
            disk.on, disk.errors = "cleaner-offset-checkpoint", {"append": EIO}
            assert await replicas.ticks.cleaner.clean_dirtiest()
            disk.errors = {}


async def test_a_log_that_loses_records_under_the_cleaner_is_cleaned_later(tmp_path: Path) -> None:
    async with compacting(tmp_path) as replicas:
        for number in range(6):
            write(replicas, "k", f"{number}")
        log = replicas.drivers[AT].log

        def lose(advances: Sequence[Advance] = ()) -> list[SegmentFacts]:
            log.advance_log_start_offset(1)
            return refusing(EIO)()

        log.survey.facts = lose  # type: ignore[method-assign]
        assert not await replicas.ticks.cleaner.clean_dirtiest()
        del log.survey.facts
        assert await replicas.ticks.cleaner.clean_dirtiest()


async def test_a_pass_over_a_log_that_was_cut_meanwhile_leaves_no_place(tmp_path: Path) -> None:
    async with compacting(tmp_path) as replicas:
        for number in range(8):
            write(replicas, f"k{number}", "alone")  # so that no segment is swapped in
        log, checkpoints = replicas.drivers[AT].log, replicas._logs.checkpoints
        begin = log.compaction.begin

        def begin_one_that_is_cut(*arguments: Any, **options: Any) -> Cleaning:
            cleaning = begin(*arguments, **options)
            run = cleaning.run

            def run_and_cut() -> Iterator[CleanedSegment | None]:
                yield from run()
                log.truncate_to(3)
                checkpoints.note_truncated(AT, log)

            cleaning.run = run_and_cut  # type: ignore[method-assign]
            return cleaning

        log.compaction.begin = begin_one_that_is_cut  # type: ignore[method-assign]
        assert not await replicas.ticks.cleaner.clean_dirtiest()
        assert (checkpoints.cleaned(AT), log.log_end_offset) == (0, 3)
