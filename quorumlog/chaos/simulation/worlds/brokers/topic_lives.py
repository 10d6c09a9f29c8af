"""Topics that are deleted and created again under their name: for an oracle each is another one.

A place is a partition of one such topic: that of the first has its name, later ones a number, too.
"""

from collections import Counter
from typing import Final

from quorumlog.wire.codec.identifiers import TopicId, TopicPartition


class TopicLives:
    """What the controller has created and deleted."""

    def __init__(self) -> None:
        self._names: Final[dict[TopicId, str]] = {}  # of places
        self._counts: Final = Counter[str]()  # by the name of the topic
        self._deleted: Final[set[str]] = set()  # names of places

    def create(self, name: str, topic_id: TopicId) -> None:
        """Note a new topic."""
        self._counts[name] += 1
        number = self._counts[name]
        self._names[topic_id] = name if number == 1 else f"{name}#{number}"

    def delete(self, topic_id: TopicId) -> str:
        """Note that a topic is gone; return the name of its places."""
        name = self._names[topic_id]
        self._deleted.add(name)
        return name

    def place_of(self, at: TopicPartition, topic_id: TopicId) -> TopicPartition:
        """Return the place of a partition of this topic."""
        name = self._names[topic_id]
        return at if name == at.topic else TopicPartition(name, at.partition)

    def log_of(self, place: TopicPartition) -> TopicPartition:
        """Return the partition of a place, by which its log is named."""
        return TopicPartition(place.topic.partition("#")[0], place.partition)

    def places_of(self, at: TopicPartition) -> list[TopicPartition]:
        """Return the places of all topics that have had the name, the newest last."""
        later = range(2, self._counts[at.topic] + 1)
        return [at, *(TopicPartition(f"{at.topic}#{number}", at.partition) for number in later)]

    def is_later(self, place: TopicPartition) -> bool:
        """Whether there was a topic of this name before its own."""
        return "#" in place.topic

    def is_deleted(self, place: TopicPartition) -> bool:
        """Whether its topic is gone."""
        return place.topic in self._deleted
