"""A process with one log, which it appends to, flushes, cuts, shortens, cleans and opens again.

It does in single steps what `LogRetention`, `LogStarts` and `LogCleaner` do in tasks, so that a
crash, and each other step, may come between any two of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from quorumlog.broker.partitions.core.placement import Standing
from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.log import loaded_log
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.chaos.mutants.parts import Parts
from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.randomness import Rng, seeded
from quorumlog.chaos.simulation.kernel.rules import check
from quorumlog.chaos.simulation.kernel.run import Environment
from quorumlog.chaos.simulation.kernel.swarm import Options
from quorumlog.chaos.simulation.worlds.logs.damage import Damage, records_on_disk
from quorumlog.chaos.simulation.worlds.logs.oracle import (
    NO_PRODUCER,
    LogOracle,
    Said,
    TransactionBatch,
    TransactionModel,
)
from quorumlog.storage.core.cleaning import CleaningRules
from quorumlog.storage.core.producer_snapshot import SnapshotEntry
from quorumlog.storage.core.retention import EVERYTHING, RetentionLimits
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import LacksRecords, StorageError
from quorumlog.storage.io.cleaning import CleanedSegment, Cleaning
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.producer_snapshots import ProducerSnapshot
from quorumlog.wire.codec.identifiers import Offset, TopicId, TopicPartition
from quorumlog.wire.codec.records import Record, decode_batch, encode_batch, read_header
from quorumlog.wire.codec.transaction_markers import TransactionMarker, decode_marker, encode_marker

TRANSACTIONAL: Final = (10, 11)  # producers
SHARE: Final = 0.4  # of the compacted logs
MARKER_SHARE: Final = 0.4


class LogTransactions:
    """Of one log, with the rules of a replica; nothing, in the share of the logs that has none."""

    def __init__(self, rng: Rng, model: TransactionModel, *, may_be_there: bool) -> None:
        self.are_there: Final = may_be_there and rng.random() < SHARE
        self.rng: Final = rng
        self._model: Final = model
        self._producers = ProducerStates()

    def load(self, log: Log) -> None:
        """Learn the producers from a log that was opened or cut. Raises StorageError."""
        if self.are_there:
            self._producers = loaded_log.load_producers(log)

    def keep(self, log: Log, last_of: Mapping[int, int]) -> None:
        """Write a snapshot of the producers. Raises StorageError.

        Without transactions, of the last offset of each, as in the model.
        """
        if self.are_there:
            loaded_log.work_to_keep(log, self._producers, log.log_end_offset)()
            return
        entries = [SnapshotEntry(one, 0, last, last, 0, 0) for one, last in last_of.items()]
        log.producers.keep(ProducerSnapshot(int(log.log_end_offset), entries))

    def append(self, log: Log, append_records: Callable[[int], None]) -> TransactionMarker | None:
        """Begin a transaction or go on with it; or return the marker that is to end it."""
        producer_id, base_offset = self.rng.choice(TRANSACTIONAL), int(log.log_end_offset)
        if self._model.is_open(producer_id) and self.rng.random() < MARKER_SHARE:
            return TransactionMarker(producer_id, 0, 0, self.rng.random() < 0.5)
        append_records(producer_id)
        batch = TransactionBatch(producer_id, base_offset, int(log.log_end_offset))
        self._model.note(batch)
        return None

    def note(self, log: Log, batch: bytes, wall_ms: int) -> None:
        """Note the batch at the end of the log."""
        header, end = read_header(batch), int(log.log_end_offset)
        marker = decode_marker(batch) if header.is_control else None
        aborted = self._producers.record(header, end - header.record_count, wall_ms, marker)
        if aborted is not None:
            log.aborted.add(aborted)
        if marker is not None:
            self._model.note(TransactionBatch(marker.producer_id, end - 1, end, marker.commits))

    def decided_end(self, log: Log, high_watermark: int) -> int:
        """Return the last stable offset that a replica passes to its cleaner."""
        transactions = self._producers.transactions
        transactions.committed_to(high_watermark)
        return transactions.decided_end(log.log_start_offset, high_watermark)


def said_marker(batch: bytes, epoch: int) -> Said:
    """Return the record of a marker's batch."""
    (record,) = decode_batch(batch)
    return Said(epoch, record.key or b"", record.value, record.timestamp_ms, NO_PRODUCER)


LOG_DIR: Final = "/data"
AT: Final = TopicPartition("logs", 0)
LOG_PATH: Final = f"{LOG_DIR}/{AT}"
TOPIC_ID: Final = TopicId(b"one topic of all")
WALL_MS: Final = 1_700_000_000_000  # when a run begins
KEYS: Final = 6
PRODUCERS: Final = 3
EARLY_MS_MAX: Final = 2_000

