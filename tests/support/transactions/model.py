"""A second model of a transactional id, for tests, by KIP-98, KIP-360 and KIP-890.

It has no records, markers or waiting: only the permitted requests, and the state after each.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from quorumlog.broker.transactions.core.records import TransactionMetadata
from quorumlog.broker.transactions.core.requests import (
    AddPartitions,
    EndTransaction,
    InitProducerId,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

Producer = tuple[int, int]  # id, epoch
NOBODY: Producer = (-1, -1)
LAST_EPOCH = 32_766  # of a producer; one more is for fencing it


@dataclass(frozen=True)
class Model:
    """`phase`: "idle", "open" (a transaction), "decided" (its markers are missing).

    `outcome`: of what was decided last, True is a commit; None: nothing since the producer began.
    `has_bumped`: that gave the producer its epoch. `may_name`: what it may call itself (KIP-360).
    `number`: how many transactions there were, the open one among them.
    """

    producer: Producer
    timeout_ms: int
    phase: str = "idle"
    partitions: frozenset[TopicPartition] = frozenset()
    outcome: bool | None = None
    has_bumped: bool = False
    follows: int | None = None  # the producer id that comes after the decided transaction
    before: int | None = None  # the producer id before the last change
    may_name: int | None = None
    start_ms: int = 0
    number: int = 0

    @property
    def state(self) -> str:
        if self.phase == "open":
            return "Ongoing"
        if self.outcome is None:
            return "Empty"
        word = "Prepare" if self.phase == "decided" else "Complete"
        return word + ("Commit" if self.outcome else "Abort")

    def is_told_by(self, metadata: TransactionMetadata) -> bool:
        """Return whether a record has exactly this state."""
        return (
            metadata.state.value == self.state
            and (metadata.producer_id, metadata.producer_epoch) == self.producer
            and frozenset(metadata.partitions) == self.partitions
            and metadata.next_producer_id == (-1 if self.follows is None else self.follows)
            and metadata.transaction_timeout_ms == self.timeout_ms
        )


@dataclass(frozen=True)
class Answer:
    """The answer at once."""

    error_code: ErrorCode
    producer: Producer = NOBODY


@dataclass(frozen=True)
class Change:
    """The state after the commit of a change, perhaps with a new producer id; and the response."""

    after: Callable[[int], Model]
    reply: Callable[[Model], Answer]
    needs_id: bool = False


Verdict = Answer | Change
WAIT = Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
FENCED = Answer(ErrorCode.PRODUCER_FENCED)
STRANGER = Answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
WRONG = Answer(ErrorCode.INVALID_TXN_STATE)
FINE = Answer(ErrorCode.NONE)


def verdict_on(
    request: Any, model: Model | None, *, is_busy: bool, now_ms: int, level: int
) -> Verdict:
    match request:
        case InitProducerId(expected=named, transaction_timeout_ms=timeout_ms):
            return on_init(model, is_busy, named, timeout_ms, level)
        case AddPartitions(producer=producer, partitions=partitions):
            return on_add(model, is_busy, producer, partitions, now_ms)
        case EndTransaction(producer=producer, commit=commit):
            bumps = request.client_transaction_version == 2
            return on_end(model, is_busy, producer, commit, bumps)
        case _:
            raise AssertionError(request)


def fenced(model: Model | None, producer: Producer) -> Answer | None:
    if model is None or model.producer[0] != producer[0]:
        return STRANGER
    return None if model.producer == producer else FENCED


def on_init(
    model: Model | None, is_busy: bool, named: Producer, timeout_ms: int, level: int
) -> Verdict:
    if is_busy or (model is not None and model.phase == "decided"):
        return WAIT
    if model is None:
        return Change(lambda new: Model((new, 0), timeout_ms), told_producer, needs_id=True)
    is_another = named not in {NOBODY, model.producer}
    if is_another and not is_repeated_init(model, named):
        return FENCED
    if model.phase == "open":
        return replace(on_fence(model, level), reply=lambda _after: WAIT)
    same = Model(
        model.producer,
        timeout_ms,
        before=model.producer[0],
        may_name=model.may_name,
        number=model.number,
        has_bumped=model.has_bumped,
    )
    return Change(lambda _new: same, told_producer) if is_another else next_epoch(same, named)


def next_epoch(same: Model, named: Producer) -> Change:
    producer_id, epoch = same.producer
    same = replace(same, may_name=None if named == NOBODY else epoch)
    if epoch >= LAST_EPOCH:
        return Change(lambda new: replace(same, producer=(new, 0)), told_producer, needs_id=True)
    return Change(lambda _new: replace(same, producer=(producer_id, epoch + 1)), told_producer)


def told_producer(after: Model) -> Answer:
    return Answer(ErrorCode.NONE, after.producer)


def is_repeated_init(model: Model, named: Producer) -> bool:
    """Whether the producer has its new epoch already (KIP-360)."""
    is_rotated = named[0] == model.before and named[1] >= LAST_EPOCH
    is_its_id = named[0] == model.producer[0] or is_rotated
    return model.phase == "idle" and is_its_id and named[1] == model.may_name


def on_add(
    model: Model | None,
    is_busy: bool,
    producer: Producer,
    partitions: frozenset[TopicPartition],
    now_ms: int,
) -> Verdict:
    if model is None:
        return STRANGER
    if is_busy or model.phase == "decided":
        return WAIT
    refused = fenced(model, producer)
    if refused is not None:
        return refused
    if model.phase == "open" and partitions <= model.partitions:
        return FINE
    begins = model.phase == "idle"
    after = replace(
        model,
        phase="open",
        partitions=model.partitions | partitions,
        outcome=None,
        start_ms=now_ms if begins else model.start_ms,
        number=model.number + begins,
        before=producer[0],
    )
    return Change(lambda _new: after, lambda _after: FINE)


def on_end(
    model: Model | None, is_busy: bool, producer: Producer, commit: bool, bumps: bool
) -> Verdict:
    refused = fenced(model, producer)
    if model is None:
        return STRANGER
    if is_busy or model.phase == "decided":
        return refused if refused is not None and not bumps else WAIT
    if bumps and is_repeated_end(model, producer):
        is_same = model.outcome is commit
        otherwise = FENCED if commit else WRONG
        return Answer(ErrorCode.NONE, model.producer) if is_same else otherwise
    if refused is not None:
        return refused
    if model.phase == "open" or (bumps and not commit):
        return decided(model, commit, bumps=bumps, fences=False)
    return FINE if not bumps and model.outcome is commit else WRONG


def is_repeated_end(model: Model, producer: Producer) -> bool:
    """Whether it names the epoch of the transaction that ended last (KIP-890)."""
    if model.phase != "idle" or model.outcome is None or not model.has_bumped:
        return False
    producer_id, epoch = model.producer
    is_rotated = epoch == 0 and producer == (model.before, LAST_EPOCH)
    return is_rotated or producer == (producer_id, epoch - 1)


def on_fence(model: Model, level: int) -> Change:
    """The coordinator aborts by itself."""
    return decided(model, False, bumps=level >= 2, fences=True)


def decided(model: Model, commit: bool, *, bumps: bool, fences: bool) -> Change:
    producer_id, epoch = model.producer
    rotates = bumps and epoch >= LAST_EPOCH
    kept = None if fences else model.may_name
    decision = replace(
        model,
        phase="decided",
        outcome=commit,
        producer=(producer_id, min(epoch + 1, LAST_EPOCH + 1) if bumps or fences else epoch),
        has_bumped=bumps,
        may_name=epoch if bumps else kept,
        before=producer_id,
    )

    def told(after: Model) -> Answer:
        return Answer(ErrorCode.NONE, next_producer(after) if bumps else NOBODY)

    return Change(
        lambda new: replace(decision, follows=new if rotates else None), told, needs_id=rotates
    )


def next_producer(model: Model) -> Producer:
    return model.producer if model.follows is None else (model.follows, 0)


def completed(model: Model) -> Model:
    return replace(
        model,
        phase="idle",
        partitions=frozenset(),
        producer=next_producer(model),
        before=model.producer[0],
        follows=None,
    )
