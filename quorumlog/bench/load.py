"""The loads, and the results of their runs, as plain data that other processes can receive. Pure.

The value of a record is its number, 8 bytes in network order, and padding. Numbers of the warm-up
begin at WARM_UP.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from quorumlog.bench.histogram import Histogram

Mode = Literal["pipelined", "one-by-one"]
"""Batches of many records in flight; or each record is sent after the last is acknowledged."""
Acks = Literal["all", 0, 1]
Driver = Literal["client", "confluent"]
"""The library that sends: quorumlog.client, or confluent-kafka."""
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
NUMBER_BYTES: Final = 8
WARM_UP: Final = 1 << 62
UNKNOWN, ACKNOWLEDGED, FAILED = 0, 1, 2
"""The outcomes of a record."""
RETRIES: Final = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceLoad:
    """Records to send to all partitions of a topic in turn.

    It ends after `messages` or `duration_s`; one is given. size: bytes of a value. rate_per_s: at
    most; None: as fast as it can. window: unacknowledged records at most, in the mode `pipelined`.
    warm_up_s: the time of sends before the measurement. counts_stored: compare the log end offsets
    before and after. keeps_outcomes: remember the outcome of each record, to compare it with the
    logs. hold_at: this record waits until the owner of the load releases it.
    """

    topic: str
    messages: int | None = None
    duration_s: float | None = None
    size: int = 1024
    acks: Acks = "all"
    mode: Mode = "pipelined"
    idempotent: bool = False
    retries: int = RETRIES
    compression: str = "none"
    linger_ms: float = 0
    rate_per_s: float | None = None
    window: int = 5_000
    warm_up_s: float = 0.0
    counts_stored: bool = False
    keeps_outcomes: bool = False
    hold_at: int | None = None

    def __post_init__(self) -> None:
        if (self.messages is None) == (self.duration_s is None):
            raise ValueError("give the number of messages, or the duration")
        if self.size < NUMBER_BYTES:
            raise ValueError(f"size {self.size}: a value has at least {NUMBER_BYTES} bytes")
        if self.keeps_outcomes and self.messages is None:
            raise ValueError("outcomes are kept of a number of messages, not of a duration")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A slice of the time line: records acknowledged, failed attempts by code, since the last."""

    at_s: float
    acknowledged: int
    attempts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResult:
    """A finished load.

    began_s: on the monotonic clock, which the processes of a machine share. failed: records by
    the code of their error. attempts: failed attempts by code, retried or not; None: the library
    does not count them. stored: records that the logs have more than before; None: not counted.
    latency: of a sample of the records, from `send` to the acknowledgement.
    """

    began_s: float
    seconds: float
    sent: int
    acknowledged: int
    size: int
    failed: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, int] | None = None
    stored: int | None = None
    moments: Sequence[Moment] = ()
    latency: Histogram = field(default_factory=Histogram)

    @property
    def rate_per_s(self) -> float:
        """Acknowledged records per second of wall time."""
        return self.acknowledged / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the figures, without the time line."""
        return {
            "sent": self.sent,
            "acknowledged": self.acknowledged,
            "failed": self.failed,
            "failed_attempts": self.attempts,
            "stored": self.stored,
            "seconds": round(self.seconds, 3),
            "messages_per_s": round(self.rate_per_s, 1),
            "mb_per_s": round(self.rate_per_s * self.size / 1e6, 3),
            "latency": self.latency.as_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeLoad:
    """Records to read from all partitions of a topic, without a group.

    It ends after `messages` or `duration_s`, or at the ends that the logs had at its start.
    """

    topic: str
    messages: int | None = None
    duration_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeResult:
    """A finished read. `bytes`: of keys and values."""

    seconds: float
    records: int
    bytes: int

    def as_json(self) -> dict[str, Any]:
        """Return the figures."""
        return {
            "records": self.records,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "messages_per_s": round(self.records / self.seconds, 1) if self.seconds else 0.0,
            "mb_per_s": round(self.bytes / self.seconds / 1e6, 3) if self.seconds else 0.0,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyLoad:
    """An open loop: record `n` is due `n / rate_per_s` after the start, acknowledged or not."""

    topic: str
    messages: int
    rate_per_s: float
    size: int = 1024
    acks: Acks = "all"
    compression: str = "none"
    warm_up_s: float = 0.0

    def __post_init__(self) -> None:
        if self.size < NUMBER_BYTES:
            raise ValueError(f"size {self.size}: a value has at least {NUMBER_BYTES} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyResult:
    """Latencies from the due time: to the acknowledgement, and to the consumer."""

    seconds: float
    sent: int
    failed: dict[str, int]
    producer: Histogram
    end_to_end: Histogram

    def as_json(self) -> dict[str, Any]:
        """Return the figures."""
        return {
            "sent": self.sent,
            "failed": self.failed,
            "seconds": round(self.seconds, 3),
            "producer": self.producer.as_json(),
            "end_to_end": self.end_to_end.as_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Records as the logs have them, beside the outcomes that the producer saw.

    lost: acknowledged, and not in a log. duplicates: further copies of records. failed_stored:
    records that failed for the producer, and are in a log.
    """

    stored: int
    lost: int
    duplicates: int
    failed_stored: int


def compare(outcomes: bytearray, copies: bytearray) -> Kept:
    """Compare the outcome of each record with the number of its copies in the logs."""
    pairs = list(zip(outcomes, copies, strict=True))
    return Kept(
        stored=sum(copies),
        lost=sum(outcome == ACKNOWLEDGED and not count for outcome, count in pairs),
        duplicates=sum(count - 1 for _, count in pairs if count > 1),
        failed_stored=sum(outcome == FAILED and count > 0 for outcome, count in pairs),
    )
