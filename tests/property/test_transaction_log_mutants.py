"""Rules of transactions in a log with one bug each: the searches beside this one find them.

Three are found by schedules that a random search seldom comes by.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test as run_machine

from quorumlog.broker.partitions.core.open_transactions import OpenTransactions
from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.core.verification import Guard, Guards
from quorumlog.storage.core.aborted_transactions import AbortedTransaction, AbortedTransactions
from quorumlog.storage.core.cleaned_transactions import CleanedTransactions
from quorumlog.storage.core.cleaning import CleaningRules, NewestOffsets
from quorumlog.storage.core.producer_snapshot import SnapshotEntry
from quorumlog.storage.io import cleaning
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import BatchHeader
from quorumlog.wire.codec.transaction_markers import TransactionMarker
from tests.property import test_cleaning_of_transactions as cleaned
from tests.property.test_transactions_in_a_log import TransactionsInALog


class OpensTransactionsUnasked(ProducerStates):
    def check_transaction(
        self, batch: BatchHeader, guard: Guard | None, *, is_asked: bool
    ) -> ErrorCode:
        del is_asked
        return super().check_transaction(batch, guard, is_asked=False)


class _ForgivingGuards(Guards):
    def counts(self, producer_id: int, guard: Guard | None) -> bool:
        return guard is not None


class BelievesAnAnswerFromBeforeTheMarker(ProducerStates):
    """KAFKA-14884."""

    def __init__(self) -> None:
        super().__init__()
        self.guards = _ForgivingGuards()  # type: ignore[misc]


class _LastingGuards(Guards):
    def note_marker(self, producer_id: int, ended_epoch: int, marker_epoch: int) -> None:
        pass


class TakesEveryMarkerForThatOfTheTransactionBefore(ProducerStates):
    def __init__(self) -> None:
        super().__init__()
        self.guards = _LastingGuards()  # type: ignore[misc]


class TakesAnyBatchIntoTheOpenTransaction(ProducerStates):
    def check_transaction(
        self, batch: BatchHeader, guard: Guard | None, *, is_asked: bool
    ) -> ErrorCode:
        if not batch.is_transactional:
            return ErrorCode.NONE
        return super().check_transaction(batch, guard, is_asked=is_asked)


class TakesALateMarker(ProducerStates):
    """KIP-1228."""

    def check_marker(self, marker: TransactionMarker, transaction_version: int) -> ErrorCode:
        del transaction_version
        return super().check_marker(marker, 1)


class InsistsOnANewerEpochForAMarkerSentAgain(ProducerStates):
    """KAFKA-19999."""

    def check_marker(self, marker: TransactionMarker, transaction_version: int) -> ErrorCode:
        described = self.describe(marker.producer_id)
        if described is not None and described.producer_epoch >= marker.producer_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return super().check_marker(marker, transaction_version)


class ForgetsWhereTransactionsBegan(ProducerStates):
    def snapshot(self) -> list[SnapshotEntry]:
        return [one._replace(transaction_offset=-1) for one in super().snapshot()]


class ForgetsIdleProducersInTransactions(ProducerStates):
    """KAFKA-9144."""

    def expire(self, wall_ms: int, expiration_ms: int) -> None:
        super().expire(wall_ms, expiration_ms)
        self._in_transaction.clear()


class CountsThoseInTransactions(ProducerStates):
    def _add_idle(self, producer_id: int, producer: Any) -> None:
        super()._add_idle(producer_id, producer)
        if len(self) > 2 and self._in_transaction:
            self._in_transaction.pop(next(iter(self._in_transaction)))


class _StableWithTheMarker(OpenTransactions):
    __slots__ = ()

    def end(self, first_offset: int, marker_offset: int) -> int:
        stable = super().end(first_offset, marker_offset)
        self.committed_to(marker_offset + 1)
        return stable


class IsStableBeforeTheMarkerIsCommitted(ProducerStates):
    def rebuild(self, batches: Iterable[BatchHeader], known: Iterable[SnapshotEntry] = ()) -> None:
        super().rebuild(batches, known)
        self.transactions = _StableWithTheMarker()

    def __init__(self) -> None:
        super().__init__()
        self.transactions = _StableWithTheMarker()


class _StableWithTheNext(OpenTransactions):
    __slots__ = ()

    def committed_to(self, high_watermark: int) -> None:
        super().committed_to(high_watermark + 1)


class IsStableOneOffsetTooEarly(ProducerStates):
    def __init__(self) -> None:
        super().__init__()
        self.transactions = _StableWithTheNext()


class NamesOnlyWhatEndsInTheRange(AbortedTransactions):
    def reaching_into(self, from_offset: int, end_offset: int) -> list[AbortedTransaction]:
        found = super().reaching_into(from_offset, end_offset)
        return [one for one in found if one.last_offset < end_offset]


class NamesOnlyTheFirst(AbortedTransactions):
    def reaching_into(self, from_offset: int, end_offset: int) -> list[AbortedTransaction]:
        return super().reaching_into(from_offset, end_offset)[:1]


IN_A_LOG: list[tuple[str, type]] = [
    *(
        ("kind", kind)
        for kind in (
            OpensTransactionsUnasked,
            TakesAnyBatchIntoTheOpenTransaction,
            InsistsOnANewerEpochForAMarkerSentAgain,
            ForgetsWhereTransactionsBegan,
            ForgetsIdleProducersInTransactions,
            CountsThoseInTransactions,
            IsStableBeforeTheMarkerIsCommitted,
        )
    ),
    ("aborted_kind", NamesOnlyWhatEndsInTheRange),
    ("aborted_kind", NamesOnlyTheFirst),
]
UNTIL_FOUND = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),
)


@pytest.mark.parametrize(("rule", "kind"), IN_A_LOG, ids=[kind.__name__ for _, kind in IN_A_LOG])
def test_a_mutant_of_a_log_is_found(rule: str, kind: type) -> None:
    mutant = type("Mutant", (TransactionsInALog,), {rule: kind})
    with pytest.raises((AssertionError, KeyError)):
        run_machine(mutant, settings=UNTIL_FOUND)


def a_marker_comes_again_in_the_next_transaction(log: TransactionsInALog) -> None:
    log.send_in_transaction(3, is_late=False)
    log.end(3, commits=True, arrives="twice")
    log.send_in_transaction(3, is_late=False)
    log.marker_came(log.markers[0], is_repeated=True)


def a_marker_overtakes_the_first_batch(log: TransactionsInALog) -> None:
    log.send_in_transaction(2, is_late=True)
    (sent,) = log.batches
    log.asked(sent)
    log.end(2, commits=False, arrives="once")
    log.arrived(sent, is_repeated=False)


def the_high_watermark_stops_before_a_marker(log: TransactionsInALog) -> None:
    log.send_in_transaction(2, is_late=False)
    log.end(2, commits=True, arrives="once")
    log.commit(1)
    log.the_last_stable_offset_is_before_all_that_is_undecided()


SCRIPTS: Sequence[tuple[type[ProducerStates], Callable[[TransactionsInALog], None]]] = (
    (TakesALateMarker, a_marker_comes_again_in_the_next_transaction),
    (BelievesAnAnswerFromBeforeTheMarker, a_marker_overtakes_the_first_batch),
    (IsStableOneOffsetTooEarly, the_high_watermark_stops_before_a_marker),
)


def play(kind: type[ProducerStates], script: Callable[[TransactionsInALog], None]) -> None:
    log = type("Scripted", (TransactionsInALog,), {"kind": kind})()
    try:
        script(log)
    finally:
        log.teardown()


@pytest.mark.parametrize(("kind", "script"), SCRIPTS, ids=[kind.__name__ for kind, _ in SCRIPTS])
def test_a_mutant_is_found_by_a_script(
    kind: type[ProducerStates], script: Callable[[TransactionsInALog], None]
) -> None:
    play(ProducerStates, script)
    with pytest.raises(AssertionError):
        play(kind, script)


class RemovesMarkersFirst(CleanedTransactions):
    def is_last_of_its_transaction(
        self, header: BatchHeader, marker: TransactionMarker | None
    ) -> bool:
        super().is_last_of_its_transaction(header, marker)
        return True


class KeepsTheNamesOfThoseThatAreGone(CleanedTransactions):
    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        known = [*aborted]
        super().__init__(known)
        self._known = {one.last_offset: one for one in known}

    def is_last_of_its_transaction(
        self, header: BatchHeader, marker: TransactionMarker | None
    ) -> bool:
        is_last = super().is_last_of_its_transaction(header, marker)
        if is_last and header.last_offset in self._known:
            self.kept_aborted.append(self._known[header.last_offset])
        return is_last


class TakesAbortedRecordsForWritten(CleanedTransactions):
    def is_aborted(self, header: BatchHeader) -> bool:
        super().is_aborted(header)
        return False


class ForgetsTheAbortedBehindThePass(CleanedTransactions):
    """KAFKA-14055: one whose marker is behind what is cleaned."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        super().__init__([one for one in aborted if one.last_stable_offset > one.last_offset])


