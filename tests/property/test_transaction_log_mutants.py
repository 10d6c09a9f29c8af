"""The planted bugs of transactions in a log: the searches beside this one find them, too.

Three are found by schedules that a random search seldom comes by.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test as run_machine

from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.core.verification import Guards
from quorumlog.chaos.mutants.transaction_logs import TRANSACTION_LOGS
from quorumlog.storage.core.aborted_transactions import AbortedTransaction, AbortedTransactions
from quorumlog.storage.core.cleaning import CleanedTransactions, CleaningRules, NewestOffsets
from quorumlog.storage.io import cleaning
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import BatchHeader
from quorumlog.wire.codec.transaction_markers import TransactionMarker
from tests.property import test_cleaning_of_transactions as cleaned
from tests.property.test_transactions_in_a_log import TransactionsInALog

UNTIL_FOUND = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),
)


def broken_log(mutant: str) -> type[TransactionsInALog]:
    """Return the search with the classes of a mutant."""
    parts = TRANSACTION_LOGS[mutant].parts
    kinds = {
        "kind": parts.partition.producers,
        "aborted_kind": getattr(parts.log, "aborted_class", AbortedTransactions),
    }
    return type("Mutant", (TransactionsInALog,), kinds)


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


SCRIPTS: dict[str, Callable[[TransactionsInALog], None]] = {
    "takes_late_markers": a_marker_comes_again_in_the_next_transaction,
    "believes_answers_from_before_the_marker": a_marker_overtakes_the_first_batch,
    "is_stable_one_offset_too_early": the_high_watermark_stops_before_a_marker,
}


@pytest.mark.planted
@pytest.mark.parametrize("mutant", [one for one in TRANSACTION_LOGS if one not in SCRIPTS])
def test_a_mutant_of_a_log_is_found(mutant: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        run_machine(broken_log(mutant), settings=UNTIL_FOUND)


def play(kind: type[TransactionsInALog], script: Callable[[TransactionsInALog], None]) -> None:
    log = kind()
    try:
        script(log)
    finally:
        log.teardown()


@pytest.mark.parametrize("mutant", SCRIPTS)
def test_a_mutant_is_found_by_a_script(mutant: str) -> None:
    play(TransactionsInALog, SCRIPTS[mutant])
    with pytest.raises(AssertionError):
        play(broken_log(mutant), SCRIPTS[mutant])


class _LastingGuards(Guards):
    def note_marker(self, producer_id: int, ended_epoch: int, marker_epoch: int) -> None:
        pass


class TakesEveryMarkerForThatOfTheTransactionBefore(ProducerStates):
    def __init__(self) -> None:
        super().__init__()
        self.guards = _LastingGuards()  # type: ignore[misc]


def test_a_guard_that_outlives_its_transaction_is_found() -> None:
    kinds = {"kind": TakesEveryMarkerForThatOfTheTransactionBefore}
    with pytest.raises(AssertionError):
        play(type("Mutant", (TransactionsInALog,), kinds), a_marker_overtakes_the_first_batch)


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


@pytest.mark.planted
@pytest.mark.parametrize("kind", CLEANED, ids=[kind.__name__ for kind in CLEANED])
def test_a_mutant_of_a_cleaner_is_found(
    kind: type[CleanedTransactions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "CleanedTransactions", kind)
    with pytest.raises((AssertionError, KeyError)):
        find(cleaned.test_a_consumer_sees_what_is_committed_however_often_the_log_is_cleaned)


@pytest.mark.planted
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


@pytest.mark.planted
def test_a_cleaner_that_forgets_last_sequences_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = CleaningRules.cleaned

    def forgetful(self: CleaningRules, *arguments: Any, **known: bool) -> Buffer | None:
        return whole(self, *arguments, **{**known, "is_last": False})  # type: ignore[arg-type]

    monkeypatch.setattr(CleaningRules, "cleaned", forgetful)
    with pytest.raises(AssertionError):
        find(cleaned.test_a_consumer_sees_what_is_committed_however_often_the_log_is_cleaned)
