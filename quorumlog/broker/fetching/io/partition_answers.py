"""The answer of a fetch for one partition: the offsets of its replica, and the records read."""

from collections.abc import Mapping

from quorumlog.broker.fetching.core.fetch_spec import FetchSpec
from quorumlog.broker.fetching.io.delayed_fetch import PartitionRead
from quorumlog.broker.partitions.core.data_path import FetchedPartition, ReadEnd
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.storage.core.aborted_transactions import AbortedTransaction
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition


def answer_to(
    spec: FetchSpec, read: PartitionRead, drivers: Mapping[TopicPartition, PartitionDriver]
) -> FetchedPartition:
    """Return the answer for a partition, with the current state of its replica."""
    driver = drivers.get(read.fetch.topic_partition)
    if driver is None or read.fetch.error_code is not ErrorCode.NONE:
        return FetchedPartition(read.error_code)
    state = driver.partition.state
    return FetchedPartition(
        read.error_code,
        state.high_watermark,
        state.log_start_offset,
        read.chunks,
        read.diverging,
        state.leader_id,
        state.leader_epoch,
        read.preferred_replica,
        driver.end(ReadEnd.LAST_STABLE),
        _aborted(read, driver) if spec.is_read_committed else None,
    )


def _aborted(read: PartitionRead, driver: PartitionDriver) -> list[AbortedTransaction]:
    """Return the aborted transactions with records between the offsets that were read."""
    if not read.chunks:
        return []
    return driver.log.aborted.reaching_into(read.fetch.fetch_offset, read.next_offset)
