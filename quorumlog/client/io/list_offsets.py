"""Requests offsets by time from leaders (ListOffsets), once or until a deadline."""

import asyncio
from collections.abc import Mapping
from typing import Final

from quorumlog.backoff import Backoff
from quorumlog.chance import random_fraction
from quorumlog.client.core.absences import NO_LEADER
from quorumlog.client.core.topic_partitions import by_topic
from quorumlog.client.errors import KafkaError, denied, of_topic
from quorumlog.client.io.cluster import QUESTION_TIMEOUT_MS, Cluster
from quorumlog.client.records import OffsetAndTimestamp
from quorumlog.client.settings import IsolationLevel
from quorumlog.wire.codec.error_codes import RETRIABLE, ErrorCode, known
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

CONSUMER: Final = -1  # the replica id of clients
ISOLATION_LEVELS: Final[Mapping[IsolationLevel, int]] = {"read_uncommitted": 0, "read_committed": 1}

Timestamps = Mapping[TopicPartition, int]
Found = dict[TopicPartition, OffsetAndTimestamp]
Refused = dict[TopicPartition, str]
"""The error of each partition that has no offset yet."""


async def ask_offsets(
    cluster: Cluster, timestamps: Timestamps, isolation: IsolationLevel, refused: Refused
) -> Found:
    """Send each leader one request; return the offsets, without partitions that failed.

    After a failure metadata is requested, and `refused` gets the leader's error. An offset of -1:
    no record has this timestamp or a later one. Raises KafkaError for a lasting error.
    """
    by_broker: dict[int, dict[TopicPartition, int]] = {}
    for topic_partition, timestamp in timestamps.items():
        leader = cluster.metadata.leader(topic_partition)
        if leader is None:
            cluster.request_update()
        else:
            by_broker.setdefault(leader.broker_id, {})[topic_partition] = timestamp
    asks = [
        _ask_one(cluster, broker, part, isolation, refused) for broker, part in by_broker.items()
    ]
    found: Found = {}
    for answer in await asyncio.gather(*asks):
        found |= answer
    return found


async def list_offsets(
    cluster: Cluster, timestamps: Timestamps, isolation: IsolationLevel, timeout_ms: float
) -> Found:
    """Repeat requests until every partition has an offset. Raises KafkaError (definite)."""
    settings = cluster.settings
    backoff = Backoff(settings.metadata_retry_backoff_ms, settings.metadata_retry_backoff_max_ms)
    for name, indexes in by_topic(timestamps).items():
        await cluster.topic(name, timeout_ms, holding=indexes)
    found: Found = {}
    failures = 0
    try:
        with cluster.lookout.waiting() as wait:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    missing = {name: at for name, at in timestamps.items() if name not in found}
                    refused: Refused = {}
                    found |= await ask_offsets(cluster, missing, isolation, refused)
                    if len(found) == len(timestamps):
                        return found
                    left = next(name for name in missing if name not in found)
                    wait.fail(refused.get(left, NO_LEADER), about=str(left))
                    failures += 1
                    delay_ms = backoff.delay_ms(failures, random_fraction())
                    await asyncio.sleep(delay_ms / 1000)
    except TimeoutError:
        missing_names = ", ".join(str(name) for name in timestamps if name not in found)
        message = f"no offsets of {missing_names} within {timeout_ms:g} ms"
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, message, definite=True) from None


async def _ask_one(
    cluster: Cluster,
    broker_id: int,
    timestamps: Timestamps,
    isolation: IsolationLevel,
    refused: Refused,
) -> Found:
    topics = []
    for topic, partitions in by_topic(timestamps).items():
        wanted = [
            ListOffsetsPartition(
                partition_index=index, timestamp=timestamps[TopicPartition(topic, index)]
            )
            for index in partitions
        ]
        topics.append(ListOffsetsTopic(name=topic, partitions=wanted))
    request = ListOffsetsRequest(
        replica_id=CONSUMER,
        isolation_level=ISOLATION_LEVELS[isolation],
        topics=topics,
        timeout_ms=cluster.settings.request_timeout_ms,
    )
    try:
        response = await cluster.send(broker_id, request, timeout_ms=QUESTION_TIMEOUT_MS)
    except KafkaError as error:
        if error.passing:
            refused |= dict.fromkeys(timestamps, str(error))
            return {}
        raise
    found: Found = {}
    for answered_topic in response.topics:
        for one in answered_topic.partitions:
            code = known(one.error_code)
            name = TopicPartition(answered_topic.name, one.partition_index)
            if code == ErrorCode.NONE:
                found[name] = OffsetAndTimestamp(one.offset, one.timestamp, one.leader_epoch)
            elif code in RETRIABLE:
                refused[name] = code.name
                cluster.request_update()
            else:
                message = denied(code, f"topic {name.topic!r}", "DESCRIBE")
                raise of_topic(code, name.topic, message)
    return found
