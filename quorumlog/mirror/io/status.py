"""Reads how far a mirror is, from the positions topic and the source; no mirror need run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from quorumlog import clock
from quorumlog.client import Admin, Consumer, OffsetAndTimestamp, TopicPartition
from quorumlog.mirror.core.position_records import CHECKPOINT_KEY, Checkpoint, Generation, Position
from quorumlog.mirror.errors import MirrorRefused
from quorumlog.mirror.io.positions_topic import PositionsReader
from quorumlog.mirror.settings import MirrorSettings

_POLL_MS: Final = 1_000
_POLLS: Final = 10
_FETCH_BYTES: Final = 1_024  # of each lagging partition the first batch is enough


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """One partition. `end`: the end of the committed records at the source.

    lag: records between, -1 if the source does not have the partition. `lag_ms`: the age of the
    first record that is not copied; 0 without a lag; None if its time is unknown.
    """

    topic: str
    partition: int
    position: int
    end: int
    lag: int
    lag_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorStatus:
    """A mirror's last start and checkpoint, and its partitions in order."""

    generation: Generation
    checkpoint: Checkpoint | None
    partitions: tuple[PartitionStatus, ...]


async def read_status(settings: MirrorSettings) -> MirrorStatus:
    """Return the state of the mirror of this alias. Raises KafkaError, MirrorRefused."""
    topic = settings.positions_topic
    async with Admin(**settings.target) as target:
        if topic not in await target.list_topics(include_internal=True):
            raise MirrorRefused(f"the target has no {topic}: no mirror of this alias has run")
    async with PositionsReader(settings.target, topic) as reader:
        contents = await reader.read()
    generation, checkpoint = reader.generation, contents.get(CHECKPOINT_KEY)
    if generation is None:
        raise MirrorRefused(f"{topic} has no record of a mirror")
    positions = {
        key.partition: content.offset
        for key, content in contents.items()
        if isinstance(content, Position) and key.partition is not None
    }
    return MirrorStatus(
        generation=generation,
        checkpoint=checkpoint if isinstance(checkpoint, Checkpoint) else None,
        partitions=await _partitions(settings.source, positions),
    )


async def _partitions(
    client: Mapping[str, Any], positions: Mapping[TopicPartition, int]
) -> tuple[PartitionStatus, ...]:
    async with Admin(**client) as source:
        described = await source.describe_topics()
        there = [
            one
            for one in sorted(positions)
            if one.topic in described and one.partition in described[one.topic].partitions
        ]
        ends: Mapping[TopicPartition, OffsetAndTimestamp] = {}
        if there:
            ends = await source.list_offsets(dict.fromkeys(there, "latest"), "read_committed")
    lags = {one: max(ends[one].offset - positions[one], 0) for one in there}
    behind = {one: positions[one] for one, lag in lags.items() if lag}
    times = await _times(client, behind)
    now_ms = clock.wall_clock_ms()

    def lag_ms(one: TopicPartition) -> int | None:
        if not lags.get(one):
            return 0
        return max(now_ms - times[one], 0) if one in times else None

    return tuple(
        PartitionStatus(
            topic=one.topic,
            partition=one.partition,
            position=positions[one],
            end=ends[one].offset if one in ends else -1,
            lag=lags.get(one, -1),
            lag_ms=lag_ms(one) if one in lags else None,
        )
        for one in sorted(positions)
    )


async def _times(
    client: Mapping[str, Any], positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the timestamp of the first record at each position; none if it takes too long."""
    found: dict[TopicPartition, int] = {}
    if not positions:
        return found
    consumer = Consumer(
        **client,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        max_partition_fetch_bytes=_FETCH_BYTES,
    )
    async with consumer:
        consumer.assign(positions)
        for place, offset in positions.items():
            consumer.seek(place, offset)
        for _ in range(_POLLS):
            for place, records in (await consumer.poll(_POLL_MS)).items():
                found.setdefault(place, records[0].timestamp_ms)
            missing = positions.keys() - found.keys()
            if not missing:
                break
            consumer.assign(sorted(missing))
    return found
