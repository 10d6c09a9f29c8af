"""One append to a simulated leader: what `Appends` does in a real broker."""

from quorumlog.broker.partitions.core.data_path import ACKS_ALL, ProduceDone, ProduceResult
from quorumlog.broker.partitions.core.producer_state import Check
from quorumlog.broker.partitions.core.verification import Guard
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset, TopicPartition
from quorumlog.wire.codec.records import BatchHeader, iterate_headers
from quorumlog.wire.codec.topic_names import INTERNAL_TOPICS
from quorumlog.wire.codec.transaction_markers import TransactionMarker


def append(
    replicas: ReplicaSet,
    at: TopicPartition,
    batch: bytes,
    done: ProduceDone,
    *,
    now_ms: int,
    timeout_ms: int,
    marker: TransactionMarker | None = None,
    transaction_version: int = 0,
    guard: Guard | None = None,
) -> None:
    """Append one batch with acks=all; `done` is told now, or when the outcome is known.

    `marker`: what the batch says, if it is a control batch, of this `transaction_version`.
    `guard`: under which the coordinator has said that the batch's transaction is open.
    """
    driver = replicas.drivers.get(at)
    if driver is None:
        done(ProduceResult(replicas.error_for_missing(at)))
        return
    refusal = driver.partition.serving.append_refusal(ACKS_ALL)
    if refusal is not ErrorCode.NONE:
        done(ProduceResult(refusal))
        return
    [(_, header)] = iterate_headers(batch)
    error_code, stored = (
        _judge(driver, header, guard)
        if marker is None
        else Check(driver.producers.check_marker(marker, transaction_version))
    )
    if error_code is not ErrorCode.NONE:
        done(ProduceResult(error_code))
        return
    if stored is None:
        info = driver.append_as_leader(batch, header, now_ms=now_ms, wall_ms=now_ms, marker=marker)
        base_offset, end_offset = info.first_offset, Offset(info.last_offset + 1)
    else:
        base_offset, end_offset = Offset(stored.base_offset), Offset(stored.last_offset + 1)
    result = ProduceResult(ErrorCode.NONE, base_offset)
    if driver.partition.state.high_watermark >= end_offset:
        outcome = driver.partition.serving.commit_outcome()
        done(result if outcome is ErrorCode.NONE else ProduceResult(outcome))
    else:
        driver.waiting.commits.add(now_ms + timeout_ms, end_offset, result, done)


def _judge(driver: PartitionDriver, header: BatchHeader, guard: Guard | None) -> Check:
    producers = driver.producers
    if driver.topic_partition.topic in INTERNAL_TOPICS:  # a coordinator's
        return Check(producers.check_epoch(header))
    if header.producer_id < 0:
        return Check(ErrorCode.NONE)
    judged = producers.check(header)
    if judged.error_code is not ErrorCode.NONE or judged.duplicate_of is not None:
        return judged
    return Check(producers.check_transaction(header, guard, is_asked=True))
