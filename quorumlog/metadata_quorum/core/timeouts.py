"""The timeouts of a node: they stop while its own disk writes, and allow for slow disks.

Raft elects a leader only if an election timeout is far longer than an exchange of messages (Raft
5.6). An exchange of votes includes the write of each vote, so the timeouts follow the disks.
"""

from collections.abc import Callable, Iterable
from typing import Final

from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.wire.codec.identifiers import BrokerId

WRITE_MS_MAX: Final = 1000  # a slower disk counts as this slow
ELECTION_WRITES: Final = 5  # an election timeout lasts at least 5 to 10 writes
FETCH_WRITES: Final = 10  # a fetch timeout lasts at least 10
_SAMPLES: Final = 3


class Timeouts:
    """The timeouts, and the durations of durable writes: on this node, and as peers report them.

    `waited_ms`: the total of the driver's waits for writes. The core's time is the driver's minus
    it: a deadline that is set before a write runs from the write's end on.
    `write_ms`: the median of the last three writes. One write that stalls for seconds changes no
    timeout; a slow disk counts from its second write on, and a healthy disk again as soon.
    """

    def __init__(self, settings: QuorumSettings, random_fraction: Callable[[], float]) -> None:
        self.waited_ms = 0
        self.write_ms = 0
        self._settings: Final = settings
        self._random_fraction: Final = random_fraction
        self._samples = [0] * _SAMPLES
        self._of_peers: Final[dict[BrokerId, int]] = {}

    def note_wait(self, took_ms: int) -> None:
        """Record a write that the driver waited for: time stood still."""
        self.waited_ms += took_ms

    def note_write(self, took_ms: int) -> None:
        """Record a durable write that the driver waited for, or a flush in the background."""
        self._samples = [*self._samples[1:], _bounded(took_ms)]
        self.write_ms = sorted(self._samples)[_SAMPLES // 2]

    def note_peer(self, node_id: BrokerId, write_ms: int) -> None:
        """Record the duration of a write that another voter reports."""
        self._of_peers[node_id] = _bounded(write_ms)

    def election_ms(self, votes_of: Iterable[BrokerId]) -> int:
        """Return the wait for a leader, or for votes of these peers, in ms: random in [T, 2T)."""
        configured_ms = self._settings.controller_quorum_election_timeout_ms
        least_ms = max(configured_ms, ELECTION_WRITES * self._slowest_ms(votes_of))
        return least_ms + int(least_ms * self._random_fraction())

    def fetch_ms(self, fetches_of: Iterable[BrokerId] = ()) -> int:
        """Return the wait for our own fetch to succeed, or for fetches of these peers, in ms."""
        configured_ms = self._settings.controller_quorum_fetch_timeout_ms
        return max(configured_ms, FETCH_WRITES * self._slowest_ms(fetches_of))

    def _slowest_ms(self, peers: Iterable[BrokerId]) -> int:
        return max([self.write_ms, *(self._of_peers.get(peer, 0) for peer in peers)])


def _bounded(took_ms: int) -> int:
    return min(max(took_ms, 0), WRITE_MS_MAX)
