"""Keeps the newest published image; requests wait for their change in it and for its leaders."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage
from quorumlog.wire.codec.identifiers import Epoch, TopicPartition

# What a request has changed is committed: an answer that waits until this broker shows it, too, is
# a courtesy. Where the request says no time, it is at most this, as another change may hide ours.
SEEN_HERE_MS: Final = 1000


def _leads_nothing(_at: TopicPartition) -> bool:
    return False


def _no_partitions(_image: ClusterImage) -> Iterable[TopicPartition]:
    return ()


class ImageWatch:
    """An ImagePublisher that keeps the newest image, and a LeadershipListener.

    Add it after the publishers that act on the image. Replicas of new partitions lead later, once
    their logs are open: `is_to_lead` is true for a partition whose leader this broker is in the
    image and will be, but is not yet (`Replicas.is_to_lead`).
    """

    def __init__(self, is_to_lead: Callable[[TopicPartition], bool] = _leads_nothing) -> None:
        self.image = ClusterImage()
        self.is_to_lead: Final = is_to_lead
        self._waiting: Final[dict[asyncio.Event, None]] = {}  # in the order of their arrival

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:  # noqa: ARG002 - ImagePublisher's signature
        """Take over the new image and wake every waiting request."""
        self.image = image
        self._wake()

    def became_leader(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:  # noqa: ARG002 - LeadershipListener's signature
        """Wake every waiting request: a new replica leads."""
        self._wake()

    def resigned(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
        """Do nothing: an image says so, too."""

    def _wake(self) -> None:
        for changed in self._waiting:
            changed.set()

    async def wait_until(
        self,
        holds: Callable[[ClusterImage], bool],
        *,
        timeout_ms: int,
        leaders_of: Callable[[ClusterImage], Iterable[TopicPartition]] = _no_partitions,
    ) -> bool:
        """Return True once `holds(image)`, or False after `timeout_ms`.

        Then, for SEEN_HERE_MS of that time at most, wait until this broker serves those of
        `leaders_of(image)` that the image says it leads.
        """
        changed = asyncio.Event()
        self._waiting[changed] = None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not holds(self.image):
                    changed.clear()
                    await changed.wait()
                async with asyncio.timeout(SEEN_HERE_MS / 1000):
                    await self._lead(changed, [*leaders_of(self.image)])
        except TimeoutError:
            return holds(self.image)
        finally:
            del self._waiting[changed]
        return True

    async def _lead(self, changed: asyncio.Event, left: list[TopicPartition]) -> None:
        """Wait until no partition of `left` is to be led; each is dropped when it is not."""
        while left:
            if not self.is_to_lead(left[-1]):
                left.pop()
                continue
            changed.clear()
            await changed.wait()
