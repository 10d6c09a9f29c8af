"""Counters of the records that go in and out, by topic: Kafka's BrokerTopicMetrics.

They are plain numbers, which the data path adds to: one object for each topic of this broker.
"""

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Final


@dataclass(slots=True)
class TopicTraffic:
    """Totals of one topic since the start, over the partitions of this broker.

    A request counts once for each of its partitions, as in Kafka. Bytes are of record batches.
    """

    messages_in: int = 0  # offsets of batches appended as the leader
    bytes_in: int = 0
    bytes_out: int = 0  # read for consumers
    replication_bytes_in: int = 0
    replication_bytes_out: int = 0
    produce_requests: int = 0  # appended batches, and failed
    fetch_requests: int = 0  # of consumers and followers
    failed_produce_requests: int = 0  # refused for their records, or by the disk
    failed_fetch_requests: int = 0  # by the disk

    def note_failed_produce(self) -> None:
        """Count a batch that is not appended."""
        self.produce_requests += 1
        self.failed_produce_requests += 1

    def note_read(self, size: int, *, is_from_follower: bool) -> None:
        """Count bytes read for a fetch."""
        if is_from_follower:
            self.replication_bytes_out += size
        else:
            self.bytes_out += size


class BrokerTraffic:
    """The counters of all topics. Invariant: `total` never shrinks."""

    def __init__(self) -> None:
        self._by_topic: Final[dict[str, TopicTraffic]] = {}
        self._deleted = TopicTraffic()  # the sum over topics that are deleted

    def of(self, topic: str) -> TopicTraffic:
        """Return the counters of a topic, which its replicas share."""
        return self._by_topic.setdefault(topic, TopicTraffic())

    def forget(self, topics: Iterable[str]) -> None:
        """Keep of deleted topics their part of the total alone."""
        gone = [traffic for name in topics if (traffic := self._by_topic.pop(name, None))]
        self._deleted = _sum([self._deleted, *gone])

    @property
    def topics(self) -> Mapping[str, TopicTraffic]:
        """The counters by topic."""
        return self._by_topic

    def total(self) -> TopicTraffic:
        """Return the sum over all topics since the start."""
        return _sum([self._deleted, *self._by_topic.values()])


def _sum(parts: list[TopicTraffic]) -> TopicTraffic:
    return TopicTraffic(*map(sum, zip(*map(astuple, parts), strict=True)))
