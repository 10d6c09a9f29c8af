"""What a fetch in a session leaves out: partitions of which there is nothing new to tell."""

from collections.abc import Mapping
from typing import Final

from quorumlog.broker.fetching.core.fetch_spec import FetchSpec
from quorumlog.broker.fetching.io.parked_fetch import FetchAnswers, Progress
from quorumlog.broker.partitions.core.data_path import FetchedPartition, PartitionFetch
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.wire.codec.identifiers import TopicPartition

FEW: Final = 8  # partitions that a fetch may look at again without need
Drivers = Mapping[TopicPartition, PartitionDriver]


def news_of(
    spec: FetchSpec, progress: list[Progress], answers: FetchAnswers, drivers: Drivers
) -> FetchAnswers:
    """Reduce a session's answers, and `spec.partitions` with them, to what is to be told.

    The session takes note of it: the answers must be sent.
    """
    told: list[tuple[PartitionFetch, FetchedPartition]] = []
    for fetch, so_far, found in zip(spec.partitions, progress, answers, strict=True):
        partition = None if spec.session is None else spec.session.partition_of(fetch)
        if spec.session is None or partition is None:
            continue  # asked for anew, or given up, meanwhile
        if partition.tell(found):
            told.append((fetch, found))
        is_settled = not so_far.chunks and _has_read_all(spec, fetch, so_far, drivers)
        spec.session.settle(
            partition,
            is_settled=is_settled,
            is_final=so_far.is_final,
            has_records=bool(so_far.chunks),
        )
    spec.partitions = [fetch for fetch, _ in told]
    return [found for _, found in told]


def drop_settled(spec: FetchSpec, progress: list[Progress], drivers: Drivers) -> None:
    """Reduce a fetch in a session that is about to wait to the partitions with records.

    What else there is to tell stays unsettled: the answer tells it, when there is one.
    """
    if spec.session is None or len(progress) <= FEW:
        return
    kept: list[tuple[PartitionFetch, Progress]] = []
    for fetch, so_far in zip(spec.partitions, progress, strict=True):
        if so_far.chunks:
            kept.append((fetch, so_far))
            continue
        partition, driver = spec.session.partition_of(fetch), drivers.get(fetch.topic_partition)
        if partition is not None and driver is not None:
            core = driver.partition
            is_told = partition.was_told(core.state.high_watermark, core.state.log_start_offset)
            if is_told and _has_read_all(spec, fetch, so_far, drivers):
                spec.session.settle(partition, is_settled=True)
    spec.partitions[:] = [fetch for fetch, _ in kept]
    progress[:] = [so_far for _, so_far in kept]


def _has_read_all(
    spec: FetchSpec, fetch: PartitionFetch, so_far: Progress, drivers: Drivers
) -> bool:
    driver = drivers.get(fetch.topic_partition)
    if so_far.is_final or driver is None:
        return False
    return driver.end(spec.read_end) <= so_far.next_offset
