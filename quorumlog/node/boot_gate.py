"""Keeps the past away from the broker: decision 0002."""

import asyncio
from collections.abc import Sequence
from typing import Final

from quorumlog.metadata_quorum.driver.committed_image import everything_in
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, ImagePublisher
from quorumlog.wire.codec.identifiers import BrokerId


class BootGate:
    """An ImagePublisher in front of others.

    Invariant: they see no image before one that shows this process's registration; that one they
    see whole, and every one after it.
    """

    def __init__(self, broker_id: BrokerId, publishers: Sequence[ImagePublisher]) -> None:
        self.opened: Final = asyncio.Event()
        self._broker_id: Final = broker_id
        self._publishers: Final = tuple(publishers)
        self._broker_epoch = -1
        self._image = ClusterImage()

    def registered(self, broker_epoch: int) -> None:
        """Learn which registration is this process's; the image may have been faster."""
        self._broker_epoch = broker_epoch
        self._maybe_open()

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        """Hand the image on, or keep it."""
        self._image = image
        if self.opened.is_set():
            self._hand_on(delta)
        else:
            self._maybe_open()

    def _maybe_open(self) -> None:
        broker = self._image.brokers.get(self._broker_id)
        if self.opened.is_set() or broker is None or broker.broker_epoch != self._broker_epoch:
            return
        self.opened.set()
        self._hand_on(everything_in(self._image))

    def _hand_on(self, delta: ClusterDelta) -> None:
        for publisher in self._publishers:
            publisher.publish(delta, self._image)
