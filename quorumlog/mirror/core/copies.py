"""The state of a mirror: its topics, each partition's position and runs, and why a topic stopped.

It changes only after the target has acknowledged the records (in a transaction: committed), so a
translated offset never points behind the copies.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from quorumlog.mirror.core.offset_runs import OffsetRun, OffsetRuns
from quorumlog.mirror.core.position_records import (
    SAMPLE_RUNS,
    Content,
    Position,
    RecordKey,
    Translation,
)
from quorumlog.mirror.core.selection import TopicNames
from quorumlog.mirror.core.topic_plan import TopicIds
from quorumlog.wire.codec.identifiers import TopicPartition

UNKNOWN: Final = -1


@dataclass(slots=True)
class CopiedPartition:
    """offset: the next offset to copy; UNKNOWN: the log start of the source.

    leader_epoch: of the record before it. `is_saved`: the runs are in the positions topic.
    """

    offset: int = UNKNOWN
    leader_epoch: int = -1
    runs: OffsetRuns = field(default_factory=OffsetRuns)
    is_saved: bool = True


@dataclass(slots=True)
class CopiedTopic:
    """One topic and its copy. `stopped`: why it is not copied; None: it is copied.

    is_at_source: the source has the topic now. `refusals`: attempts in a row to read it that the
    source refused.
    """

    name: str
    copy: str
    ids: TopicIds = field(default_factory=TopicIds)
    partitions: dict[int, CopiedPartition] = field(default_factory=dict)
    stopped: str | None = None
    retry_at_ms: float = 0.0
    is_at_source: bool = True
    refusals: int = 0

    @property
    def is_recorded(self) -> bool:
        """Return whether a partition has a position in the topic of these ids."""
        return any(one.offset != UNKNOWN for one in self.partitions.values())

    @property
    def is_active(self) -> bool:
        """Return whether the topic is copied now."""
        return self.stopped is None and self.is_at_source


class Copies:
    """All topics of one mirror, by their names at the source.

    changes: counts the changes of the active partitions, and of positions that were forgotten.
    """

    def __init__(self) -> None:
        self.topics: Final[dict[str, CopiedTopic]] = {}
        self.changes = 0

    def __iter__(self) -> Iterator[CopiedTopic]:
        """Iterate over the topics in the order of their names."""
        return iter([self.topics[name] for name in sorted(self.topics)])

    # --- the positions topic ---

    def restore(self, contents: Mapping[RecordKey, Content], names: TopicNames) -> None:
        """Begin with the positions in the positions topic; topics keep why they are not copied."""
        inactive = [topic for topic in self if not topic.is_active]
        self.topics.clear()
        for one in inactive:
            self.topics[one.name] = replace(one, ids=TopicIds(), partitions={})
        for key, content in contents.items():
            place = key.partition
            if not isinstance(content, Position) or place is None or place.topic not in names:
                continue
            if place.topic not in self.topics:  # until `enter`, it may be a topic of the past
                topic = self._topic(place.topic, names.copy_of(place.topic))
                topic.is_at_source = False
            topic = self.topics[place.topic]
            topic.ids = TopicIds(source=content.topic_id, target=content.copy_id)
            earlier = contents.get(RecordKey("runs", place))
            runs = _merged(content, earlier if isinstance(earlier, Translation) else None)
            topic.partitions[place.partition] = CopiedPartition(
                content.offset, content.leader_epoch, runs
            )

    def position_record(
        self, place: TopicPartition, offset: int, leader_epoch: int, runs: Sequence[OffsetRun]
    ) -> tuple[RecordKey, Position]:
        """Return the record of the position that `advance` will set with the same arguments."""
        topic, one = self.topics[place.topic], self.of(place)
        newest = OffsetRuns([*one.runs.sample(SAMPLE_RUNS), *runs])
        position = Position(
            offset=offset,
            topic_id=topic.ids.source,
            copy_id=topic.ids.target,
            leader_epoch=leader_epoch,
            runs=tuple(newest.sample(SAMPLE_RUNS)),
        )
        return RecordKey("position", place), position

    def unsaved_runs(self) -> list[tuple[RecordKey, Translation]]:
        """Return the records of all runs that have changed since the last call."""
        records = []
        for topic in self:
            for index, one in sorted(topic.partitions.items()):
                if not one.is_saved:
                    one.is_saved = True
                    key = RecordKey("runs", TopicPartition(topic.name, index))
                    ids = topic.ids
                    runs = tuple(one.runs.sample(len(one.runs)))
                    records.append((key, Translation(ids.source, ids.target, runs)))
        return records

    def newest_runs(self) -> dict[TopicPartition, OffsetRun]:
        """Return the last run of each partition that is copied."""
        return {
            place: one.runs[len(one.runs) - 1]
            for place in self.active_partitions()
            if len((one := self.of(place)).runs)
        }

    # --- topics ---

    def enter(self, name: str, copy: str, ids: TopicIds, partitions: int) -> CopiedTopic:
        """Record that both sides have the topic, with these ids and at least these partitions."""
        topic = self._topic(name, copy)
        if not topic.is_active or len(topic.partitions) < partitions:
            self.changes += 1
        topic.ids, topic.stopped, topic.is_at_source = ids, None, True
        for index in range(partitions):
            topic.partitions.setdefault(index, CopiedPartition())
        return topic

    def stop(self, name: str, copy: str, reason: str, retry_at_ms: float = 0.0) -> bool:
        """Record why the topic is not copied; return whether that is news.

        retry_at_ms: `enter` may resume the topic from then on.
        """
        topic = self._topic(name, copy)
        is_news = topic.stopped != reason
        self.changes += is_news
        topic.stopped, topic.retry_at_ms = reason, retry_at_ms
        return is_news

    def restart(self, name: str) -> None:
        """Forget the positions and the runs of a topic: it is copied from its start."""
        topic = self.topics.get(name)
        if topic is not None:
            self.changes += 1
            topic.partitions.clear()
            topic.ids = TopicIds()

    def leave(self, names_at_source: Iterable[str]) -> list[str]:
        """Return the topics that the source has no longer; `enter` resumes them."""
        present, gone = {*names_at_source}, []
        for topic in self:
            if topic.name not in present and topic.is_at_source:
                topic.is_at_source = False
                self.changes += 1
                gone.append(topic.name)
        return gone

    def stopped(self) -> dict[str, str]:
        """Return the reasons by topic."""
        return {topic.name: topic.stopped for topic in self if topic.stopped is not None}

    def active_partitions(self) -> list[TopicPartition]:
        """Return the partitions to copy, in order."""
        return [
            TopicPartition(topic.name, index)
            for topic in self
            if topic.is_active
            for index in sorted(topic.partitions)
        ]

    # --- partitions ---

    def of(self, place: TopicPartition) -> CopiedPartition:
        """Return a partition's state. Raises KeyError."""
        return self.topics[place.topic].partitions[place.partition]

    def copy_of(self, place: TopicPartition) -> TopicPartition:
        """Return the partition at the target. Raises KeyError."""
        return TopicPartition(self.topics[place.topic].copy, place.partition)

    def advance(
        self, place: TopicPartition, offset: int, leader_epoch: int, runs: Sequence[OffsetRun] = ()
    ) -> None:
        """Record acknowledged copies: `runs` of them, and the next offset to copy."""
        one = self.of(place)
        one.offset, one.leader_epoch = offset, leader_epoch
        for run in runs:
            one.runs.append(run)
        one.is_saved = one.is_saved and not runs

    def translate(
        self, place: TopicPartition, offset: int, source_end: int
    ) -> tuple[TopicPartition, int] | None:
        """Return the partition and the offset at the target for an offset at the source.

        source_end: the source's high watermark as of the last fetch. None for a partition that is
        not copied, of which nothing was copied, or that never had the offset: then the offset is of
        an earlier topic of this name.
        """
        topic = self.topics.get(place.topic)
        one = None if topic is None else topic.partitions.get(place.partition)
        if topic is None or one is None or not topic.is_active:
            return None
        if offset > max(one.offset, source_end):
            return None
        moved = one.runs.translate(offset)
        return None if moved is None else (TopicPartition(topic.copy, place.partition), moved)

    def _topic(self, name: str, copy: str) -> CopiedTopic:
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = CopiedTopic(name, copy)
        return topic


def _merged(position: Position, earlier: Translation | None) -> OffsetRuns:
    """Return the runs of the last Translation, continued by the newest runs of the position."""
    newest = position.runs
    if earlier is None or not newest or not _is_same_topic(position, earlier):
        return OffsetRuns(newest)
    first, *later = newest
    tail = later or [first]
    return OffsetRuns([*(run for run in earlier.runs if run.upstream < tail[0].upstream), *tail])


def _is_same_topic(position: Position, other: Translation) -> bool:
    return (position.topic_id, position.copy_id) == (other.topic_id, other.copy_id)
