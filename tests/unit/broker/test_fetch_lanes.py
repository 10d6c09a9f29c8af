import asyncio
from collections.abc import Iterable
from typing import Any, cast

from quorumlog.broker.io.deadline_timer import monotonic_ms
from quorumlog.broker.io.fetch_answers import Followed
from quorumlog.broker.io.fetch_lanes import QUIET_AFTER_MS, SORT_INTERVAL_MS, FetchLanes, Took
from quorumlog.wire.codec.identifiers import Epoch


class FakeFetcher:
    def __init__(self, took: Took) -> None:
        self.took = took
        self.followed: list[Followed] = []

    def set_followed(self, followed: Iterable[Followed]) -> None:
        self.followed = list(followed)


def test_a_partition_is_in_the_quiet_lane_while_nothing_comes() -> None:
    async def story() -> None:
        made: list[FakeFetcher] = []

        def make(took: Took) -> Any:
            made.append(FakeFetcher(took))
            return made[-1]

        lanes = FetchLanes(("localhost", 0), make)
        busy, quiet = made
        one, two, three = (Followed(cast(Any, None), Epoch(0)) for _ in range(3))
        lanes.set_followed([one, two])
        assert (busy.followed, quiet.followed) == ([one, two], [])
        now_ms = monotonic_ms()
        busy.took(now_ms + QUIET_AFTER_MS + 1, [one])
        assert (busy.followed, quiet.followed) == ([one], [two])
        lanes.set_followed([one, two, three])
        assert (busy.followed, quiet.followed) == ([one, three], [two])
        quiet.took(now_ms + QUIET_AFTER_MS + 2, [two])
        assert (busy.followed, quiet.followed) == ([one, three, two], [])
        later_ms = now_ms + 2 * QUIET_AFTER_MS + 2 * SORT_INTERVAL_MS
        busy.took(later_ms, [])
        assert (busy.followed, quiet.followed) == ([], [one, three, two])
        lanes.set_followed([two])
        assert (busy.followed, quiet.followed) == ([], [two])

    asyncio.run(story())
