"""Groups whose log is rewritten, under random commits, refusals and fail-overs; with planted bugs.

A replica may have any log start that its leader had before. What must hold:
  a. The log from any start that was let go of gives the state that the whole history gives, up to
     wherever the log may be cut: nothing that was committed is lost, and no older value wins.
  b. What a client was told is committed is in that state, or something newer is.
  c. The log holds few records more than are live, once nothing is under way.
"""

from dataclasses import replace

import pytest

from quorumlog.broker.groups.core import events
from quorumlog.broker.groups.core.group_outbox import GroupOutbox
from quorumlog.broker.groups.core.records import Key, LogRecord
from quorumlog.broker.groups.core.requests import (
    CommitOffsets,
    CommittedOffset,
)
from quorumlog.broker.groups.core.rewrite import Rewrite
from quorumlog.broker.groups.core.rules import GROUP_RULES
from quorumlog.invariants import InvariantViolation
from tests.support.groups.rewritten_log import (
    LIMITS,
    PARTITIONS,
    SEEDS,
    Loss,
    World,
)


def run_all() -> int:
    """Return in how many lives a log was rewritten."""
    rewritten = 0
    for seed in range(SEEDS):
        world = World(seed)
        world.run()
        world.settle()
        rewritten += world.has_rewritten
    return rewritten


def test_what_is_live_survives_every_rewrite() -> None:
    assert run_all() > SEEDS * 0.8


def test_the_log_stays_bounded_by_what_is_live() -> None:
    world = World(0)
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
    world = World(0)

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
    world = World(0)
    world.coordinator.rewrite.has_foreign_records = True
    for _ in range(200):
        world.commit()
        world.settle()
    assert world.starts == [0]


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


@pytest.mark.planted
@pytest.mark.parametrize(
    "mutant",
    [
        MovesTheStartBeforeTheSlicesAreCommitted,
        ForgetsWhatIsUnderWay,
        WritesOverWhatIsUnderWay,
        LetsOlderValuesWin,
        StartsWhereItEnds,
        GivesUpOnKeysThatAreUnderWay,
    ],
)
def test_the_test_above_finds_a_planted_bug(
    mutant: type[Rewrite], monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = replace(GROUP_RULES, rewrite=mutant)
    monkeypatch.setattr("tests.support.groups.rewritten_log.GROUP_RULES", rules)
    with pytest.raises((Loss, InvariantViolation)):
        run_all()
