"""Replication throttles of leaders and followers: the copy rate of replicas outside the ISR.

A topic lists throttled replicas as `partition:broker`; all listed replicas of a broker share one
rate, in bytes a second. The leader list has the replicas that others fetch from, the follower list
the replicas that fetch. A follower in the ISR is never throttled and its bytes are not counted:
producers wait for it. Source: KIP-73.

# DEVIATION: Kafka sums up windows of time, and also counts the bytes of replicas in the ISR.
# docs/decisions/0016-reassignments.md
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from quorumlog.broker.settings import BrokerSettings
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.settings.kinds import LONG_MAX
from quorumlog.settings.servers import (
    ALTER_LOG_DIRS_RATE,
    FOLLOWER_THROTTLED_RATE,
    LEADER_THROTTLED_RATE,
)
from quorumlog.settings.topics import TopicConfig
from quorumlog.wire.codec.identifiers import BrokerId, TopicPartition

ALL: Final = "*"
CREDIT_MS: Final = 1_000  # the unused rate of this long may still be used


class Side(NamedTuple):
    """The names of a throttle's settings. Without `replicas_name` every replica is throttled."""

    rate_name: str
    replicas_name: str | None


OF_LEADERS: Final = Side(
    LEADER_THROTTLED_RATE.name, TopicConfig.leader_replication_throttled_replicas.name
)
"""The records that this broker's leaders send."""
OF_FOLLOWERS: Final = Side(
    FOLLOWER_THROTTLED_RATE.name, TopicConfig.follower_replication_throttled_replicas.name
)
"""The records that this broker's followers fetch."""
OF_MOVES: Final = Side(ALTER_LOG_DIRS_RATE.name, None)
"""The copies between this broker's log directories (KIP-113)."""


class ReplicationThrottle:
    """A throttle of one broker: each response delays the next fetch by its size over the rate.

    The unpaid rest is kept in bytes: after a change of the rate, the new rate applies to it.

    `image` returns the newest metadata.
    """

    def __init__(
        self,
        side: Side,
        broker_id: BrokerId,
        settings: BrokerSettings,
        image: Callable[[], ClusterImage],
    ) -> None:
        """Begin without a debt, at the rate of the settings until the image alters it."""
        self._rate_name, self._replicas_name = side
        self._broker_id: Final = broker_id
        self._static_rate: Final[int] = getattr(settings, side.rate_name.replace(".", "_"))
        self._image: Final = image
        self._debt = 0.0  # bytes that were fetched and are not yet paid for; below 0: credit
        # The time up to which elapsed time has reduced the debt; None: since the next fetch.
        self._paid_ms: int | None = 0
        self._seen_image: ClusterImage | None = None
        self._seen_rate = LONG_MAX  # by that image: every follower's read needs it

    @property
    def is_on(self) -> bool:
        """Whether a rate is set; without one, no replica is checked and no bytes are counted."""
        if self._image() is not self._seen_image:
            self._rate()
        return self._seen_rate != LONG_MAX

    def chunk_bytes(self, most: int) -> int:
        """Return the bytes to copy at a time: at most one second of the rate, and `most`."""
        return max(1, min(most, self._rate()))

    def next_fetch_ms(
        self, at: TopicPartition, follower_id: BrokerId, size: int, now_ms: int
    ) -> int:
        """Count `size` bytes for a follower; return when it may fetch again, in ms."""
        if not self.is_on or not self._is_throttled(at, follower_id):
            return now_ms
        bytes_per_ms = max(1, self._seen_rate) / 1000
        paid = 0.0 if self._paid_ms is None else (now_ms - self._paid_ms) * bytes_per_ms
        self._debt = max(self._debt - paid, -CREDIT_MS * bytes_per_ms) + size
        self._paid_ms = now_ms
        return now_ms + max(0, int(self._debt / bytes_per_ms))

    def _rate(self) -> int:
        """Return the current rate in bytes a second; LONG_MAX: no throttle."""
        image = self._image()
        if image is not self._seen_image:
            self._seen_rate, self._seen_image = self._rate_by(image), image
            if self._seen_rate == LONG_MAX:
                self._debt, self._paid_ms = 0.0, None  # without a rate, nothing is owed
        return self._seen_rate

    def _rate_by(self, image: ClusterImage) -> int:
        altered = image.broker_config(self._broker_id).get(self._rate_name)
        altered = altered or image.broker_config(None).get(self._rate_name)
        return self._static_rate if altered is None else int(altered)

    def _is_throttled(self, at: TopicPartition, follower_id: BrokerId) -> bool:
        if self._replicas_name is None:
            return True
        image = self._image()
        topic, partition = image.topics.get(at.topic), image.partition(at)
        if topic is None or partition is None or follower_id in partition.isr:
            return False
        named = topic.configs.get(self._replicas_name, "").split(",")
        return ALL in named or f"{at.partition}:{self._broker_id}" in named
