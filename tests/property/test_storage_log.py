"""A log against a list of batches, under any sequence of what may be done to it; and epochs."""

from dataclasses import dataclass
from random import Random
from typing import Any

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.append_checks import stamped_by_another, usual_copies
from quorumlog.storage.core.leader_epochs import EpochEntry, LeaderEpochs
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import RecordsTooLarge, UnexpectedOffset
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import Epoch, Offset
from quorumlog.wire.codec.records import Compression, Record, encode_batch, read_header, restamp
from quorumlog.wire.codec.transaction_markers import (
    TransactionMarker,
    encode_marker,
    marked_headers,
)
from tests.support.native import native, needs_native
from tests.support.sizes import examples
from tests.support.storage.batches import DIRECTORY, batch, read_all

SETTINGS = LogSettings(segment_bytes=500, index_interval_bytes=100)


@dataclass(frozen=True)
class Stored:
    """One batch of the model."""

    base_offset: int
    next_offset: int
    epoch: int
    data: bytes


class LogMachine(RuleBasedStateMachine):
    """Crashes included: what was flushed stays, and what is there is a prefix of what was."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.recovery_point = 0
        self.epoch = 0
        self.count = 0
        self.start = 0
        self.kept_start = 0  # what the log-start-offset-checkpoint says
        self.known_from = 0  # where the leader epochs begin
        self.batches: list[Stored] = []  # all that the segments hold, also below the start
        self.log = self.open(clean=False)

    def open(self, *, clean: bool) -> Log:
        return Log.open(
            self.disk,
            DIRECTORY,
            SETTINGS,
            clean=clean,
            recovery_point=self.recovery_point,
            log_start_offset=self.kept_start,
        )

    def reopen(self, *, clean: bool) -> None:
        """The start goes back to the checkpoint at most, and no segment comes back."""
        self.log = self.open(clean=clean)
        assert self.kept_start <= self.log.log_start_offset <= max(self.start, self.kept_start)
        self.start = self.known_from = self.log.log_start_offset
        first = self.log.segment_base_offsets[0]
        self.batches = [part for part in self.batches if part.base_offset >= first]

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.start

    @rule(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), as_leader=st.booleans())
    def append(self, sizes: list[int], as_leader: bool) -> None:
        offset, parts = self.end, []
        for size in sizes:
            values = [f"value-{self.count + index}" for index in range(size)]
            self.count += size
            data = batch(*values, base_offset=offset, leader_epoch=self.epoch)
            parts.append(Stored(offset, offset + size, self.epoch, data))
            offset += size
        if as_leader:
            for part in parts:
                info = self.log.append_as_leader(part.data, leader_epoch=self.epoch, wall_ms=0)
                assert info.first_offset == part.base_offset
                assert info.last_offset == part.next_offset - 1
        else:
            info = self.log.append_as_follower(b"".join(part.data for part in parts))
            assert (info.first_offset, info.last_offset) == (self.end, offset - 1)
        self.batches += parts

    @rule()
    def elect(self) -> None:
        self.epoch += 1

    @rule(back=st.integers(-2, 12))
    def truncate(self, back: int) -> None:
        self._truncate(max(self.start, self.end - back))

    def _truncate(self, offset: int) -> None:
        self.log.truncate_to(offset)
        self.recovery_point = min(self.recovery_point, self.log.flushed_offset)
        cut = [part for part in self.batches if part.next_offset > offset]
        self.batches = [part for part in self.batches if part.next_offset <= offset]
        if cut:  # the start may lie in a batch that is cut
            self.start = min(self.start, cut[0].base_offset)
            self.kept_start = min(self.start, self.kept_start)
            self.known_from = min(self.start, self.known_from)

    @rule(forward=st.integers(0, 8))
    def advance_start(self, forward: int) -> None:
        self.start = min(self.start + forward, self.end)
        self.log.advance_log_start_offset(self.start)
        if self.start == self.end:
            self.log.truncate_fully_and_start_at(self.start)
            self.batches, self.recovery_point, self.known_from = [], self.start, self.start
            self.epoch += 1

    @rule()
    def keep_start(self) -> None:
        self.kept_start = self.known_from = self.start
        self.log.epochs.truncate_from_start(self.start)

    @rule()
    def remove_dead_segments(self) -> None:
        self.log.remove_dead_segments()
        assert not self.log.has_dead_segments
        names = {f"{base_offset:020d}.log" for base_offset in self.log.segment_base_offsets}
        assert {
            n for n in self.disk.listdir(DIRECTORY) if n.endswith((".log", ".deleted"))
        } == names

    @rule()
    def flush(self) -> None:
        assert self.log.flush() == self.end
        self.recovery_point = self.end

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.log.close(clean=clean)
        self.disk.kill()
        self.reopen(clean=clean)

    @rule(seed=st.integers(0, 1 << 32))
    def lose_power(self, seed: int) -> None:
        flushed = self.log.flushed_offset
        self.disk.crash(Random(seed))
        was_end = self.end
        self.reopen(clean=False)
        end = self.log.log_end_offset
        assert flushed <= end <= was_end
        assert self.log.flushed_offset == end
        self.recovery_point = min(self.recovery_point, end)
        self.batches = [part for part in self.batches if part.next_offset <= end]

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        end_offset = data.draw(st.integers(self.start, self.end + 1))
        max_bytes = data.draw(st.integers(1, 700))
        records, next_offset = self.log.read(offset, max_bytes=max_bytes, end_offset=end_offset)
        wanted = [
            part
            for part in self.batches
            if part.next_offset > offset and part.next_offset <= end_offset
        ]
        if not wanted or offset >= end_offset:
            assert (records, next_offset) == (b"", offset)
            return
        assert read_header(bytes(records)).base_offset == wanted[0].base_offset
        assert b"".join(part.data for part in wanted).startswith(bytes(records))
        assert next_offset in {part.next_offset for part in wanted}
        assert len(records) <= max(max_bytes, len(wanted[0].data))

    @invariant()
    def it_is_what_the_model_says(self) -> None:
        held = [part for part in self.batches if part.next_offset > self.start]
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, self.end)
        assert read_all(self.log) == b"".join(part.data for part in held)
        assert [header.base_offset for header in self.log.headers(self.start)] == [
            part.base_offset for part in held
        ]

    @invariant()
    def its_epochs_start_where_their_batches_do(self) -> None:
        expected: dict[int, int] = {}
        for part in self.batches:
            if part.next_offset > self.known_from:
                expected.setdefault(part.epoch, max(part.base_offset, self.known_from))
        entries = {int(epoch): int(start) for epoch, start in self.log.epochs.entries}
        if not expected and self.batches and self.known_from == self.end:
            # All is below the start: the epoch in force there may be known still, as in Kafka.
            assert entries in ({}, {self.batches[-1].epoch: self.end})
            return
        assert entries == expected


def test_a_log_is_a_list_of_batches() -> None:
    run_state_machine_as_test(LogMachine, settings=examples(150, stateful_step_count=30))


def dumb_end(entries: list[EpochEntry], epoch: int, log_end_offset: int) -> tuple[int, int]:
    """KIP-101 and KIP-279, sentence by sentence, on lists."""
    if epoch == -1 or not entries or epoch > entries[-1].epoch:
        return (-1, -1)
    if epoch == entries[-1].epoch:
        return (epoch, log_end_offset)
    higher = [entry for entry in entries if entry.epoch > epoch]
    lower = [entry for entry in entries if entry.epoch <= epoch]
    return (lower[-1].epoch if lower else epoch, higher[0].start_offset)


steps = st.one_of(
    st.tuples(st.just("assign"), st.integers(0, 8), st.integers(0, 20)),
    st.tuples(st.just("end"), st.just(0), st.integers(0, 20)),
    st.tuples(st.just("start"), st.just(0), st.integers(0, 20)),
)


@examples(300)
@given(st.lists(steps, max_size=8))
def test_epochs_do_what_a_dumb_list_does(changes: list[tuple[str, int, int]]) -> None:
    epochs, dumb = LeaderEpochs(), list[EpochEntry]()
    for kind, epoch, offset in changes:
        if kind == "assign":
            epochs = epochs.assigned(epoch, offset)
            if not (dumb and dumb[-1].epoch == epoch and dumb[-1].start_offset <= offset):
                dumb = [e for e in dumb if e.epoch < epoch and e.start_offset < offset]
                dumb.append(EpochEntry(Epoch(epoch), Offset(offset)))
        elif kind == "end":
            epochs = epochs.truncated_from_end(offset)
            dumb = [e for e in dumb if e.start_offset < offset]
        else:
            epochs = epochs.truncated_from_start(offset)
            below = [e for e in dumb if e.start_offset <= offset]
            first = [EpochEntry(below[-1].epoch, Offset(offset))] if below else []
            dumb = first + [e for e in dumb if e.start_offset > offset]
        assert list(epochs.entries) == dumb
    for asked in range(-1, 10):
        assert epochs.end_offset_for(asked, 30) == dumb_end(dumb, asked, 30)
    for offset in range(25):
        held = [entry.epoch for entry in dumb if entry.start_offset <= offset]
        assert epochs.epoch_at(offset) == (held[-1] if held else -1)


@st.composite
def copies(draw: st.DrawFn) -> bytes:
    """Return batches that continue a log at offset 7, in its epoch 3; perhaps damaged."""
    offset, parts = 7, []
    for _ in range(draw(st.integers(1, 4))):
        records = [Record(offset + n, 1000 - n, None, b"v" * n) for n in range(3)]
        marker = TransactionMarker(5, 0, 2, draw(st.booleans()))
        numbered = draw(st.booleans())
        batch = bytearray(
            encode_marker(marker, 1000)
            if draw(st.integers(0, 4)) == 0
            else encode_batch(
                records,
                base_offset=offset,
                compression=draw(st.sampled_from([Compression.NONE, Compression.GZIP])),
                producer_id=5 if numbered else -1,
                producer_epoch=0 if numbered else -1,
                base_sequence=offset if numbered else -1,
            )
        )
        restamp(batch, 0, base_offset=offset, leader_epoch=3)
        offset = read_header(batch).next_offset
        parts.append(batch)
    damaged = draw(st.sampled_from(parts))
    match draw(st.sampled_from(["nothing", "flip", "number", "cut", "epoch"])):
        case "flip":
            damaged[draw(st.integers(0, len(damaged) - 1))] ^= 1 << draw(st.integers(0, 7))
        case "number":  # with a checksum that fits, unless the length changes
            at, size = draw(st.sampled_from(FIELDS))
            damaged[at : at + size] = draw(st.binary(min_size=size, max_size=size) | LIMITS)[-size:]
            damaged[17:21] = crc32c(bytes(damaged[21:])).to_bytes(4)
        case "cut":
            del parts[-1][draw(st.integers(0, len(parts[-1]) - 1)) :]
        case "epoch":
            damaged[12:16] = draw(st.sampled_from([2, 4, 5])).to_bytes(4)
        case _:
            pass
    return b"".join(parts)


FIELDS = [(0, 8), (8, 4), (12, 4), (16, 1), (21, 2), (23, 4), (27, 8), (35, 8), (43, 8), (51, 2)]
FIELDS += [(53, 4), (57, 4)]
LIMITS = st.integers(-2, 3).map(lambda n: n.to_bytes(8, signed=True)) | st.sampled_from(
    [(2**63 - 1).to_bytes(8), (2**31 - 1).to_bytes(8), b"\x80" + bytes(7), b"\0\0\0\0\x80\0\0\0"]
)


@needs_native
@examples(400)
@given(copies(), st.sampled_from([-1, 2, 3, 4, 2**31 - 1]), st.sampled_from([0, 7, 2**63]))
def test_the_lane_checks_a_followers_copies_as_python_does(
    records: bytes, leader_epoch: int, next_offset: int
) -> None:
    """The pass in C leaves to Python all that Python refuses, cuts or has to change."""
    log: dict[str, Any] = {"next_offset": next_offset, "latest_epoch": 3}
    with native(is_on=True):
        found = usual_copies(records, leader_epoch=leader_epoch, **log)
    try:
        marked = marked_headers(records)
        headers = [(position, header) for position, header, _ in marked]
        expected = stamped_by_another(
            memoryview(records), headers, leader_epoch=leader_epoch, may_have_gaps=False, **log
        )
    except (CorruptBatch, UnexpectedOffset, RecordsTooLarge):
        assert found is None
        return
    is_usual = expected is not None and expected.size == len(records) and not expected.epoch_starts
    if found is None:
        markers = [header for _, header in headers if header.is_control]
        assert not is_usual or any(header.producer_id < 0 for header in markers)
        return
    append, of_producers = found
    assert expected is not None
    assert append == expected._replace(chunks=[records], epoch_starts=())
    assert of_producers == [one for one in headers if one[1].producer_id >= 0]
    numbered = [one for one in marked if one[1].producer_id >= 0]
    assert marked_headers(records, of_producers) == numbered
