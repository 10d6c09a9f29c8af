"""A follower's fetches in a session, at the leader's data path: what counts, and what it learns."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.broker.fetching.core.fetch_sessions import SWEEP_INTERVAL_MS, FetchSession
from quorumlog.broker.fetching.core.fetch_spec import FetchSpec
from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.data_path import FetchedPartition
from quorumlog.broker.partitions.core.effects import AnswerFetch
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.replicas import Replicas
from quorumlog.clock import monotonic_ms
from quorumlog.wire.codec.identifiers import Offset
from tests.support.broker.one_broker import AT, BATCH, append, fetch_of, one_broker, size
from tests.support.broker.replica_calls import append_to, fetch_from


class FollowerTwo:
    """Broker 2, in a session with the leader."""

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas
        first = fetch_of(0, replica_id=2, leader_epoch=0).partitions
        session = replicas.fetch_sessions.open(
            monotonic_ms(), first, uses_topic_ids=False, is_privileged=True
        )
        assert session is not None
        self.session: FetchSession = session

    def names(self, offset: int) -> None:
        [asked] = fetch_of(offset, replica_id=2, leader_epoch=0).partitions
        assert self.replicas.fetch_sessions.change(self.session, [asked], [])

    def spec(self, max_wait_ms: int) -> FetchSpec:
        candidates = self.session.candidates(monotonic_ms())
        return replace(
            fetch_of(0, replica_id=2, max_wait_ms=max_wait_ms),
            partitions=[one.fetch for one in candidates],
            session=self.session,
        )

    async def fetch(self, max_wait_ms: int = 0) -> list[FetchedPartition]:
        fetched = fetch_from(self.replicas, self.spec(max_wait_ms))
        return await fetched if isinstance(fetched, asyncio.Future) else fetched


async def test_a_follower_acknowledges_by_naming_and_learns_what_is_committed(
    tmp_path: Path,
) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        follower = FollowerTwo(replicas)
        assert [one.high_watermark for one in await follower.fetch()] == [0]
        produced = append_to(replicas, AT, BATCH, acks=-1, timeout_ms=1000)
        assert size(await follower.fetch()) == len(BATCH)
        assert not produced.done()
        assert size(await follower.fetch()) == len(BATCH)  # not named: it has not taken them
        follower.names(1)
        [told] = await follower.fetch()
        assert produced.done()
        assert (told.high_watermark, list(told.records)) == (1, [])
        assert await follower.fetch() == []
        assert await follower.fetch(max_wait_ms=1) == []


async def test_a_follower_that_waits_gets_the_batch_that_is_appended(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        follower = FollowerTwo(replicas)
        await follower.fetch()
        for offset in range(3):
            waiting = asyncio.ensure_future(follower.fetch(max_wait_ms=60_000))
            await asyncio.sleep(0)
            append(replicas)
            [told] = await waiting
            assert (len(told.records), told.high_watermark) == (1, offset)
            follower.names(offset + 1)


async def test_now_and_then_a_follower_counts_without_naming_anything(tmp_path: Path) -> None:
    """Whether it may join the ISR depends on the controller's answers, too."""

    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        follower = FollowerTwo(replicas)
        await follower.fetch()
        seen: list[Offset] = []
        judge = PartitionDriver.judge_follower_fetch

        def noting(
            self: PartitionDriver, now_ms: int, event: events.FollowerFetched
        ) -> AnswerFetch:
            seen.append(event.fetch_offset)
            return judge(self, now_ms, event)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PartitionDriver, "judge_follower_fetch", noting)
            await follower.fetch()
            assert seen == []
            follower.session.swept_ms -= SWEEP_INTERVAL_MS
            await follower.fetch()
            assert seen == [0]


async def test_the_next_fetch_of_a_session_ends_the_one_that_waits_and_one_given_up_leaves_no_trace(
    tmp_path: Path,
) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        follower = FollowerTwo(replicas)
        await follower.fetch()
        first, second = (fetch_from(replicas, follower.spec(60_000)) for _ in range(2))
        assert isinstance(first, asyncio.Future)
        assert isinstance(second, asyncio.Future)
        assert first.result() == []
        append(replicas)
        assert size(await second) == len(BATCH)
        follower.names(1)
        waiting = fetch_from(replicas, follower.spec(60_000))
        assert isinstance(waiting, asyncio.Future)
        waiting.cancel()
        await asyncio.sleep(0)
        assert follower.session.waiting is None
        append(replicas)
        assert size(await follower.fetch()) == len(BATCH)


async def test_a_follower_that_serves_consumers_learns_at_once_what_is_committed(
    tmp_path: Path,
) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        follower = FollowerTwo(replicas)
        await follower.fetch()
        append(replicas)
        assert size(await follower.fetch()) == len(BATCH)
        follower.names(1)  # which commits the record
        spec = replace(follower.spec(60_000), awaits_commits=True)
        [told] = await answered(replicas, spec)
        assert (told.high_watermark, list(told.records)) == (1, [])
        spec = replace(follower.spec(60_000), awaits_commits=True)
        waiting = fetch_from(replicas, spec)
        assert isinstance(waiting, asyncio.Future)  # there is nothing new
        waiting.cancel()


async def answered(replicas: Replicas, spec: FetchSpec) -> list[FetchedPartition]:
    fetched = fetch_from(replicas, spec)
    async with asyncio.timeout(5):
        return await fetched if isinstance(fetched, asyncio.Future) else fetched


async def test_a_follower_that_is_not_in_sync_is_judged_again_and_again(tmp_path: Path) -> None:
    """The controller may have refused it for a reason that is over, without news of the partition.

    One in sync says nothing new by fetching what it has.
    """
    async with one_broker(tmp_path, isr=(1,)) as replicas:
        follower = FollowerTwo(replicas)
        await follower.fetch()
        await follower.fetch()
        assert [partition.fetch.topic_partition for partition in follower.session.judged()] == []
        assert len(follower.session.restless) == 1
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        follower = FollowerTwo(replicas)
        await follower.fetch()
        assert len(follower.session.restless) == 0
