"""How fast a broker fetches what moves to it: the throttle of a follower.

`follower.replication.throttled.replicas` of a topic names replicas, and all of those on a broker
together get `follower.replication.throttled.rate` bytes a second. A replica in the ISR is never
held up: producers wait for it. Source: KIP-73.

# DEVIATION: Kafka can throttle leaders as well.
# docs/decisions/0100-a-throttle-is-the-followers.md
"""

from collections.abc import Callable
from typing import Final

from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.settings.kinds import LONG_MAX
from quorumlog.settings.servers import THROTTLED_RATE
from quorumlog.settings.topics import TopicConfig
from quorumlog.wire.codec.identifiers import BrokerId, TopicPartition

ALL: Final = "*"
_REPLICAS: Final = TopicConfig.follower_replication_throttled_replicas.name
CREDIT_MS: Final = 1_000  # what was not fetched for so long may still be


class FollowerThrottle:
    """Of one broker. Each answer is paid with time, so the rate holds however large answers are.

    What is not paid is kept in bytes: if the rate changes, it is paid at the new one.

    `static_rate`: what the broker was started with. `image` returns the newest metadata.
    """

    def __init__(
        self, broker_id: BrokerId, static_rate: int, image: Callable[[], ClusterImage]
    ) -> None:
        self._broker_id: Final = broker_id
        self._static_rate: Final = static_rate
        self._image: Final = image
        self._debt = 0.0  # bytes that were fetched and are not paid for; less than 0: credit
        self._paid_ms = 0  # up to when the time has paid

    def next_fetch_ms(self, at: TopicPartition, size: int, now_ms: int) -> int:
        """Note `size` bytes of a partition; return when the next ones may be asked for."""
        image = self._image()
        rate = self._rate(image)
        if rate == LONG_MAX:
            self._debt, self._paid_ms = 0.0, now_ms
            return now_ms
        if not self._is_throttled(image, at):
            return now_ms
        bytes_per_ms = max(1, rate) / 1000
        paid = (now_ms - self._paid_ms) * bytes_per_ms
        self._debt = max(self._debt - paid, -CREDIT_MS * bytes_per_ms) + size
        self._paid_ms = now_ms
        return now_ms + max(0, int(self._debt / bytes_per_ms))

    def _rate(self, image: ClusterImage) -> int:
        name = THROTTLED_RATE.name
        altered = image.broker_config(self._broker_id).get(name)
        altered = altered or image.broker_config(None).get(name)
        return self._static_rate if altered is None else int(altered)

    def _is_throttled(self, image: ClusterImage, at: TopicPartition) -> bool:
        topic, partition = image.topics.get(at.topic), image.partition(at)
        if topic is None or partition is None or self._broker_id in partition.isr:
            return False
        named = topic.configs.get(_REPLICAS, "").split(",")
        return ALL in named or f"{at.partition}:{self._broker_id}" in named