CLEANED: Sequence[type[CleanedTransactions]] = (
    RemovesMarkersFirst,
    KeepsTheNamesOfThoseThatAreGone,
    TakesAbortedRecordsForWritten,
    ForgetsTheAbortedBehindThePass,
)
SEEDS = 60


def find(search: Callable[[int], None]) -> None:
    for seed in range(SEEDS):
        search(seed)


@pytest.mark.parametrize("kind", CLEANED, ids=[kind.__name__ for kind in CLEANED])
def test_a_mutant_of_a_cleaner_is_found(
    kind: type[CleanedTransactions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "CleanedTransactions", kind)
    with pytest.raises((AssertionError, KeyError)):
        find(cleaned.test_a_consumer_sees_what_is_committed_however_often_the_log_is_cleaned)


def test_a_cleaner_that_goes_by_aborted_keys_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take = NewestOffsets.take

    def takes_all(
        self: NewestOffsets, batch: Buffer, header: BatchHeader, *, is_aborted: bool = False
    ) -> bool:
        del is_aborted
        return take(self, batch, header)

    monkeypatch.setattr(NewestOffsets, "take", takes_all)
    with pytest.raises(AssertionError):
        find(cleaned.test_a_consumer_sees_what_is_committed_however_often_the_log_is_cleaned)


def test_a_cleaner_that_forgets_last_sequences_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = CleaningRules.cleaned

    def forgetful(self: CleaningRules, *arguments: Any, **known: bool) -> Buffer | None:
        return whole(self, *arguments, **{**known, "is_last": False})  # type: ignore[arg-type]

    monkeypatch.setattr(CleaningRules, "cleaned", forgetful)
    with pytest.raises(AssertionError):
        find(cleaned.test_a_consumer_sees_what_is_committed_however_often_the_log_is_cleaned)
