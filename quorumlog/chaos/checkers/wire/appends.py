"""Rules of appends: acknowledgements, repeats, gaps, producer epochs.

A producer numbers its batches: each begins where the batch before it ended. A leader has the
numbers of the batches in its log. So a batch that leaves a gap is refused, a repeated batch is
answered with its first offset, and an older producer epoch is refused (KIP-98, KIP-360). A batch is
judged only if all batches of its producer before it are certain to be in the log: acknowledged with
acks=all, before it was sent or in front of it on the same connection.
"""

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from itertools import groupby
from typing import Final, Protocol

from quorumlog.chaos.checkers.findings import Row
from quorumlog.chaos.checkers.wire.facts import Batch
from quorumlog.chaos.checkers.wire.final_log import (
    FinalLog,
    SentRecords,
    changed_parts,
    placed_twice,
)
from quorumlog.chaos.history.exchanges import ALL
from quorumlog.wire.codec.error_codes import ErrorCode

_OUT_OF_ORDER: Final = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
_OLD_EPOCH: Final = ErrorCode.INVALID_PRODUCER_EPOCH
_REFUSED: Final = frozenset({_OUT_OF_ORDER, _OLD_EPOCH})
"""They are final: the batch is not in the log, and never will be."""
_APPENDED: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
)
"""The leader has appended the batch."""
_OF_PRODUCERS: Final = _REFUSED | {ErrorCode.DUPLICATE_SEQUENCE_NUMBER}
KEPT: Final = 5  # batches of a producer that a leader remembers: KIP-98


class Add(Protocol):
    """Adds a finding with the operations that prove it."""

    def __call__(self, name: str, note: str, *told: tuple[str, Row]) -> None:
        """Add it."""


def check_appends(
    batches: Sequence[Batch], sent: SentRecords, log: FinalLog, add: Add
) -> Iterator[str]:
    """Apply all rules to the batches of a key; yield the name of each rule that judged a batch."""
    for producer_id, group in groupby(
        sorted(batches, key=lambda one: one.producer_id), key=lambda one: one.producer_id
    ):
        if producer_id >= 0:
            yield from _Producer([*group]).check(add)
    if log.is_whole:
        _check_log(sent, log, add)
        there = {one.value for one in log.records.values()}
        for batch in batches:
            if batch.acks == 0:
                yield from _check_silent(batch, log, there, add)
            elif batch.is_acknowledged:
                yield from _check_kept(batch, log, add)


def _check_log(sent: SentRecords, log: FinalLog, add: Add) -> None:
    """Compare the log with the sent records: nothing else is in it, each at most once."""
    for value, first, again in placed_twice(log):
        if value in sent.attempts:
            note = f"value {value} is at the offsets {first} and {again}"
            add("record-twice", note, *_attempts(sent, value))
    for read in log.records.values():
        attempts = sent.attempts.get(read.value)
        if attempts is None:
            if log.row is not None:
                add("never-sent", f"offset {read.offset}: nobody sent it", ("read", log.row))
        elif all(one.error in _REFUSED for one in attempts):
            note = f"value {read.value} was refused, and is in the log at {read.offset}"
            add("refused-in-log", note, *_attempts(sent, read.value))


def _attempts(sent: SentRecords, value: int) -> list[tuple[str, Row]]:
    return [("sent", one.row) for one in sent.attempts[value][:4]]


def _has_same_leader(batch: Batch, log: FinalLog) -> bool:
    """Whether the leader never changed between the request and the final reads."""
    return batch.leader_epoch >= 0 and batch.leader_epoch == log.leader_epoch


def _check_silent(batch: Batch, log: FinalLog, there: Container[int], add: Add) -> Iterator[str]:
    """Check a batch with acks=0: a leader that received it, and never changed, has it."""
    if not batch.is_received or not _has_same_leader(batch, log):
        return
    yield "acks-0"
    if missing := [one.value for one in batch.records if one.value not in there]:
        note = f"acks=0, the leader never changed, and {missing[0]} is not in the log"
        add("lost-append", note, ("sent", batch.row))


def _check_kept(batch: Batch, log: FinalLog, add: Add) -> Iterator[str]:
    """Check that the records of an acknowledged batch are in the log as they were sent.

    With acks=1 a change of the leader may lose them.
    """
    if batch.acks != ALL and not _has_same_leader(batch, log):
        return
    yield "acks-all" if batch.acks == ALL else "acks-1"
    for place, one in enumerate(batch.records):
        offset = batch.base_offset + place
        read = log.records.get(offset)
        if read is None or read.value != one.value:
            found = "nothing" if read is None else f"value {read.value}"
            note = f"value {one.value} was acknowledged at {offset}, the log has {found} there"
            add("lost-append", note, ("sent", batch.row))
            return
        if read.digest != one.digest:
            note = f"offset {offset}: {changed_parts(one.digest, read.digest)} differ"
            add("changed-record", note, ("sent", batch.row))
            return


