"""Loads against fake brokers: their outcomes are compared with the records of the logs."""

import asyncio
from typing import Any

import pytest

from quorumlog.bench.consume import read_copies
from quorumlog.bench.load import ACKNOWLEDGED, FAILED, WARM_UP, ProduceLoad, compare
from quorumlog.bench.produce import ProduceRun
from quorumlog.client import ErrorCode, Producer
from tests.support.client.fake_cluster import PRODUCE, FakeCluster, fake_cluster

COUNT = 40


def run_of(cluster: FakeCluster, progress: Any = lambda _: None, **given: Any) -> ProduceRun:
    load = ProduceLoad(topic="t", messages=COUNT, size=8, **given)
    return ProduceRun({"bootstrap_servers": cluster.bootstrap}, load, progress)


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_records_of_the_warm_up_are_not_of_the_load(acks: Any) -> None:
    async with asyncio.timeout(20), fake_cluster() as cluster:
        run = run_of(cluster, acks=acks, counts_stored=True, warm_up_s=0.02)
        result = await run.run()
        assert (result.sent, result.acknowledged, result.stored) == (COUNT, COUNT, COUNT)
        numbers = [int.from_bytes(value or b"", "big") for value in cluster.values()]
        assert sum(number >= WARM_UP for number in numbers) == len(numbers) - COUNT > 0


async def test_failed_records_are_counted_by_code_and_kept_apart() -> None:
    async with asyncio.timeout(20), fake_cluster() as cluster:
        run = run_of(cluster, retries=0, keeps_outcomes=True, mode="one-by-one")
        requests = 0

        def refuse_some(_: int, api: int) -> ErrorCode | None:
            nonlocal requests
            requests += api == PRODUCE
            is_third = api == PRODUCE and requests % 3 == 0
            return ErrorCode.NOT_ENOUGH_REPLICAS if is_third else None

        cluster.fault = refuse_some
        result = await run.run()
        failed = result.failed["NOT_ENOUGH_REPLICAS"]
        assert (failed + result.acknowledged, failed > 0) == (COUNT, True)
        assert result.attempts == {"NOT_ENOUGH_REPLICAS": failed}
        assert sum(moment.acknowledged for moment in result.moments) == result.acknowledged
        assert run.outcomes.count(FAILED) == failed
        assert run.outcomes.count(ACKNOWLEDGED) == result.acknowledged
        cluster.fault = lambda *_: None
        copies = await read_copies({"bootstrap_servers": cluster.bootstrap}, "t", COUNT)
        kept = compare(run.outcomes, copies)
        assert (kept.lost, kept.duplicates, kept.failed_stored) == (0, 0, 0)
        assert kept.stored == result.acknowledged


async def test_a_held_record_waits_for_its_release() -> None:
    async with asyncio.timeout(20), fake_cluster() as cluster:
        seen: list[int] = []

        def release(acknowledged: int) -> bool:
            seen.append(acknowledged)
            return acknowledged == COUNT // 2

        result = await run_of(cluster, release, hold_at=COUNT // 2, keeps_outcomes=True).run()
        assert result.acknowledged == COUNT
        assert COUNT // 2 in seen  # all that was sent before


async def test_copies_are_counted_and_foreign_records_refused() -> None:
    async with asyncio.timeout(20), fake_cluster() as cluster:
        client = {"bootstrap_servers": cluster.bootstrap}
        async with Producer(cluster.bootstrap) as producer:
            for number in (0, 2, 2, WARM_UP + 1):
                await producer.send_and_wait("t", number.to_bytes(8, "big"))
            assert list(await read_copies(client, "t", 3)) == [1, 0, 2]
            await producer.send_and_wait("t", b"\0\0\0\0\0\0\0\3")
        with pytest.raises(ValueError, match="no load has sent"):
            await read_copies(client, "t", 3)
