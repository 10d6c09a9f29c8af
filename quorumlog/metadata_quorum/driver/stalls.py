"""The waits of a driver: measured for the core, and logged if they are long."""

import logging
from typing import Final

from quorumlog.metadata_quorum.driver.seams import Clock
from quorumlog.wire.codec.identifiers import BrokerId

STALL_MS: Final = 1000  # a wait of this length is logged
QUIET_MS: Final = 10_000  # between two lines
_logger: Final = logging.getLogger(__name__)


class Stalls:
    """The waits of one driver. It logs long ones, with one line in QUIET_MS at most."""

    def __init__(self, clock: Clock, node_id: BrokerId) -> None:
        self._clock: Final = clock
        self._node_id: Final = node_id
        self._quiet_until_ms = 0
        self._left_out = 0

    def ended(self, began_ms: int, reason: str) -> int:
        """Handle the end of a wait; return how long it took, in ms."""
        now_ms = self._clock.now_ms()
        took_ms = max(now_ms - began_ms, 0)
        if took_ms < STALL_MS:
            return took_ms
        if now_ms < self._quiet_until_ms:
            self._left_out += 1
            return took_ms
        others = f", and {self._left_out} more times since the last line" * (self._left_out > 0)
        _logger.warning(
            "node %d waited %.1f s for %s%s", self._node_id, took_ms / 1000, reason, others
        )
        self._quiet_until_ms, self._left_out = now_ms + QUIET_MS, 0
        return took_ms
