"""Keeps the newest published image; requests wait for their change in it and for its leaders."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage
from quorumlog.wire.codec.identifiers import Epoch, TopicPartition

# The change of a request is committed already: waiting until this broker's image has it is a
# courtesy. Requests without a timeout wait at most so long: a later change may hide theirs.
SEEN_HERE_MS: Final = 1000


class ImageWatch:
    """An ImagePublisher that keeps the newest image, and a LeadershipListener.

    Add it after the publishers that act on the image. Replicas of new partitions lead later, once
    their logs are open: `is_to_lead` is true for a partition that this broker leads in the image,
    and will lead, but does not lead yet (`Replicas.is_to_lead`).
    """

    def __init__(self, is_to_lead: Callable[[TopicPartition], bool] = lambda _at: False) -> None:
        self.image = ClusterImage()
        self.is_to_lead: Final = is_to_lead
        self._waiting: Final[dict[asyncio.Event, None]] = {}  # in the order of their arrival

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:  # noqa: ARG002 - ImagePublisher's signature
        """Take over the new image and wake every waiting request."""
        self.image = image
        self._wake()

    def became_leader(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:  # noqa: ARG002 - LeadershipListener's signature
        """Wake every waiting request: a replica here has begun to lead."""
        self._wake()

    def resigned(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
        """Do nothing: an image with the change wakes the requests."""

    def _wake(self) -> None:
        for changed in self._waiting:
            changed.set()

    async def wait_until(
        self,
        holds: Callable[[ClusterImage], bool],
        *,
        timeout_ms: int,
        leaders_of: Callable[[ClusterImage], Iterable[TopicPartition]] = lambda _image: (),
    ) -> bool:
        """Return True once `holds(image)`, or False after `timeout_ms`.

        After `holds(image)`, wait until this broker serves the partitions of `leaders_of(image)`
        that it leads in the image, for at most SEEN_HERE_MS of the time that is left.
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
        """Wait until this broker leads each partition of `left`, or no longer has to."""
        while left:
            if not self.is_to_lead(left[-1]):
                left.pop()
                continue
            changed.clear()
            await changed.wait()