Slices = Iterator[CleanedSegment | None]


class LogNode:
    """A Process. `oracle` has the expected content of its log."""

    def __init__(
        self, machine: Machine, environment: Environment, parts: Parts, options: Options
    ) -> None:
        self.machine: Final = machine
        self.log: Log
        self._logs: LogDirectory
        self._environment: Final = environment
        self._parts: Final = parts
        self._rng: Final = seeded(f"log {machine.node_id}", environment.seed)
        self._later_rng: Final = seeded(f"log lookups {machine.node_id}", environment.seed)
        self._step_us: Final = options.number("step_us")
        self._is_damaged: Final = options.flag("is_damaged")
        damage_rng = seeded(f"log damage {machine.node_id}", environment.seed)
        self._damage: Final = Damage(machine, damage_rng, LOG_PATH)
        self._min_lag_ms: Final = options.number("min_lag_ms")
        self._delete_retention_ms: Final = options.number("delete_retention_ms")
        self._is_compacted: Final = options.flag("is_compacted")
        limits = RetentionLimits(
            max_bytes=options.number("retention_bytes"), max_age_ms=options.number("retention_ms")
        )
        self._limits: Final = EVERYTHING if self._is_compacted else limits
        self._settings: Final = LogSettings(
            segment_bytes=options.number("segment_bytes"),
            index_interval_bytes=options.number("index_interval_bytes"),
            cleanup_policy="compact" if self._is_compacted else "delete",
        )
        self.oracle: Final = LogOracle(
            is_compacted=self._is_compacted,
            delete_retention_ms=self._delete_retention_ms,
            min_lag_ms=self._min_lag_ms,
        )
        self._transactions: Final = LogTransactions(
            seeded(f"log transactions {machine.node_id}", environment.seed),
            self.oracle.transactions,
            may_be_there=self._is_compacted and not self._is_damaged,
        )
        self._epoch = 0
        self._has_lost_power = False
        self._cleaning: Cleaning | None = None
        self._slices: Slices = iter(())
        self._replaced: list[str] = []
        self._steps: Final[list[tuple[Callable[[], None], int]]] = [
            (self._append, 50),
            (self._flush, 8),
            (self._commit, 14),
            (self._keep_start, 3),
            (self._write_checkpoints, 2),
            (self._keep_producers, 2),
            (self._look, 4),
            (self._cut, 1),
            (self._lead, 2),
            (self._restart, 1),
            *(
                [(self._clean, 30)]
                if self._is_compacted
                else [(self._retain, 6), (self._delete_records, 2)]
            ),
            *([(self._append_in_transaction, 15)] if self._transactions.are_there else []),
            *([(self._lose_handles, 2)] if self._is_damaged else []),
        ]

    # --- a life of the process ---

    def boot(self) -> None:
        """Open the log. Raises StorageError."""
        self._cleaning, self._replaced = None, []
        disk = self._parts.disk(self.machine.disk)
        self._logs = self._parts.directory(disk, LOG_DIR, self._settings, self._parts.log)
        self._logs.start()
        on_disk = 0 if self.oracle.was_flushed else records_on_disk(self.machine.disk, LOG_PATH)
        self._logs.registrations.may_have_lost_power = self._has_lost_power
        try:
            self.log, high_watermark = self._logs.open(
                AT, TOPIC_ID, {}, standing=Standing.UNDECIDED
            )
        except LacksRecords as error:
            self._damage.repair(error)
            raise
        self.oracle.recovered(self.log, has_lost_power=self._has_lost_power, on_disk=on_disk)
        check(high_watermark <= self.oracle.committed, f"commit: {high_watermark} is too much")
        self._check_producers()
        self._transactions.load(self.log)
        self._has_lost_power = False
        self._lead()
        self.machine.later(self._step_us, self._step)
        if self._has_damage and not self.oracle.was_flushed:
            self._damage.lose_power_soon(10 * self._step_us)

    def stopped(self, *, loses_power: bool) -> None:
        """Note whether unflushed records may be gone."""
        self._has_lost_power |= loses_power

    def resumed(self) -> None:
        """Nothing was missed: a step looks at the clock."""

    def _step(self) -> None:
        actions, weights = zip(*self._steps, strict=True)
        if not self.machine.is_paused:
            self._perform(self._rng.choices(actions, weights)[0])
        self.machine.later(self._rng.randrange(1, 2 * self._step_us), self._step)

    def _perform(self, action: Callable[[], None]) -> None:
        try:
            action()
        except (StorageError, OSError):
            self.machine.fail()
        what = f"{action.__name__[1:]} [{self.log.log_start_offset}, {self.log.log_end_offset})"
        now_us = self._environment.timeline.now_us
        self._environment.trace.stepped(now_us, self.machine.node_id, what.encode(), str, what)

    @property
    def _has_damage(self) -> bool:
        return self._is_damaged and not self._environment.is_calm

    def _wall_ms(self) -> int:
        return WALL_MS + self._environment.timeline.now_us // 1000

    # --- appends, flushes, cuts ---

    def _append(self) -> None:
        self._append_records(self._rng, self._rng.randrange(-1, PRODUCERS))

    def _append_in_transaction(self) -> None:
        """Begin a transaction, go on with it, or end it."""
        rng = self._transactions.rng
        marker = self._transactions.append(
            self.log,
            lambda producer_id: self._append_records(rng, producer_id, is_transactional=True),
        )
        if marker is not None:
            batch = encode_marker(marker, self._wall_ms())
            self._append_batch([said_marker(batch, self._epoch)], batch)

    def _append_records(
        self, rng: Rng, producer_id: int, *, is_transactional: bool = False
    ) -> None:
        base_offset = int(self.log.log_end_offset)
        said = [self._new_record(rng, producer_id) for _ in range(rng.randrange(1, 4))]
        batch = encode_batch(
            [Record(at, one.timestamp_ms, one.key, one.value) for at, one in enumerate(said)],
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=base_offset if producer_id >= 0 else -1,
            is_transactional=is_transactional,
        )
        self._append_batch(said, batch)

    def _append_batch(self, said: Sequence[Said], batch: bytes) -> None:
        base_offset = int(self.log.log_end_offset)
        self.oracle.appending(said, len(batch))
        info = self.log.append_as_leader(batch, leader_epoch=self._epoch, wall_ms=self._wall_ms())
        first = info.first_offset
        check(first == base_offset, f"append: at {first}, not {base_offset}")
        self._transactions.note(self.log, batch, self._wall_ms())

    def _new_record(self, rng: Rng, producer_id: int) -> Said:
        key = b"key %d" % rng.randrange(KEYS)
        is_tombstone = self._is_compacted and rng.random() < 0.15
        value = None if is_tombstone else b"%x" % rng.getrandbits(32 * rng.randrange(1, 8))
        late_ms = rng.choice((0, 0, 0, rng.randrange(50)))
        if not self._is_compacted and rng.random() < 0.01:
            late_ms = -rng.randrange(EARLY_MS_MAX)  # the client's clock is ahead
        return Said(self._epoch, key, value, self._wall_ms() - late_ms, producer_id)

    def _flush(self) -> None:
        self.oracle.flushed(int(self.log.flush()))

    def _lose_handles(self) -> None:
        """Lose the written, unflushed bytes; the flush must notice it."""
        if self._has_damage:
            self._damage.lose_handles()
        self._flush()

    def _commit(self) -> None:
        ends = self.oracle.batch_ends(self.oracle.committed, int(self.log.flushed_offset))
        self.oracle.commit(self._rng.choice(ends))

    def _cut(self) -> None:
        offset = self._rng.randint(self.oracle.committed, int(self.log.log_end_offset))
        self.oracle.cutting(offset)
        self.log.truncate_to(offset)
        self.oracle.cut(self.log)
        self._transactions.load(self.log)
        self._logs.checkpoints.note_truncated(AT, self.log)

    def _lead(self) -> None:
        self._epoch += 1

    # --- the files that the next start reads ---

    def _write_checkpoints(self) -> None:
        checkpoints = self._logs.checkpoints
        checkpoints.note_high_watermarks({AT: Offset(self.oracle.committed)})
        checkpoints.write_high_watermarks()
        checkpoints.note_recovery_points({AT: self.log})
        checkpoints.write_recovery_points()

    def _keep_start(self) -> None:
        start = self._logs.checkpoints.note_log_starts({AT: self.log})[AT]
        self._logs.checkpoints.write_log_starts()
        self.oracle.start_kept(start)
        self.log.epochs.truncate_from_start(start)
        self.log.remove_dead_segments()

    def _keep_producers(self) -> None:
        self._transactions.keep(self.log, self.oracle.last_of_producers())

    def _check_producers(self) -> None:
        snapshot = self.log.producers.newest()
        if snapshot is None:
            return
        end = self.log.log_end_offset
        check(snapshot.offset <= end, f"producers: known up to {snapshot.offset} of {end}")
        known = self.oracle.last_of_producers(snapshot.offset)
        kept = {entry.producer_id: entry.last_offset for entry in snapshot.entries}
        check(kept == known, f"producers: {kept} below {snapshot.offset}, not {known}")

    def _restart(self) -> None:
        self.log.close(clean=True)
        self.oracle.flushed(int(self.log.log_end_offset))
        committed = Offset(self.oracle.committed)
        self._logs.finish({AT: self.log}, {AT: committed}, 1, is_clean=True)
        self.oracle.start_kept(int(self.log.log_start_offset))
        self.machine.stop(self._step_us, loses_power=self._rng.random() < 0.5)
        if self._has_damage:
            self._damage.maybe_take_segment(may_have_gaps=self._is_compacted)

    # --- shortening ---

    def _retain(self) -> None:
        log, end, wall_ms = self.log, int(self.log.log_end_offset), self._wall_ms()
        before = int(log.log_start_offset)
        facts = log.survey.facts()
        if not facts:
            return  # nothing is on the disk yet
        start = self._parts.partition.retention().start_after(
            facts,
            self._limits,
            high_watermark=self.oracle.committed,
            log_end_offset=end,
            wall_ms=wall_ms,
        )
        if start > log.active_base_offset:
            log.roll(start)
        self._start_at(start)
        self.oracle.retained(log, self._limits, before, wall_ms)

    def _delete_records(self) -> None:
        self._start_at(self._rng.randint(int(self.log.log_start_offset), self.oracle.committed))

    def _start_at(self, offset: int) -> None:
        self.oracle.start_moved(offset)
        self.log.advance_log_start_offset(offset)

    def _clean(self) -> None:
        """Begin a pass, or do one slice of it."""
        if self._replaced:
            names, self._replaced = self._replaced, []
            self.log.compaction.remove_replaced(names)
        elif self._cleaning is None:
            self._begin_cleaning()
        else:
            self._clean_slice(self._cleaning)

    def _begin_cleaning(self) -> None:
        log, wall_ms, checkpoints = self.log, self._wall_ms(), self._logs.checkpoints
        high_watermark = self.oracle.committed
        found = self._parts.partition.cleanable().dirtiness(
            log.survey.facts(),
            first_dirty_offset=max(checkpoints.cleaned(AT), log.log_start_offset),
            high_watermark=high_watermark,
            last_stable_offset=self._transactions.decided_end(log, high_watermark),
            min_lag_ms=self._min_lag_ms,
            wall_ms=wall_ms,
        )
        if not found.dirty_bytes:
            return
        self._flush()
        rules = CleaningRules(
            first_dirty_offset=found.first_dirty_offset,
            end_offset=found.end_offset,
            wall_ms=wall_ms,
            delete_retention_ms=self._delete_retention_ms,
            producers_since_ms=0,
        )
        self.oracle.pass_began(found.end_offset, log.active_base_offset, wall_ms)
        flushed_offset = log.flushed_offset
        self._cleaning = log.compaction.begin(rules, log.settings, flushed_offset=flushed_offset)
        self._slices = self._cleaning.run()

    def _clean_slice(self, cleaning: Cleaning) -> None:
        for cleaned in self._slices:
            if cleaned is not None:
                names = self.log.compaction.swap_in(cleaned, self.log.settings)
                if names is None:
                    self._cleaning = None
                else:
                    self._replaced = names
                    self.oracle.look_at_segment(self.log, cleaned.replaces[0])
            return
        self._cleaning = None
        end_offset = cleaning.newest.end_offset
        self._logs.checkpoints.note_cleaned(AT, Offset(end_offset))
        self._logs.checkpoints.write_cleaned()
        self.oracle.pass_ended(self.log, end_offset)

    # --- reading ---

    def _look(self) -> None:
        seen = self.oracle.look(self.log)
        times = [record.timestamp_ms for record in seen.records.values()]
        if times:
            self.oracle.check_lookup(
                self.log, seen, self._rng.choice(times) + self._later_rng.randrange(2)
            )

    def finish(self) -> None:
        """Do all that is due, and look at the files that are left."""
        for action in (self._flush, self._commit_all, self._keep_start, self._look):
            self._perform(action)
        if not self.machine.is_up:
            return
        if not self._is_compacted:
            self._perform(self._retain)
            self._perform(self._keep_start)
        names = self.machine.disk.listdir(self.log.directory)
        logs = sorted(name for name in names if name.endswith(".log"))
        wanted = [f"{offset:020d}.log" for offset in self.log.segment_base_offsets]
        check(logs == wanted, f"files: {logs}, not {wanted}")

    def _commit_all(self) -> None:
        self.oracle.commit(int(self.log.flushed_offset))
