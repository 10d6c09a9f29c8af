"""Groups of the classic protocol, their offsets and transactions, under random schedules.

Members, producers, strangers, refusals, fail-overs and rewrites of the log: the worlds in
`tests/support/groups` have the steps and the rules (a to e). Mutants must be found.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from quorumlog.broker.groups.core import events
from quorumlog.broker.groups.core.classic import ClassicProtocol
from quorumlog.broker.groups.core.group import Group
from quorumlog.broker.groups.core.group_outbox import GroupOutbox, WriteDone
from quorumlog.broker.groups.core.joining import Joining
from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.pending_offsets import PendingOffset, PendingOffsets
from quorumlog.broker.groups.core.rebalance import Rebalance
from quorumlog.broker.groups.core.records import Key, LogRecord, OffsetRecord
from quorumlog.broker.groups.core.replay import Replay
from quorumlog.broker.groups.core.requests import (
    CommitOffsets,
    CommittedOffset,
    Join,
    Sync,
)
from quorumlog.broker.groups.core.rewrite import Rewrite
from quorumlog.broker.groups.core.rules import GROUP_RULES
from quorumlog.broker.groups.core.transactional_offsets import TransactionalOffsets
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import BatchHeader, Record
from quorumlog.wire.codec.transaction_markers import TransactionMarker
from tests.support.groups.log_world import LIMITS, PARTITIONS, Loss
from tests.support.groups.member_world import MemberWorld
from tests.support.sizes import tries

SEEDS = 120


def run(seeds: range) -> list[MemberWorld]:
    """Return worlds after their lives: half of them with transactions, a third with strangers."""
    worlds = []
    for seed in seeds:
        world = MemberWorld(seed, is_transactional=seed % 2 == 1, has_strangers=seed % 3 == 2)
        world.run()
        world.settle()
        worlds.append(world)
    return worlds


def test_the_promises_hold_under_any_schedule() -> None:
    worlds = run(range(tries(SEEDS)))
    assert sum(world.has_rewritten for world in worlds) > len(worlds) * 0.8
    assert sum(world.transactions_committed for world in worlds) > 2 * len(worlds)
    assert sum(world.synced for world in worlds) > 10 * len(worlds)


def test_the_log_stays_bounded_by_what_is_live() -> None:
    world = MemberWorld(0)
    for _ in range(1000):
        world.commit()
        if len(world.writes) > 5:
            world.end_write()
    world.settle()
    world.step(events.Ticked())  # what came while it was rewritten may be due for the next time
    world.settle()
    live = world.coordinator.committed.size
    size = len(world.history) - world.starts[-1]
    assert size <= max(LIMITS.records_min, LIMITS.live_factor * live)
    assert len(world.history) > 1000


def test_a_refused_slice_is_tried_again_not_at_once_but_later() -> None:
    world = MemberWorld(0)

    def commit() -> None:
        offsets = {PARTITIONS[0]: CommittedOffset(offset=len(world.history))}
        world.ask(CommitOffsets(group_id="g1", offsets=offsets))

    for _ in range(LIMITS.records_min):
        commit()
        world.end_write()
    commit()
    world.refuses = True
    world.end_write()
    assert world.coordinator.rewrite._begun_at is not None
    world.end_write()
    assert world.coordinator.rewrite._begun_at is None
    world.refuses = False
    for _ in range(LIMITS.records_min):
        assert world.starts == [0]
        commit()
        world.end_write()
    world.settle()
    assert world.starts == [0, 2 * LIMITS.records_min + 1]


def test_a_log_with_records_that_are_not_ours_is_left_alone() -> None:
    world = MemberWorld(0)
    world.coordinator.rewrite.has_foreign_records = True
    for _ in range(200):
        world.commit()
        world.settle()
    assert world.starts == [0]


# --- Planted bugs ---


def _answers_before_commit(
    self: GroupOutbox, records: tuple[LogRecord, ...], done: WriteDone
) -> None:
    done(0, ErrorCode.NONE)
    APPEND(self, records, lambda _now_ms, _error_code: None)


def _any_generation(
    self: ClassicProtocol, group: Group, request: Sync | CommitOffsets
) -> ErrorCode:
    return group.refusal(request.member_id, request.group_instance_id)


def _same_generation(self: Rebalance, group: Group, now_ms: int) -> None:
    group.generation_id -= 1
    COMPLETE_JOIN(self, group, now_ms)


def _replaces_in_memory(self: Joining, group: Group, request_id: int, joining: Join) -> None:
    old_id = group.static[joining.group_instance_id or ""]
    member = self._rename(group, old_id, joining.new_member_id)
    self._outbox.reply(request_id, self._rebalance.joined(group, member))


def _stable_while_written(self: TransactionalOffsets, group_id: str) -> frozenset[object]:
    return frozenset(self._pending.partitions(group_id))


def _acknowledged_early(
    self: GroupOutbox,
    marker: TransactionMarker,
    *,
    done: Callable[[int, ErrorCode], None],
    **others: Any,
) -> None:
    done(0, ErrorCode.NONE)
    WRITE_MARKER(self, marker, done=lambda _now_ms, _error_code: None, **others)


def _older_over_newer(self: PendingOffsets, record: OffsetRecord, log_offset: int | None) -> None:
    pass


def _always_commits(self: PendingOffsets, producer_id: int, *, commits: bool) -> object:
    return END(self, producer_id, commits=True)


def _left_by_tombstones(self: PendingOffsets, record: OffsetRecord) -> None:
    if record.committed is not None:
        NOTE_PLAIN(self, record)


def _not_replayed(self: Replay, header: BatchHeader, records: Sequence[Record]) -> None:
    pass


def _replayed_as_plain(self: Replay, header: BatchHeader, records: Sequence[Record]) -> None:
    for record in () if header.is_control else records:
        self.replay_encoded(record.key or b"", record.value)


def _marked_in_memory_only(
    self: CommittedState, producer_id: int, *, commits: bool
) -> list[PendingOffset]:
    return self.pending.end(producer_id, commits=commits)


def _waits_on(self: TransactionalOffsets, producer_id: int, group_id: str) -> None:
    pass


def _lets_go_of_open_transactions(self: Rewrite) -> bool:
    return False


def _slices_over_pending(self: PendingOffsets, key: Key) -> bool:
    return False


def _forgets_what_counts(self: Rewrite, key: Key, log_offset: int) -> None:
    pass


def _verified_for_ever(self: TransactionalOffsets, request_id: int, request: Any) -> None:
    begun = dict(self._begun)
    COMPLETE(self, request_id, request)
    self._begun.update(begun)


APPEND, COMPLETE_JOIN = GroupOutbox.append, Rebalance._complete_join
WRITE_MARKER, END = GroupOutbox.write_marker, PendingOffsets.end
NOTE_PLAIN, COMPLETE = PendingOffsets.note_plain, TransactionalOffsets._handle_complete
MUTANTS: dict[str, tuple[type, str, Callable[..., object]]] = {
    "an offset that is being written is stable": (
        TransactionalOffsets, "unstable", _stable_while_written,
    ),
    "a marker is acknowledged before its offsets are visible (KAFKA-17507)": (
        GroupOutbox, "write_marker", _acknowledged_early,
    ),
    "an older commit wins because its transaction ends later": (
        PendingOffsets, "_supersede", _older_over_newer,
    ),
    "an aborted transaction counts": (PendingOffsets, "end", _always_commits),
    "a deleted offset comes back with its transaction": (
        PendingOffsets, "note_plain", _left_by_tombstones,
    ),
    "a coordinator that takes over forgets open transactions": (
        Replay, "replay_transactional", _not_replayed,
    ),
    "a coordinator that takes over takes pending offsets for committed ones": (
        Replay, "replay_transactional", _replayed_as_plain,
    ),
    "a marker changes nothing": (CommittedState, "end_transaction", _marked_in_memory_only),
    "a commit is written although its transaction has ended meanwhile (KAFKA-14884)": (
        TransactionalOffsets, "_end_wait", _waits_on,
    ),
    "a transaction that was verified once is never verified again": (
        TransactionalOffsets, "_handle_complete", _verified_for_ever,
    ),
    "the log lets go of an open transaction": (
        Rewrite, "_is_held_by_a_transaction", _lets_go_of_open_transactions,
    ),
    "a rewritten value wins over a pending one": (PendingOffsets, "has", _slices_over_pending),
    "the log lets go of the record that a marker made count": (
        Rewrite, "note_counted", _forgets_what_counts,
    ),
    "a request is answered before its records are committed": (
        GroupOutbox, "append", _answers_before_commit,
    ),
    "any generation commits": (ClassicProtocol, "_generation_refusal", _any_generation),
    "a generation comes twice": (Rebalance, "_complete_join", _same_generation),
    "a static member is replaced in memory only": (
        Joining, "_replace_once_stored", _replaces_in_memory,
    ),
}  # fmt: skip


class MovesTheStartBeforeTheSlicesAreCommitted(Rewrite):
    def go_on(self) -> None:
        super().go_on()
        if self._has_slice_under_way and not self._todo and not self._groups:
            self._end()


class ForgetsWhatIsUnderWay(Rewrite):
    def _begin(self, applied_end: int) -> None:
        """As if the log ended with what is applied."""
        under_way = [len(write.records) for write in self._outbox._writes]
        super()._begin(applied_end + sum(under_way))


class WritesOverWhatIsUnderWay(Rewrite):
    def _write_slice(self) -> None:
        keys_under_way = GroupOutbox.keys_under_way
        try:
            GroupOutbox.keys_under_way = lambda self: frozenset()  # type: ignore[method-assign]
            super()._write_slice()
        finally:
            GroupOutbox.keys_under_way = keys_under_way  # type: ignore[method-assign]


class LetsOlderValuesWin(Rewrite):
    """Writes what was live when it began, not what is live by now."""

    def _begin(self, applied_end: int) -> None:
        super()._begin(applied_end)
        keys = [key for group_id in self._groups for key in self._committed.keys_of(group_id)]
        self._then = {key: self._committed.record_of(key) for key in keys}

    def note_applied(self, records: tuple[LogRecord, ...], next_offset: int) -> None:  # type: ignore[override]
        super().note_applied((), next_offset)

    def _record_of(self, key: Key) -> LogRecord:
        return self._then.get(key) or super()._record_of(key)


class StartsWhereItEnds(Rewrite):
    def _end(self) -> None:
        self._begun_at = self._applied_end
        super()._end()


class GivesUpOnKeysThatAreUnderWay(Rewrite):
    """Though their write may be refused."""

    def _write_slice(self) -> None:
        for key in self._outbox.keys_under_way():
            self._todo.pop(key, None)
        if self._todo:
            super()._write_slice()


REWRITES = [
    MovesTheStartBeforeTheSlicesAreCommitted,
    ForgetsWhatIsUnderWay,
    WritesOverWhatIsUnderWay,
    LetsOlderValuesWin,
    StartsWhereItEnds,
    GivesUpOnKeysThatAreUnderWay,
]


@pytest.mark.planted
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, mutant = MUTANTS[name]
    monkeypatch.setattr(owner, attribute, mutant)
    with pytest.raises((Loss, InvariantViolation, KeyError)):
        run(range(SEEDS))


@pytest.mark.planted
@pytest.mark.parametrize("mutant", REWRITES)
def test_a_broken_rewrite_is_found(mutant: type[Rewrite], monkeypatch: pytest.MonkeyPatch) -> None:
    rules = replace(GROUP_RULES, rewrite=mutant)
    monkeypatch.setattr("tests.support.groups.log_world.GROUP_RULES", rules)
    with pytest.raises((Loss, InvariantViolation)):
        run(range(SEEDS))
