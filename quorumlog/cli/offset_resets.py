"""Decides the target offsets of a reset, from committed offsets and log ends.

A target outside a log becomes the log's nearest end, as in Kafka's tool. A reset refuses a
partition without log offsets, and a shift of a partition without a committed offset.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from quorumlog.client import TopicPartition

Target = Literal["earliest", "latest", "offset", "shift", "time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """The target of a reset. `value`: the offset, the shift or the time in ms, if it has one."""

    target: Target
    value: int = 0


class LogEnds(NamedTuple):
    """The log start and log end offset. `at_time`: -1 if no record is later."""

    earliest: int
    latest: int
    at_time: int = -1


class Move(NamedTuple):
    """The change of one partition's committed offset; `before`: None if not committed."""

    partition: TopicPartition
    before: int | None
    after: int


def plan(
    reset: Reset,
    partitions: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, LogEnds],
) -> list[Move]:
    """Return the move of every partition, in order. Raises ValueError."""
    moves = []
    for name in sorted(partitions):
        if name not in ends:
            raise ValueError(f"{name} does not exist")
        before = committed.get(name)
        after = _target(reset, name, before, ends[name])
        moves.append(Move(name, before, min(max(after, ends[name].earliest), ends[name].latest)))
    return moves


def _target(reset: Reset, name: TopicPartition, before: int | None, ends: LogEnds) -> int:
    match reset.target:
        case "earliest":
            return ends.earliest
        case "latest":
            return ends.latest
        case "offset":
            return reset.value
        case "time":
            return ends.latest if ends.at_time < 0 else ends.at_time
        case "shift":
            if before is None:
                raise ValueError(f"{name} has no committed offset to shift: give another target")
            return before + reset.value


def parse_datetime_ms(text: str) -> int:
    """Read an ISO 8601 date and time (UTC without an offset) as ms. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no date and time: write it as 2026-01-31T12:00:00") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def parse_topics(texts: Iterable[str]) -> dict[str, list[int] | None]:
    """Read several of TOPIC or TOPIC:0,1,2; None stands for all partitions. Raises ValueError."""
    topics: dict[str, list[int] | None] = {}
    for text in texts:
        topic, indexes = _parse_topic(text)
        before = topics.get(topic, [])
        both = None if before is None or indexes is None else sorted({*before, *indexes})
        topics[topic] = both
    return topics


def _parse_topic(text: str) -> tuple[str, list[int] | None]:
    topic, colon, indexes = text.partition(":")
    if not colon:
        return topic, None
    if not all(index.isdecimal() for index in indexes.split(",")):
        raise ValueError(f"{text!r}: write it as TOPIC or TOPIC:0,1,2")
    return topic, [int(index) for index in indexes.split(",")]
