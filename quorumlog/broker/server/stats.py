"""The counters of the Kafka listener: plain numbers, which every request adds to."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

UNTIMED_MAX: Final = 16  # timing each would cost 2 % of a small produce request


class ApiStats:
    """The ended requests of one API: `unanswered`, and the others by their time to the response.

    counts[i]: the requests that took less than 2**i microseconds, and no less than 2**(i-1).
    `untimed`: the requests of runs that were answered at once since the last of them was timed.
    Invariant: they are fewer than UNTIMED_MAX between requests.
    """

    __slots__ = ("counts", "total_s", "unanswered", "untimed")

    def __init__(self) -> None:
        self.counts: Final = [0] * 64
        self.total_s = 0.0
        self.unanswered = 0  # acks=0, or the connection was closed
        self.untimed = 0

    def answered(self, seconds: float, count: int) -> None:
        """Count requests that took this long."""
        self.total_s += seconds * count
        self.counts[int(seconds * 1_000_000).bit_length()] += count

    def answered_alike(self, seconds: float) -> None:
        """Count all untimed requests: the last of them took this long."""
        self.answered(seconds, self.untimed)
        self.untimed = 0

    @property
    def requests(self) -> int:
        """The number of ended requests."""
        return sum(self.counts) + self.unanswered + self.untimed


@dataclass(slots=True, kw_only=True)
class ServerStats:
    """Totals since the start; `apis` by API key, sizes in bytes."""

    apis: defaultdict[int, ApiStats] = field(default_factory=lambda: defaultdict(ApiStats))
    bytes_in: int = 0
    bytes_out: int = 0
    connections: int = 0  # accepted, ever
    connections_refused: int = 0
    handshakes_failed: int = 0  # of TLS: also without a principal
    connections_idle: int = 0  # closed because the client sent or read no bytes for too long
    connections_silent: int = 0  # closed because others needed the memory of unread responses
    authentications: int = 0  # complete, by SASL
    authentications_failed: int = 0
    reauthentications: int = 0  # of clients whose session was to end; KIP-368
    reauthentications_failed: int = 0
    sessions_ended: int = 0  # a request came after the end, and the connection was closed

    @property
    def requests(self) -> dict[int, int]:
        """The number of ended requests by API key."""
        return {api_key: api.requests for api_key, api in self.apis.items()}
