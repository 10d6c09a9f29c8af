"""Writes MirrorMaker 2's internal topics, so that Java's RemoteClusterUtils reads this mirror."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

from quorumlog import clock
from quorumlog.client import Admin, ErrorCode, KafkaError, NewTopic, Producer, TopicPartition
from quorumlog.mirror.core.mm2_records import (
    Record,
    checkpoint,
    checkpoints_topic,
    heartbeat,
    heartbeats_topic,
    offset_sync,
    offset_syncs_topic,
)
from quorumlog.mirror.core.offset_runs import OffsetRun
from quorumlog.mirror.io.groups import MovedGroup
from quorumlog.mirror.settings import MirrorSettings

_HEARTBEAT_S: Final = 1.0
_REPLICATION_FACTOR: Final = 3


class Mm2Topics:
    """The producers of the internal topics; only changed records are written again.

    Heartbeats and offset syncs are written to the source, as MirrorMaker 2 does by default: its
    user needs the right to create and write these topics there.
    """

    def __init__(self, settings: MirrorSettings, source: Admin, target: Admin) -> None:
        self._alias: Final = settings.alias
        self._target_alias: Final = settings.target_alias or ""
        self._admins: Final = source, target
        self._to_source: Final = Producer(**settings.source)
        self._to_target: Final = Producer(**settings.target)
        self._stack: Final = AsyncExitStack()
        self._written: Final[dict[tuple[str, bytes], bytes]] = {}

    async def start(self) -> None:
        """Create the topics and start the producers. Raises KafkaError."""
        at_source = heartbeats_topic(), offset_syncs_topic(self._target_alias)
        for admin, names in zip(
            self._admins, (at_source, (checkpoints_topic(self._alias),)), strict=True
        ):
            await _ensure(admin, names)
        for producer in (self._to_source, self._to_target):
            await producer.start()
            self._stack.push_async_callback(producer.stop, timeout_ms=0)

    async def stop(self) -> None:
        """Close the producers at once: the next mirror writes these records again."""
        await self._stack.aclose()

    async def beat(self) -> None:
        """Write a heartbeat each second, for ever. Raises KafkaError."""
        while True:
            record = heartbeat(self._alias, self._target_alias, clock.wall_clock_ms())
            await self._write(self._to_source, heartbeats_topic(), [record])
            await asyncio.sleep(_HEARTBEAT_S)

    async def write(
        self, runs: Mapping[TopicPartition, OffsetRun], groups: Mapping[str, Sequence[MovedGroup]]
    ) -> None:
        """Write the newest run of each partition as a sync, and the offsets of the groups.

        Raises KafkaError.
        """
        syncs = [
            offset_sync(place, run.upstream + run.size - 1, run.downstream + run.size - 1)
            for place, run in runs.items()
        ]
        checkpoints = [
            checkpoint(group, one.copy, one.upstream, one.downstream)
            for group, moved in groups.items()
            for one in moved
        ]
        await self._write(self._to_source, offset_syncs_topic(self._target_alias), syncs)
        await self._write(self._to_target, checkpoints_topic(self._alias), checkpoints)

    async def _write(self, producer: Producer, topic: str, records: Sequence[Record]) -> None:
        changed = [
            (key, value) for key, value in records if self._written.get((topic, key)) != value
        ]
        if not changed:
            return
        keys, values = zip(*changed, strict=True)
        await (await producer.send_many(topic, values, keys, partition=0))
        self._written.update({(topic, key): value for key, value in changed})


async def _ensure(admin: Admin, names: Sequence[str]) -> None:
    brokers = len((await admin.describe_cluster()).nodes)
    present = await admin.list_topics(include_internal=True)
    for name in names:
        if name in present:
            continue
        new = NewTopic(
            name, 1, min(_REPLICATION_FACTOR, brokers), configs={"cleanup.policy": "compact"}
        )
        try:
            await admin.create_topics([new])
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
