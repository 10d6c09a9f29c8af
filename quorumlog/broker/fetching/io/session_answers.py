"""Leaves unchanged partitions out of the fetches and responses of a session."""

from collections.abc import Mapping
from typing import Final

from quorumlog.broker.fetching.core.fetch_sessions import FetchSessions
from quorumlog.broker.fetching.core.fetch_spec import FetchSpec
from quorumlog.broker.fetching.io.delayed_fetch import FetchAnswers, PartitionRead
from quorumlog.broker.partitions.core.data_path import FetchedPartition, PartitionFetch
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.settings import BrokerSettings
from quorumlog.chance import random_number
from quorumlog.wire.codec.identifiers import TopicPartition

FEW: Final = 8  # a fetch of so few partitions is not reduced
Drivers = Mapping[TopicPartition, PartitionDriver]


def unsettled_answers(
    spec: FetchSpec, answered: list[tuple[PartitionRead, FetchedPartition]], drivers: Drivers
) -> FetchAnswers:
    """Return the new answers of a session; `spec.partitions` becomes the list of their fetches.

    The session counts them as sent: the caller must send the answers.
    """
    told: list[tuple[PartitionFetch, FetchedPartition]] = []
    for read, found in answered:
        partition = None if spec.session is None else spec.session.partition_of(read.fetch)
        if spec.session is None or partition is None:
            continue  # replaced or dropped meanwhile
        if partition.tell(found):
            told.append((read.fetch, found))
        is_settled = not read.chunks and _has_read_all(spec, read, drivers)
        spec.session.settle(
            partition,
            is_settled=is_settled,
            is_final=read.is_final,
            has_records=bool(read.chunks),
            is_restless=_is_restless(spec, read, drivers),
        )
    spec.partitions = [fetch for fetch, _ in told]
    return [found for _, found in told]


def has_untold_commits(spec: FetchSpec, reads: list[PartitionRead], drivers: Drivers) -> bool:
    """Whether a follower that serves consumers lacks a higher high watermark (KIP-392)."""
    if spec.session is None or not spec.awaits_commits:
        return False
    for read in reads:
        partition = spec.session.partition_of(read.fetch)
        driver = drivers.get(read.fetch.topic_partition)
        if (
            partition is not None
            and driver is not None
            and partition.high_watermark < driver.partition.state.high_watermark
        ):
            return True
    return False


def drop_settled(spec: FetchSpec, reads: list[PartitionRead], drivers: Drivers) -> None:
    """Reduce a session's fetch, before it waits, to partitions that have or await records.

    A partition with other changes stays unsettled: the response includes it later. A partition with
    an error or a divergence stays, because its fetch is not judged again.
    """
    if spec.session is None or len(reads) <= FEW:
        return
    for read in reads:
        partition = spec.session.partition_of(read.fetch)
        driver = drivers.get(read.fetch.topic_partition)
        if not read.chunks and partition is not None and driver is not None:
            state = driver.partition.state
            is_told = partition.was_told(state.high_watermark, state.log_start_offset)
            if is_told and _has_read_all(spec, read, drivers):
                is_restless = _is_restless(spec, read, drivers)
                spec.session.settle(partition, is_settled=True, is_restless=is_restless)
    reads[:] = [read for read in reads if read.chunks or read.missing or read.is_final]


def _is_restless(spec: FetchSpec, read: PartitionRead, drivers: Drivers) -> bool:
    """Whether its follower is not in sync: it may become eligible to join the ISR."""
    driver = drivers.get(read.fetch.topic_partition)
    return (
        spec.is_from_follower
        and driver is not None
        and not driver.partition.serving.is_in_sync(spec.replica_id)
    )


def _has_read_all(spec: FetchSpec, read: PartitionRead, drivers: Drivers) -> bool:
    driver = drivers.get(read.fetch.topic_partition)
    if read.is_final or driver is None:
        return False
    return driver.end(spec.read_end) <= read.next_offset


def new_sessions(settings: BrokerSettings) -> FetchSessions:
    """Return an empty cache of sessions, as large as the settings allow."""
    slots_max = settings.max_incremental_fetch_session_cache_slots
    return FetchSessions(slots_max, new_id=lambda: 1 + random_number(2**31 - 1))
