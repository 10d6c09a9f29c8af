"""Topics that are deleted and re-created: for an oracle, each is a new topic.

A place is a partition of one such topic. The first topic gives its place its own name; later ones
add a number.
"""

from collections import Counter
from typing import Final

from quorumlog.wire.codec.identifiers import TopicId, TopicPartition


class TopicLives:
    """The topics that the controller has created and deleted."""

    def __init__(self) -> None:
        self._names: Final[dict[TopicId, str]] = {}  # topic names of places
        self._counts: Final = Counter[str]()  # of creations, by topic name
        self._deleted: Final[set[str]] = set()  # topic names of places

    def create(self, name: str, topic_id: TopicId) -> None:
        """Record a new topic."""
        self._counts[name] += 1
        number = self._counts[name]
        self._names[topic_id] = name if number == 1 else f"{name}#{number}"

    def delete(self, topic_id: TopicId) -> str:
        """Record a deletion; return the topic name of its places."""
        name = self._names[topic_id]
        self._deleted.add(name)
        return name

    def place_of(self, at: TopicPartition, topic_id: TopicId) -> TopicPartition:
        """Return the place of a partition of this topic."""
        name = self._names[topic_id]
        return at if name == at.topic else TopicPartition(name, at.partition)

    def log_of(self, place: TopicPartition) -> TopicPartition:
        """Return the partition whose name the log of a place has."""
        return TopicPartition(place.topic.partition("#")[0], place.partition)

    def places_of(self, at: TopicPartition) -> list[TopicPartition]:
        """Return the places of all topics with this name, the newest last."""
        later = range(2, self._counts[at.topic] + 1)
        return [at, *(TopicPartition(f"{at.topic}#{number}", at.partition) for number in later)]

    def is_later(self, place: TopicPartition) -> bool:
        """Return whether its topic had a predecessor of the same name."""
        return "#" in place.topic

    def is_deleted(self, place: TopicPartition) -> bool:
        """Return whether its topic is deleted."""
        return place.topic in self._deleted
