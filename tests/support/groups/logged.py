"""Entries of a log of groups, as the batches that a coordinator replays."""

from collections.abc import Iterable

from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.records import encode
from quorumlog.wire.codec.records import Record, decode_batches, encode_batch
from quorumlog.wire.codec.transaction_markers import TransactionMarker, encode_marker
from tests.support.groups.offsets_model import Entry, InTransaction


def replay(coordinator: GroupCoordinator, log_offset: int, entry: Entry) -> None:
    """Let the coordinator load an entry from its bytes."""
    if not isinstance(entry, InTransaction | TransactionMarker):
        coordinator.replay(entry)
        return
    if isinstance(entry, TransactionMarker):
        batch = encode_marker(entry, 0)
    else:
        batch = encode_batch(
            [Record(log_offset, 0, *encode(entry.record), ())],
            base_offset=log_offset,
            producer_id=entry.producer_id,
            producer_epoch=entry.producer_epoch,
            is_transactional=True,
        )
    for header, records in decode_batches(batch):
        coordinator.replay_transactional(header, records)


def apply(state: CommittedState, log_offset: int, entry: Entry) -> None:
    """Apply an entry to a state."""
    match entry:
        case TransactionMarker(producer_id=producer_id, commits=commits):
            state.end_transaction(producer_id, commits=commits)
        case InTransaction(producer_id=producer_id, producer_epoch=epoch, record=record):
            state.pending.add(producer_id, epoch, record, log_offset)
        case _:
            state.apply(entry)


def state_of(entries: Iterable[Entry], log_start: int = 0) -> CommittedState:
    """Return the state in the entries from `log_start` on."""
    state = CommittedState()
    for log_offset, entry in enumerate(entries, log_start):
        apply(state, log_offset, entry)
    return state
