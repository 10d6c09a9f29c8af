"""Calls of tests to the replicas of a broker, as handlers and followers make them."""

import asyncio

from quorumlog.broker.fetching.core.fetch_spec import FetchSpec
from quorumlog.broker.partitions.core.data_path import FetchedPartition, LocalRead, ProduceResult
from quorumlog.broker.partitions.core.partition import Partition
from quorumlog.broker.replicas import Replicas
from quorumlog.wire.codec.identifiers import TopicPartition


def partition_of(replicas: Replicas, at: TopicPartition) -> Partition | None:
    """Return the replica's core, to look at."""
    driver = replicas.drivers.get(at)
    return None if driver is None else driver.partition


def append_to(
    replicas: Replicas, at: TopicPartition, records: bytes, *, acks: int, timeout_ms: int
) -> asyncio.Future[ProduceResult]:
    """Append as the leader; the future is already done if the outcome is immediate."""
    outcome: asyncio.Future[ProduceResult] = asyncio.get_running_loop().create_future()

    def done(result: ProduceResult) -> None:
        if not outcome.done():
            outcome.set_result(result)

    replicas.append(at, records, acks=acks, timeout_ms=timeout_ms, done=done)
    return outcome


def fetch_from(
    replicas: Replicas, spec: FetchSpec
) -> list[FetchedPartition] | asyncio.Future[list[FetchedPartition]]:
    """Answer a fetch: now, or when there is enough."""
    return replicas.fetches.fetch(spec, list)


def read_local(replicas: Replicas, at: TopicPartition, offset: int, max_bytes: int) -> LocalRead:
    """Read committed batches, which are in memory."""
    told = list[LocalRead]()
    replicas.read_local(at, offset, max_bytes, told.append)
    return told[0]
