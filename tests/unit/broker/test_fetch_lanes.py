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
        self.changes = 0

    def set_followed(self, followed: Iterable[Followed]) -> None:
        self.changes += 1
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
        busy.took(now_ms + QUIET_AFTER_MS + 2, [one, three])  # too early to move any
        quiet.took(now_ms + QUIET_AFTER_MS + 2 + SORT_INTERVAL_MS, [two])
        assert (busy.followed, quiet.followed) == ([one, three, two], [])
        later_ms = now_ms + 2 * QUIET_AFTER_MS + 3 * SORT_INTERVAL_MS
        busy.took(later_ms, [])
        assert (busy.followed, quiet.followed) == ([], [one, three, two])
        lanes.set_followed([two])
        assert (busy.followed, quiet.followed) == ([], [two])

    asyncio.run(story())


def test_many_that_wake_one_after_the_other_end_few_parked_fetches() -> None:
    """Each change of lanes ends a long poll: a record now and then must not cost one each time."""

    async def story() -> None:
        made: list[FakeFetcher] = []

        def make(took: Took) -> Any:
            made.append(FakeFetcher(took))
            return made[-1]

        lanes = FetchLanes(("localhost", 0), make)
        busy, quiet = made
        followed = [Followed(cast(Any, None), Epoch(0)) for _ in range(90)]
        lanes.set_followed(followed)
        now_ms = monotonic_ms() + QUIET_AFTER_MS + 1
        busy.took(now_ms, [])
        assert quiet.followed == followed
        quiet.changes = 0
        for after_ms, one in enumerate(followed):
            quiet.took(now_ms + 10 * after_ms, [one])
        assert quiet.changes <= 90 * 10 // SORT_INTERVAL_MS + 1
        assert busy.followed  # those that brought records lately have moved, together

    asyncio.run(story())