class _Producer:
    """The batches of one producer id in one partition."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        in_order = sorted(batches, key=lambda one: (one.exchange.sent_ns, one.exchange.place))
        self._batches: Final = in_order
        self._attempts: Final[dict[int, list[Batch]]] = defaultdict(list)
        for one in in_order:
            self._attempts[one.identity].append(one)

    def check(self, add: Add) -> Iterator[str]:
        """Judge each answered batch whose predecessors are certain."""
        for index, batch in enumerate(self._batches):
            if batch.error is None or batch.acks == 0:
                continue
            before = [one for one in self._batches[:index] if not _is_refused(one)]
            settled = self._settled(before, batch)
            if settled is not None:
                is_again = any(one.identity == batch.identity for one in before)
                yield from _check_batch(batch, settled, add, is_again=is_again)

    def _settled(self, before: Sequence[Batch], batch: Batch) -> list[Batch] | None:
        """Return the acknowledged batches before it, in order; None: some are uncertain."""
        settled: dict[int, Batch] = {}
        for one in before:
            if one.identity in settled:
                continue
            good = [
                other
                for other in self._attempts[one.identity]
                if other.acks == ALL
                and other.is_acknowledged
                and (
                    other.exchange.answered_ns <= batch.exchange.sent_ns
                    or batch.exchange.is_behind(other.exchange)
                )
            ]
            if good:
                settled[one.identity] = good[0]
            elif one.identity != batch.identity:
                return None
        return [*settled.values()]


def _is_refused(batch: Batch) -> bool:
    return batch.error in _OF_PRODUCERS


def _check_batch(
    batch: Batch, settled: Sequence[Batch], add: Add, *, is_again: bool
) -> Iterator[str]:
    """Judge a batch by the batches that are in the log. `settled`: of its producer, in order.

    is_again: it was sent before, perhaps without a certain outcome.
    """
    epoch = max((one.producer_epoch for one in settled), default=-1)
    if batch.producer_epoch < epoch:
        yield "stale-producer"
        _check_stale(batch, settled, add)
        return
    current = [one for one in settled if one.producer_epoch == batch.producer_epoch]
    repeated = next((one for one in current if one.identity == batch.identity), None)
    if repeated is not None:
        yield "repeat"
        is_kept = repeated in current[-KEPT:]
        _check_repeat(batch, repeated, add, is_kept=is_kept)
        return
    if not settled and batch.base_sequence != 0:
        return  # a leader without a producer accepts any sequence
    expected = current[-1].last_sequence + 1 if current else 0
    if batch.base_sequence == expected:
        yield "sequence"
        if batch.error in _OF_PRODUCERS:
            note = f"sequence {expected} follows the last one, and was refused: {batch.error}"
            add("sequence-refused", note, *_last(settled), ("refused", batch.row))
        return
    if is_again and batch.base_sequence < expected and batch.error in _APPENDED:
        yield "repeat"  # of an append that was not acknowledged, as the batches behind it prove
        _check_place(batch, current, add)
        return
    yield "gap"
    _check_gap(batch, expected, settled, add)


def _last(settled: Sequence[Batch]) -> list[tuple[str, Row]]:
    return [("before", settled[-1].row)] if settled else []


def _check_stale(batch: Batch, settled: Sequence[Batch], add: Add) -> None:
    if batch.error in _APPENDED:
        note = f"producer epoch {batch.producer_epoch}, and a newer one has written"
        add("stale-producer-accepted", note, *_last(settled), ("accepted", batch.row))
    elif batch.error in _OF_PRODUCERS - {_OLD_EPOCH}:
        note = f"an old producer epoch was refused with {batch.error}"
        add("wrong-error", note, *_last(settled), ("refused", batch.row))


def _check_repeat(batch: Batch, first: Batch, add: Add, *, is_kept: bool) -> None:
    if batch.error in _APPENDED - {ErrorCode.NONE}:
        return  # the first append is awaited once more
    if batch.is_acknowledged:
        if batch.base_offset != first.base_offset:
            note = f"a repeated batch at {batch.base_offset}, at first at {first.base_offset}"
            add("repeat-elsewhere", note, ("first", first.row), ("repeated", batch.row))
    elif batch.error == _OLD_EPOCH or (batch.error == _OUT_OF_ORDER and is_kept):
        note = f"a repeated batch was refused with {batch.error}"
        add("wrong-error", note, ("first", first.row), ("repeated", batch.row))


def _check_place(batch: Batch, others: Sequence[Batch], add: Add) -> None:
    """Check that an acknowledged batch is, among others of its producer epoch, at its sequence."""
    for other in others if batch.is_acknowledged else ():
        is_behind = batch.base_sequence > other.base_sequence
        if is_behind != (batch.base_offset >= other.end_offset):
            note = f"a repeated batch at {batch.base_offset}, another sequence at "
            note += f"{other.base_offset}"
            add("repeat-elsewhere", note, ("other", other.row), ("repeated", batch.row))
            return


def _check_gap(batch: Batch, expected: int, settled: Sequence[Batch], add: Add) -> None:
    if batch.error in _APPENDED:
        note = f"sequence {batch.base_sequence} was accepted where {expected} is due"
        add("gap-accepted", note, *_last(settled), ("accepted", batch.row))
    elif batch.error in _OF_PRODUCERS - {_OUT_OF_ORDER}:
        note = f"sequence {batch.base_sequence} instead of {expected}: error {batch.error}"
        add("wrong-error", note, *_last(settled), ("refused", batch.row))
