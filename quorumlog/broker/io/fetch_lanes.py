"""The fetches to one leader, in two lanes: where records come, and where none do.

A fetch names every partition that it asks for. Without lanes each produce to a busy partition
would cost a look at all the quiet ones, on both sides.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from quorumlog.broker.io.deadline_timer import monotonic_ms
from quorumlog.broker.io.fetch_answers import Followed
from quorumlog.broker.io.replica_fetcher import ReplicaFetcher

# DEVIATION: Kafka's followers use fetch sessions instead.
# docs/decisions/0012-fetch-sessions-are-not-kept.md
QUIET_AFTER_MS: Final = 2000
SORT_INTERVAL_MS: Final = 500

Took = Callable[[int, Sequence[Followed]], None]


class FetchLanes:
    """Each partition is in one lane. It begins in the busy one.

    Partitions change lanes at most once per SORT_INTERVAL_MS, several at a time: each change ends
    a fetch that is parked at the leader. A partition whose records come meanwhile is fetched on in
    the lane where it is. `make(took)` makes a fetcher for the leader.
    """

    def __init__(self, address: tuple[str, int], make: Callable[[Took], ReplicaFetcher]) -> None:
        self.address: Final = address
        self._busy: Final = make(self._busy_took)
        self._quiet: Final = make(self._quiet_took)
        self._in_busy: dict[Followed, None] = {}
        self._in_quiet: dict[Followed, None] = {}
        self._next_sort_ms = 0

    def set_followed(self, followed: Iterable[Followed]) -> None:
        """Replace what is followed."""
        now_ms = monotonic_ms()
        all_of_them = dict.fromkeys(followed)
        were_quiet = len(self._in_quiet)
        self._in_quiet = {one: None for one in self._in_quiet if one in all_of_them}
        for one in all_of_them:
            if one not in self._in_quiet and one not in self._in_busy:
                one.active_ms = now_ms
        self._in_busy = {one: None for one in all_of_them if one not in self._in_quiet}
        self._busy.set_followed(self._in_busy)
        if len(self._in_quiet) != were_quiet:
            self._quiet.set_followed(self._in_quiet)

    def wake(self) -> None:
        """Fetch at once."""
        self._busy.wake()
        self._quiet.wake()

    async def stop(self) -> None:
        """End every fetch."""
        await self._busy.stop()
        await self._quiet.stop()

    def _busy_took(self, now_ms: int, active: Sequence[Followed]) -> None:
        for one in active:
            one.active_ms = now_ms
        self._maybe_sort(now_ms)

    def _quiet_took(self, now_ms: int, active: Sequence[Followed]) -> None:
        for one in active:
            one.active_ms = now_ms
        self._maybe_sort(now_ms)

    def _maybe_sort(self, now_ms: int) -> None:
        """Move what is quiet by now, and what is quiet no longer, if the last time is long ago."""
        if now_ms < self._next_sort_ms:
            return
        self._next_sort_ms = now_ms + SORT_INTERVAL_MS
        quiet = [one for one in self._in_busy if now_ms - one.active_ms > QUIET_AFTER_MS]
        awake = [one for one in self._in_quiet if now_ms - one.active_ms < SORT_INTERVAL_MS]
        for these, source, to in (
            (quiet, self._in_busy, self._in_quiet),
            (awake, self._in_quiet, self._in_busy),
        ):
            for one in these:
                del source[one]
                to[one] = None
        if quiet or awake:
            self._busy.set_followed(self._in_busy)
            self._quiet.set_followed(self._in_quiet)
