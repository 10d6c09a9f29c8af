"""A consumer that begins by duration, against a broker of ours (KIP-1106)."""

import asyncio
from pathlib import Path

import pytest

from quorumlog import clock
from quorumlog.client import Producer, TopicPartition
from quorumlog.client.sync import SyncConsumer
from tests.support.groups.single_broker import single_broker

pytestmark = pytest.mark.integration

HOUR_MS = 3_600_000
T = TopicPartition("t", 0)


def values_since(bootstrap: str, duration: str, group_id: str | None) -> list[bytes | None]:
    """Return the values from there to the log's end."""
    with SyncConsumer(
        bootstrap, group_id=group_id, auto_offset_reset=f"by_duration:{duration}"
    ) as consumer:
        consumer.assign([T])
        [end] = consumer.end_offsets([T]).values()
        found: list[bytes | None] = []
        while consumer.position(T) < end:
            for records in consumer.poll(100).values():
                found += [record.value for record in records]
        return found


@pytest.mark.parametrize("group_id", [None, "g"])
async def test_a_consumer_begins_by_duration(tmp_path: Path, group_id: str | None) -> None:
    """Without a record that is young enough, it begins at the end."""
    async with single_broker(tmp_path) as broker, Producer(broker.bootstrap) as producer:
        now_ms = clock.wall_clock_ms()
        for hours in (5, 3, 1):
            then_ms = now_ms - hours * HOUR_MS
            await producer.send("t", b"%d" % hours, timestamp_ms=then_ms)
        await producer.flush()
        for duration, expected in {
            "PT1M": [],
            "PT2H": [b"1"],
            "PT4H": [b"3", b"1"],
            "P30D": [b"5", b"3", b"1"],
            f"P{9**9}D": [b"5", b"3", b"1"],
        }.items():
            name = group_id and f"{group_id}-{duration}"
            assert (
                await asyncio.to_thread(values_since, broker.bootstrap, duration, name) == expected
            )
