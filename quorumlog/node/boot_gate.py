"""Holds back images until one has this process's registration.

docs/decisions/0013-resuming-brokers.md
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, ImagePublisher
from quorumlog.metadata_quorum.image.difference import difference
from quorumlog.wire.codec.identifiers import BrokerId


class BootGate:
    """An ImagePublisher in front of others.

    Invariant: their first image has this process's registration. They receive it with a delta from
    the empty image, and then every later image.
    """

    def __init__(self, broker_id: BrokerId, publishers: Sequence[ImagePublisher]) -> None:
        self.opened: Final = asyncio.Event()
        self._broker_id: Final = broker_id
        self._publishers: Final = tuple(publishers)
        self._broker_epoch = -1
        self._image = ClusterImage()

    def registered(self, broker_epoch: int) -> None:
        """Set the epoch of this process's registration; the last image may have it already."""
        self._broker_epoch = broker_epoch
        self._maybe_open()

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        """Pass the image on, or keep it until the gate opens."""
        self._image = image
        if self.opened.is_set():
            self._pass_on(delta)
        else:
            self._maybe_open()

    def _maybe_open(self) -> None:
        broker = self._image.brokers.get(self._broker_id)
        if self.opened.is_set() or broker is None or broker.broker_epoch != self._broker_epoch:
            return
        self.opened.set()
        self._pass_on(difference(ClusterImage(), self._image))

    def _pass_on(self, delta: ClusterDelta) -> None:
        for publisher in self._publishers:
            publisher.publish(delta, self._image)
