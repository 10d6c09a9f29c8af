"""Keeps the newest published image, and lets requests wait until it shows their change."""

import asyncio
from collections.abc import Callable
from typing import Final

from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage

# What a request has changed is committed: an answer that waits until this broker shows it, too, is
# a courtesy. Where the request says no time, it is at most this, as another change may hide ours.
SEEN_HERE_MS: Final = 1000


class ImageWatch:
    """An ImagePublisher that keeps the newest image.

    Add it after the publishers that act on the image: this broker has then done what a client reads
    in its metadata.
    """

    def __init__(self, image: ClusterImage | None = None) -> None:
        self.image = image or ClusterImage()
        self._waiting: Final[dict[asyncio.Event, None]] = {}  # in the order of their arrival

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:  # noqa: ARG002 - ImagePublisher's signature
        """Take over the new image and wake every waiting request."""
        self.image = image
        for published in self._waiting:
            published.set()

    async def wait_until(self, holds: Callable[[ClusterImage], bool], *, timeout_ms: int) -> bool:
        """Return True once `holds(image)`, or False after `timeout_ms`."""
        published = asyncio.Event()
        self._waiting[published] = None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not holds(self.image):
                    published.clear()
                    await published.wait()
        except TimeoutError:
            return holds(self.image)
        finally:
            del self._waiting[published]
        return True
