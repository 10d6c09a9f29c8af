"""The settings `group.consumer.*` of a coordinator, with Kafka's defaults."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupSettings:
    """Limits and intervals of groups of the consumer protocol.

    `assignors`: their names; the first one serves groups whose members name none.
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5000
    max_size: int = (1 << 31) - 1
    assignors: tuple[str, ...] = ("uniform", "range")
