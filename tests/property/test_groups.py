"""Groups of the classic protocol, their offsets and transactions, under random schedules.

Members, producers, strangers, refusals, fail-overs and rewrites of the log: the worlds in
`tests/support/groups` have the steps; the oracle of whole nodes has most rules. Mutants must be
found.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from quorumlog.broker.groups.core import events
from quorumlog.broker.groups.core.group import Group
from quorumlog.broker.groups.core.group_outbox import GroupOutbox
from quorumlog.broker.groups.core.joins import Joins
from quorumlog.broker.groups.core.pending_offsets import PendingOffsets
from quorumlog.broker.groups.core.rebalance import Rebalance
from quorumlog.broker.groups.core.records import Key, LogRecord, OffsetRecord
from quorumlog.broker.groups.core.requests import CommitOffsets, CommittedOffset, Join
from quorumlog.broker.groups.core.rewrite import Rewrite
from quorumlog.broker.groups.core.rules import GROUP_RULES, GroupRules
from quorumlog.broker.groups.core.transactional_offsets import TransactionalOffsets
from quorumlog.chaos.mutants.groups import GROUPS, TRANSACTIONAL_OFFSETS
from quorumlog.invariants import InvariantViolation
from tests.support.groups.log_world import LIMITS, PARTITIONS, Loss
from tests.support.groups.member_world import MemberWorld
from tests.support.sizes import tries

SEEDS = 120


def run(seeds: range, rules: GroupRules = GROUP_RULES) -> list[MemberWorld]:
    """Return worlds after their lives: half of them with transactions, a third with strangers."""
    worlds = []
    for seed in seeds:
        is_transactional, has_strangers = seed % 2 == 1, seed % 3 == 2
        world = MemberWorld(
            seed, rules, is_transactional=is_transactional, has_strangers=has_strangers
        )
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


def _same_generation(self: Rebalance, group: Group, now_ms: int) -> None:
    group.generation_id -= 1
    COMPLETE_JOIN(self, group, now_ms)


def _replaces_in_memory(
    self: Joins, group: Group, now_ms: int, request_id: int, joining: Join
) -> None:
    old_id = group.static[joining.group_instance_id or ""]
    member = self._rename(group, old_id, joining.new_member_id)
    self._outbox.reply(request_id, self._rebalance.joined(group, member))


def _stable_while_written(self: TransactionalOffsets, group_id: str) -> frozenset[object]:
    return frozenset(self._pending.partitions(group_id))


def _older_over_newer(self: PendingOffsets, record: OffsetRecord, log_offset: int | None) -> None:
    pass


def _left_by_tombstones(self: PendingOffsets, record: OffsetRecord) -> None:
    if record.committed is not None:
        NOTE_PLAIN(self, record)


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


COMPLETE_JOIN = Rebalance._complete_join
NOTE_PLAIN, COMPLETE = PendingOffsets.note_plain, TransactionalOffsets._handle_complete
PLANTED: dict[str, tuple[type, str, Callable[..., object]]] = {
    "a generation comes twice": (Rebalance, "_complete_join", _same_generation),
    "a static member is replaced in memory only": (
        Joins, "_replace_in_stable", _replaces_in_memory,
    ),
    "an offset that is being written is stable": (
        TransactionalOffsets, "unstable", _stable_while_written,
    ),
    "an older commit wins because its transaction ends later": (
        PendingOffsets, "_supersede", _older_over_newer,
    ),
    "a deleted offset comes back with its transaction": (
        PendingOffsets, "note_plain", _left_by_tombstones,
    ),
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
}  # fmt: skip


class MovesTheStartBeforeTheSlicesAreCommitted(Rewrite):
    def resume(self) -> None:
        super().resume()
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
OF_SHARDS = {"serves_before_all_is_committed", "serves_after_it_resigned"}
"""They load half a log, or lead no more: no shard is here. Whole nodes find them."""
REGISTERED = GROUPS | TRANSACTIONAL_OFFSETS
MUTANTS = {name: REGISTERED[name].parts.groups for name in REGISTERED.keys() - OF_SHARDS} | {
    one.__name__: replace(GROUP_RULES, rewrite=one) for one in REWRITES
}


@pytest.mark.planted
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_mutant_is_found(name: str) -> None:
    with pytest.raises((Loss, InvariantViolation, KeyError)):
        run(range(SEEDS), MUTANTS[name])


@pytest.mark.planted
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, planted = PLANTED[name]
    monkeypatch.setattr(owner, attribute, planted)
    with pytest.raises((Loss, InvariantViolation, KeyError)):
        run(range(SEEDS))
