"""The result of a comparison of both sides of a mirror, and its sentence for a person."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from quorumlog.mirror.core.comparison import EXTRA, MISSING, ORDER, RECORD, REPEATED, Difference

NO_TOPIC: Final = "topic"
NO_PARTITION: Final = "partition"
"""Beside the fields of a Difference: the target lacks the topic, or the partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedPartition:
    """The result for one partition.

    compared: source records with an equal copy; of a compacted topic, keys. repeated: copies
    behind the first copy of their record. removed_at_source, removed_at_target: records that one
    side has and the other has lost from the beginning of its log. digest: of the compared records.
    """

    compared: int = 0
    repeated: int = 0
    removed_at_source: int = 0
    removed_at_target: int = 0
    digest: str = ""
    difference: Difference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedTopic:
    """The result for one topic. `copy`: its name at the target."""

    copy: str
    compacted: bool = False
    partitions: Mapping[int, VerifiedPartition] = field(default_factory=dict)

    @property
    def compared(self) -> int:
        """The compared records, or keys."""
        return sum(one.compared for one in self.partitions.values())

    @property
    def valid(self) -> bool:
        """Whether no partition has a difference."""
        return all(one.difference is None for one in self.partitions.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The result, by the topics' names at the source."""

    topics: Mapping[str, VerifiedTopic]

    @property
    def compared(self) -> int:
        """The compared records and keys of all topics."""
        return sum(topic.compared for topic in self.topics.values())

    @property
    def valid(self) -> bool:
        """Whether records were compared, and no difference was found."""
        return self.compared > 0 and all(topic.valid for topic in self.topics.values())

    @property
    def first(self) -> tuple[str, int, Difference] | None:
        """The first difference: topic, partition and difference."""
        for name, topic in self.topics.items():
            for index, one in topic.partitions.items():
                if one.difference is not None:
                    return name, index, one.difference
        return None

    @property
    def reason(self) -> str:
        """Why the result is not valid; "" if it is."""
        if not self.topics:
            return "nothing was compared: the source has no such topic"
        if self.first is not None:
            topic, partition, difference = self.first
            return f"{topic}-{partition}: {_sentence(difference, self.topics[topic].copy)}"
        return "" if self.compared else "nothing was compared: no record is on both sides"

    def as_json(self) -> dict[str, Any]:
        """Return the result as a JSON document."""
        topics = {
            name: {
                "valid": topic.valid,
                "copy": topic.copy,
                "compacted": topic.compacted,
                "compared": topic.compared,
                "partitions": {str(index): asdict(one) for index, one in topic.partitions.items()},
            }
            for name, topic in self.topics.items()
        }
        first = self.first
        difference = None
        if first is not None:
            difference = {"topic": first[0], "partition": first[1], **asdict(first[2])}
        return {
            "valid": self.valid,
            "compared": self.compared,
            "reason": self.reason,
            "difference": difference,
            "topics": topics,
        }


_SENTENCES: Final[Mapping[str, str]] = {
    NO_TOPIC: "the target has no topic {copy}",
    NO_PARTITION: "the target has no such partition of {copy}",
    MISSING: "{ours} has no copy",
    EXTRA: "{theirs} is of no record of the source",
    REPEATED: "{theirs} is of a record that was copied before",
    ORDER: "{theirs} is before the copy of {ours}",
    RECORD: "{theirs} is another record than {ours}",
}


def _sentence(difference: Difference, copy: str) -> str:
    shown = _SENTENCES.get(difference.field, "{theirs} has another {field} than {ours}")
    return shown.format(
        copy=copy,
        field=difference.field,
        ours=f"the record at offset {difference.upstream_offset} of the source",
        theirs=f"the copy at offset {difference.downstream_offset} of the target",
    )
