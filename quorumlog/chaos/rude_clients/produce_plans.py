"""Draws the bursts of a raw producer: its batches, their sequences, and requests out of turn."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from quorumlog.chaos.history.exchanges import ALL, Sent
from quorumlog.chaos.rude_clients.record_content import (
    digest_of,
    drawn_record,
    installed_codecs,
    value_of,
)
from quorumlog.wire.codec.compression import Compression
from quorumlog.wire.codec.records import Record, encode_batch

IN_FLIGHT_MAX: Final = 5  # of an idempotent producer: a leader remembers as many (KIP-98)
BURST_MAX: Final = 12  # of others
RECORDS_MAX: Final = 4
GAP_MAX: Final = 20
ZSTD_SINCE: Final = 7  # a version of Produce
NOBODY: Final = -1  # the producer id of a producer without idempotence
_LIVES: Final = 40  # batches of a producer id, on average
_SHARE_IDEMPOTENT: Final = 0.7
_SHARE_OUT_OF_TURN: Final = 0.5
_SHARE_OF_NEXT_EPOCHS: Final = 0.25  # of the gaps
_ACKS: Final = (ALL, ALL, ALL, 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBatch:
    """A batch to send.

    manner: "plain"; out of turn: "gap", "gap in the next epoch", "stale", or, with records that
    were sent before, "again" and "stale again".
    """

    records: tuple[Record, ...]
    producer_id: int = NOBODY
    producer_epoch: int = -1
    base_sequence: int = -1
    compression: Compression = Compression.NONE
    manner: str = "plain"

    @property
    def is_new(self) -> bool:
        """Whether its records were not sent before."""
        return not self.manner.endswith("again")

    @property
    def sent(self) -> tuple[Sent, ...]:
        """The records as facts."""
        return tuple(Sent(value_of(one), digest_of(one)) for one in self.records)

    def encoded(self) -> bytes:
        """Return its bytes."""
        return encode_batch(
            self.records,
            compression=self.compression,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
        )


@dataclass(slots=True, kw_only=True)
class ProducerState:
    """A producer id in one partition: all of its batches so far are acknowledged with acks=all."""

    producer_id: int
    epoch: int
    next_sequence: int = 0
    recent: deque[PlannedBatch] = field(default_factory=lambda: deque(maxlen=IN_FLIGHT_MAX))
    old: list[PlannedBatch] = field(default_factory=list)  # the last batch of each older epoch


def draw_acks(rng: Random, *, idempotent: bool) -> int:
    """Return the acks of a burst."""
    return ALL if idempotent else rng.choice(_ACKS)


def draws_idempotent(rng: Random) -> bool:
    """Return whether the next burst is of an idempotent producer."""
    return rng.random() < _SHARE_IDEMPOTENT


def draw_batches(
    rng: Random, state: ProducerState | None, version: int, values: Iterator[int]
) -> tuple[PlannedBatch, ...]:
    """Return the plain batches of a burst; `state` None: of a producer without idempotence."""
    most = BURST_MAX if state is None else IN_FLIGHT_MAX
    size = 1 if rng.random() < 0.2 else rng.randrange(2, most + 1)
    sequence = -1 if state is None else state.next_sequence
    batches: list[PlannedBatch] = []
    for _ in range(size):
        batch = _batch(rng, state, sequence, version, values)
        batches.append(batch)
        sequence += 0 if state is None else len(batch.records)
    return tuple(batches)


def draw_out_of_turn(
    rng: Random, state: ProducerState, next_sequence: int, version: int, values: Iterator[int]
) -> PlannedBatch | None:
    """Return a batch to send behind the plain ones, which end at `next_sequence`; mostly None."""
    if rng.random() >= _SHARE_OUT_OF_TURN:
        return None
    manners = ["gap", *(["again"] if state.recent else []), *(["stale"] if state.old else [])]
    match rng.choice(manners):
        case "again":
            return replace(rng.choice(state.recent), manner="again")
        case "stale":
            return _stale(rng, state, version, values)
        case _ if next_sequence == 0:
            return None  # a leader without the producer accepts any sequence
        case _:
            return _with_gap(rng, state, next_sequence, version, values)


def _stale(rng: Random, state: ProducerState, version: int, values: Iterator[int]) -> PlannedBatch:
    """Return a batch of an older epoch: its last one again, or the one after it."""
    old = rng.choice(state.old)
    if rng.random() < 0.5:
        return replace(old, manner="stale again")
    sequence, epoch = old.base_sequence + len(old.records), old.producer_epoch
    return _batch(rng, state, sequence, version, values, epoch=epoch, like="stale")


def _with_gap(
    rng: Random, state: ProducerState, next_sequence: int, version: int, values: Iterator[int]
) -> PlannedBatch:
    """Return a batch that skips sequences, or begins a new epoch with another one than 0."""
    skipped = rng.randrange(1, GAP_MAX)
    if rng.random() < _SHARE_OF_NEXT_EPOCHS:
        epoch, manner = state.epoch + 1, "gap in the next epoch"
        return _batch(rng, state, skipped, version, values, epoch=epoch, like=manner)
    return _batch(rng, state, next_sequence + skipped, version, values, like="gap")


def maybe_next_epoch(rng: Random, state: ProducerState) -> None:
    """Raise the epoch at times, as a client does after an error (KIP-360)."""
    if state.recent and rng.random() < 0.12:
        state.old.append(state.recent[-1])
        state.recent.clear()
        state.epoch, state.next_sequence = state.epoch + 1, 0


def ends_life(rng: Random) -> bool:
    """Return whether a producer id is given up, and another one is requested."""
    return rng.random() < 1 / _LIVES


def _batch(
    rng: Random,
    state: ProducerState | None,
    sequence: int,
    version: int,
    values: Iterator[int],
    *,
    epoch: int | None = None,
    like: str = "plain",
) -> PlannedBatch:
    count = rng.randrange(1, RECORDS_MAX + 1)
    codecs: Sequence[Compression] = [
        one for one in installed_codecs() if one is not Compression.ZSTD or version >= ZSTD_SINCE
    ]
    records = tuple(drawn_record(rng, index, next(values)) for index in range(count))
    compression = Compression.NONE if rng.random() < 0.4 else rng.choice(codecs)
    if state is None:
        return PlannedBatch(records=records, compression=compression)
    return PlannedBatch(
        records=records,
        producer_id=state.producer_id,
        producer_epoch=state.epoch if epoch is None else epoch,
        base_sequence=sequence,
        compression=compression,
        manner=like,
    )
