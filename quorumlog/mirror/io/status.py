"""Reads how far a mirror is, from the positions topic and the source; no mirror need run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from quorumlog import clock
from quorumlog.client import Admin, Consumer, TopicPartition
from quorumlog.client.errors import TopicDenied
from quorumlog.mirror.core.position_records import CHECKPOINT_KEY, Checkpoint, Generation, Position
from quorumlog.mirror.core.selection import TopicNames, topic_names
from quorumlog.mirror.core.topic_plan import is_replaced
from quorumlog.mirror.errors import MirrorRefused
from quorumlog.mirror.io.positions_topic import PositionsReader, generations_at
from quorumlog.mirror.settings import MirrorSettings

_POLL_MS: Final = 1_000
_POLLS: Final = 10
_FETCH_BYTES: Final = 1_024  # of each lagging partition the first batch is enough


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """One partition of a topic that is mirrored, or was.

    position: the next offset to copy; -1 if the copy has nothing of the topic that the source has
    now. `end`: the end of the committed records at the source. `lag`: the offsets between. Both
    are -1 if the source does not have the partition. `lag_ms`: the age of the first record that is
    not copied; 0 without a lag; None if its time is unknown.
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
        at_target = await target.describe_topics()
    async with PositionsReader(settings.target, topic) as reader:
        contents = await reader.read()
    generation, checkpoint = reader.generation, contents.get(CHECKPOINT_KEY)
    if generation is None:
        raise MirrorRefused(f"{topic} has no record of a mirror")
    positions = {
        key.partition: content
        for key, content in contents.items()
        if isinstance(content, Position) and key.partition is not None
    }
    async with Admin(**settings.source) as source:
        mirrors_here = await generations_at(source, settings.source)
        as_started = replace(
            settings,
            topics=generation.topics,
            exclude=generation.exclude,
            prefix=generation.prefix,
            target_alias=generation.target_alias,
        )
        names = topic_names(as_started, mirrors_here, generation.target_cluster)
        copy_ids = {name: one.topic_id for name, one in at_target.items()}
        there = {
            place: position
            for place, position in positions.items()
            if (copy_id := copy_ids.get(names.copy_of(place.topic))) is not None
            and not is_replaced(copy_id, position.copy_id)
        }
        partitions = await _partitions(settings.source, source, names, there)
    return MirrorStatus(
        generation=generation,
        checkpoint=checkpoint if isinstance(checkpoint, Checkpoint) else None,
        partitions=partitions,
    )


async def _partitions(
    client: Mapping[str, Any],
    source: Admin,
    names: TopicNames,
    positions: Mapping[TopicPartition, Position],
) -> tuple[PartitionStatus, ...]:
    """Return the partitions of the topics to copy, and of `positions` in present copies."""
    described = await source.describe_topics()
    at_source = {
        TopicPartition(name, index): topic.topic_id
        for name, topic in described.items()
        for index in topic.partitions
        if name in names or TopicPartition(name, index) in positions
    }
    copied = {
        place: position.offset
        for place, position in positions.items()
        if not is_replaced(at_source.get(place, position.topic_id), position.topic_id)
    }
    starts = await source.list_offsets(dict.fromkeys(at_source.keys() - copied.keys(), "earliest"))
    ends = await source.list_offsets(dict.fromkeys(at_source, "latest"), "read_committed")
    following = {
        place: copied[place] if place in copied else starts[place].offset for place in at_source
    }
    lags = {place: max(ends[place].offset - offset, 0) for place, offset in following.items()}
    behind = {place: following[place] for place, lag in lags.items() if lag}
    times = await _times(client, behind)
    now_ms = clock.wall_clock_ms()

    def lag_ms(place: TopicPartition) -> int | None:
        if lags.get(place) == 0:
            return 0
        return max(now_ms - times[place], 0) if place in times else None

    return tuple(
        PartitionStatus(
            topic=place.topic,
            partition=place.partition,
            position=copied.get(place, -1),
            end=ends[place].offset if place in ends else -1,
            lag=lags.get(place, -1),
            lag_ms=lag_ms(place),
        )
        for place in sorted(at_source.keys() | positions.keys())
    )


async def _times(
    client: Mapping[str, Any], positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the timestamp of the first record at each position.

    A partition that takes too long has none, nor has a topic that the user may not read.
    """
    found: dict[TopicPartition, int] = {}
    denied: set[str] = set()
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
            try:
                for place, records in (await consumer.poll(_POLL_MS)).items():
                    found.setdefault(place, records[0].timestamp_ms)
            except TopicDenied as error:
                denied.add(error.topic)
            missing = [one for one in positions if one not in found and one.topic not in denied]
            if not missing:
                break
            consumer.assign(sorted(missing))
    return found
