"""One batch of a producer: records that are sent, retried, acknowledged and failed together.

A batch keeps its records until it is done: a new producer epoch encodes them again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from quorumlog.client.errors import KafkaError
from quorumlog.invariants import require
from quorumlog.wire.codec.compression import Compression
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicPartition
from quorumlog.wire.codec.records import Fields, encode_batch

BATCH_OVERHEAD_BYTES: Final = 61
RECORD_OVERHEAD_BYTES: Final = 21  # the maximum for lengths, deltas and attributes
HEADER_OVERHEAD_BYTES: Final = 10
TIMESTAMP_MAX_MS: Final = 2**63 - 1


class BatchState(Enum):
    """WAITING (may still grow), SENT, RETRYING (waits for its next attempt), DONE."""

    WAITING = auto()
    SENT = auto()
    RETRYING = auto()
    DONE = auto()


TRANSITIONS: Final[Mapping[BatchState, frozenset[BatchState]]] = {
    BatchState.WAITING: frozenset({BatchState.SENT, BatchState.DONE}),
    BatchState.SENT: frozenset({BatchState.RETRYING, BatchState.DONE}),
    BatchState.RETRYING: frozenset({BatchState.SENT, BatchState.DONE}),
    BatchState.DONE: frozenset(),
}


class ProducerIdentity(NamedTuple):
    """The producer id and epoch from InitProducerId; the client raises the epoch (KIP-360)."""

    producer_id: int
    producer_epoch: int


@dataclass(slots=True, eq=False)
class Batch:
    """Records for one partition.

    `size_in_bytes` is an upper bound for the uncompressed batch. `indefinite`: an attempt may
    have been written; it stays True from then on. `base_sequence` is -1 until the first attempt.
    """

    topic_partition: TopicPartition
    created_ms: float
    is_transactional: bool = False
    records: list[Fields] = field(default_factory=list)
    size_in_bytes: int = BATCH_OVERHEAD_BYTES
    state: BatchState = BatchState.WAITING
    attempts: int = 0
    retry_at_ms: float = 0.0  # while RETRYING
    leader_epoch: int = -1  # of the last attempt's leader
    topic_id: bytes = ZERO_TOPIC_ID  # of the last attempt's topic
    indefinite: bool = False
    last_code: ErrorCode = ErrorCode.NONE  # the last attempt's error
    identity: ProducerIdentity | None = None
    base_sequence: int = -1
    base_offset: int = -1
    log_append_time_ms: int = -1
    error: KafkaError | None = None
    on_done: list[Callable[[], None]] = field(default_factory=list)
    _encoded: bytes | None = None

    @property
    def is_refused(self) -> bool:
        """True if the leader refused the last attempt, and another attempt follows."""
        is_lost = self.last_code in {ErrorCode.NONE, ErrorCode.NETWORK_EXCEPTION}
        return self.state is BatchState.RETRYING and not is_lost

    def become(self, state: BatchState) -> None:
        """Change state. Raises InvariantViolation for an illegal change."""
        require(state in TRANSITIONS[self.state], f"a batch may go {self.state} -> {state}")
        self.state = state

    def number(self, identity: ProducerIdentity, base_sequence: int) -> None:
        """Set the batch's producer identity and base sequence; drop its encoded bytes."""
        self.identity, self.base_sequence, self._encoded = identity, base_sequence, None

    def release(self) -> None:
        """Drop the records: callers that wait for the outcome do not need them."""
        self.records, self._encoded = [], None

    def encode(self, compression: Compression) -> bytes:
        """Return the bytes to send; encoded once for each numbering."""
        if self._encoded is None:
            producer_id, producer_epoch = self.identity or (-1, -1)
            self._encoded = encode_batch(
                self.records,
                compression=compression,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=self.base_sequence,
                is_transactional=self.is_transactional,
            )
        return self._encoded

    def last_outcome(self) -> str:
        """Describe how the last attempt ended."""
        if not self.attempts:
            return "never sent, as its leader was unknown, unreachable or busy"
        if self.state is BatchState.SENT:
            return "no answer came"
        return f"the last of {self.attempts} attempts ended with {self.last_code.name}"


def check_timestamp(timestamp_ms: int) -> None:
    """Raise TypeError or ValueError if a record cannot have this timestamp."""
    if not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool):
        raise TypeError(f"timestamp_ms is an int, not {type(timestamp_ms).__name__}")
    if not 0 <= timestamp_ms <= TIMESTAMP_MAX_MS:
        raise ValueError(f"timestamp_ms is {timestamp_ms}: not milliseconds since 1970")


def checked_record_size(
    key: object, value: object, headers: tuple[tuple[str, bytes | None], ...]
) -> int:
    """Return a record's maximum size in a batch, in bytes. Raises TypeError for a bad field."""
    size = RECORD_OVERHEAD_BYTES
    if value is not None:
        if not isinstance(value, bytes):
            raise _not_bytes("value", value)
        size += len(value)
    if key is not None:
        if not isinstance(key, bytes):
            raise _not_bytes("key", key)
        size += len(key)
    for header in headers:
        name, content = header if isinstance(header, tuple) and len(header) == 2 else (None, None)
        if not isinstance(name, str) or not isinstance(content, bytes | None):
            raise TypeError("a record's headers are pairs of str and (bytes or None)")
        size += HEADER_OVERHEAD_BYTES + len(name.encode()) + len(content or b"")
    return size


def _not_bytes(name: str, given: object) -> TypeError:
    kind = type(given).__name__
    return TypeError(f"a record's {name} is bytes or None, not {kind}: set {name}_serializer")
