"""Reads the positions topics of a cluster, and creates the topic of this mirror."""

import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from quorumlog.client import Admin, Consumer, ErrorCode, KafkaError, NewTopic, TopicPartition
from quorumlog.mirror.core.position_records import (
    GENERATION_KEY,
    BadPositionRecord,
    Content,
    Generation,
    RecordKey,
    decode_content,
    decode_key,
)
from quorumlog.mirror.core.selection import OWN_TOPICS
from quorumlog.mirror.errors import MirrorRefused

_CONFIGS: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.bytes": str(4 * 1024 * 1024),  # only closed segments are compacted
}
_REPLICATION_FACTOR: Final = 3
_POLL_MS: Final = 200
_POLL_RECORDS: Final = 10_000


class PositionsReader:
    """Reads one positions topic to its end, again and again: `contents` has the newest values.

    It reads committed records alone. Records that no mirror of this version wrote are refused, as
    to skip a position would lose records or copy them twice.
    """

    def __init__(self, client: Mapping[str, Any], topic: str) -> None:
        self.contents: Final[dict[RecordKey, Content]] = {}
        self._place: Final = TopicPartition(topic, 0)
        self._consumer: Final = Consumer(**client, isolation_level="read_committed")

    async def __aenter__(self) -> Self:
        await self._consumer.start()
        self._consumer.assign([self._place])
        self._consumer.seek_to_beginning(self._place)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._consumer.stop()

    async def read(self) -> Mapping[RecordKey, Content]:
        """Read to the present end of the topic. Raises KafkaError, MirrorRefused."""
        end = (await self._consumer.end_offsets([self._place]))[self._place]
        while await self._consumer.position(self._place) < end:
            polled = await self._consumer.poll(_POLL_MS, _POLL_RECORDS)
            for record in polled.get(self._place, ()):
                try:
                    self._apply(record.key, record.value)
                except BadPositionRecord as problem:
                    topic = self._place.topic
                    message = f"{topic}, offset {record.offset}: no record of a mirror: {problem}"
                    raise MirrorRefused(message) from None
        return self.contents

    @property
    def generation(self) -> Generation | None:
        """Return the mirror that wrote last; None for a new topic."""
        found = self.contents.get(GENERATION_KEY)
        return found if isinstance(found, Generation) else None

    def _apply(self, key: bytes | None, value: bytes | None) -> None:
        name = decode_key(key)
        content = None if value is None else decode_content(name.kind, value)
        if content is None:
            self.contents.pop(name, None)
        else:
            self.contents[name] = content


async def ensure_positions_topic(admin: Admin, topic: str, brokers: int) -> None:
    """Create the topic if the cluster does not have it. Raises KafkaError."""
    if topic in await admin.list_topics(include_internal=True):
        return
    new = NewTopic(topic, 1, min(_REPLICATION_FACTOR, brokers), configs=_CONFIGS)
    try:
        await admin.create_topics([new])
    except KafkaError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


async def generations_at(admin: Admin, client: Mapping[str, Any]) -> list[Generation]:
    """Return the mirrors that write to this cluster, or did. Raises KafkaError, MirrorRefused."""
    found = []
    for topic in await admin.list_topics(include_internal=True):
        if re.fullmatch(OWN_TOPICS, topic):
            async with PositionsReader(client, topic) as reader:
                await reader.read()
            if reader.generation is not None:
                found.append(reader.generation)
    return found
