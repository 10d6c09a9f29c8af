"""Reads topics: as a load, and to compare the logs with the outcomes of a producer."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from quorumlog.bench.load import NUMBER_BYTES, WARM_UP, ConsumeLoad, ConsumeResult
from quorumlog.bench.produce import Client, Progress
from quorumlog.client import Consumer, ConsumerRecord, TopicPartition

_POLL_MS: Final = 500
_POLL_RECORDS: Final = 5_000
_COPIES_MAX: Final = 255


async def run_consume(client: Client, load: ConsumeLoad, progress: Progress) -> ConsumeResult:
    """Read from the beginning of all partitions. Raises KafkaError."""
    loop = asyncio.get_running_loop()
    began_s: float | None = None
    seconds, count, size = 0.0, 0, 0
    async for records in _all_records(client, load.topic, load.duration_s):
        began_s = loop.time() if began_s is None else began_s  # the first fetch waits for metadata
        if load.messages is not None:
            records = records[: load.messages - count]  # noqa: PLW2901 - the rest is not read
        count += len(records)
        size += sum(len(one.value or b"") + len(one.key or b"") for one in records)
        seconds = loop.time() - began_s
        progress(count)
        if load.messages is not None and count >= load.messages:
            break
    return ConsumeResult(seconds=seconds, records=count, bytes=size)


async def read_copies(client: Client, topic: str, messages: int) -> bytearray:
    """Return the number of copies of each record that a ProduceLoad of `messages` has sent.

    Records of the warm-up are left out. Raises KafkaError, and ValueError for a record that the
    load has not sent.
    """
    copies = bytearray(messages)
    async for records in _all_records(client, topic, None):
        for record in records:
            number = int.from_bytes((record.value or b"")[:NUMBER_BYTES], "big")
            if number >= WARM_UP:
                continue
            if number >= messages:
                raise ValueError(f"{topic}: a record at {record.offset} that no load has sent")
            copies[number] = min(copies[number] + 1, _COPIES_MAX)
    return copies


async def _all_records(
    client: Client, topic: str, duration_s: float | None
) -> AsyncIterator[Sequence[ConsumerRecord]]:
    """Yield the records up to the present ends of the logs; or, for `duration_s`, all that come."""
    loop = asyncio.get_running_loop()
    async with Consumer(**client, auto_offset_reset="earliest") as consumer:
        places = [TopicPartition(topic, index) for index in await consumer.partitions_for(topic)]
        ends = await consumer.end_offsets(places)
        begins = await consumer.beginning_offsets(places)
        consumer.assign(places)
        reached = dict(begins)
        until_s = None if duration_s is None else loop.time() + duration_s
        while (
            any(reached[place] < ends[place] for place in places)
            if until_s is None
            else loop.time() < until_s
        ):
            for place, records in (await consumer.poll(_POLL_MS, _POLL_RECORDS)).items():
                reached[place] = records[-1].offset + 1
                yield records
