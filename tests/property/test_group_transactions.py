"""Transactional commits among all that may happen to a group, with bugs planted.

The world is that of `test_group_rewrite.py`: producers commit in transactions, verifications come
late, markers are sent twice, writes are refused, coordinators fail over, and the log is rewritten.
What is shown and what is unstable must be what a dumb model says of the committed log.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from quorumlog.broker.groups.core.group_outbox import GroupOutbox
from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.pending_offsets import PendingOffset, PendingOffsets
from quorumlog.broker.groups.core.records import Key, OffsetRecord
from quorumlog.broker.groups.core.replay import Replay
from quorumlog.broker.groups.core.rewrite import Rewrite
from quorumlog.broker.groups.core.transactional_offsets import TransactionalOffsets
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import BatchHeader, Record
from quorumlog.wire.codec.transaction_markers import TransactionMarker
from tests.support.groups.rewritten_log import Loss, World

FIRST_SEED, SEEDS = 1000, 40


def run_all() -> int:
    """Return how many transactions were committed."""
    committed = 0
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        world = World(seed, is_transactional=True)
        world.run()
        world.settle()
        committed += world.transactions_committed
    return committed


def test_offsets_count_with_their_transaction_and_only_then() -> None:
    assert run_all() > 5 * SEEDS


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
}  # fmt: skip


@pytest.mark.planted
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, mutant = MUTANTS[name]
    monkeypatch.setattr(owner, attribute, mutant)
    with pytest.raises((Loss, InvariantViolation)):
        run_all()
