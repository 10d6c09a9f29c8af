"""The produce requests that a producer sends now, at most one for each broker."""

from typing import Final

from quorumlog.client.core.batch import Batch


class Requests:
    """The batches of each request (`by_broker`), and when to drain again (`wake_at_ms`).

    `wake_at_ms` is the next time at which a batch becomes ready or expires; `inf` if only an event
    can do that. A request has at most `size_max` bytes, or one larger batch.
    """

    def __init__(self, size_max: int, wake_at_ms: float) -> None:
        self.by_broker: Final[dict[int, list[Batch]]] = {}
        self.wake_at_ms = wake_at_ms
        self._size_max: Final = size_max
        self._sizes: Final[dict[int, int]] = {}

    def take(self, broker_id: int, batch: Batch) -> bool:
        """Add a batch to the broker's request; return False if the request is full."""
        size = self._sizes.get(broker_id, 0) + batch.size_in_bytes
        if size > self._size_max and broker_id in self.by_broker:
            return False
        self.by_broker.setdefault(broker_id, []).append(batch)
        self._sizes[broker_id] = size
        return True

    def look_again(self, at_ms: float) -> None:
        """Drain again at `at_ms` or earlier."""
        self.wake_at_ms = min(self.wake_at_ms, at_ms)
