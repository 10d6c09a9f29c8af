"""The answers to a fetch; in a session, unchanged partitions are left out of them."""

from collections.abc import Mapping
from typing import Final

from quorumlog.broker.fetching.core.fetch_sessions import FetchSession, FetchSessions
from quorumlog.broker.fetching.core.fetch_spec import FetchSpec
from quorumlog.broker.fetching.io.delayed_fetch import DelayedFetch, FetchAnswers, PartitionRead
from quorumlog.broker.partitions.core.data_path import NO_REPLICA, FetchedPartition, PartitionFetch
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.settings import BrokerSettings
from quorumlog.chance import random_number
from quorumlog.storage.core.aborted_transactions import AbortedTransaction
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

FEW: Final = 8  # a fetch of so few partitions is not reduced
_NONE: Final = ErrorCode.NONE  # an attribute of an enum costs a call
_new_tuple: Final = tuple.__new__  # the class of a NamedTuple costs three times as much
Drivers = Mapping[TopicPartition, PartitionDriver]


def answer_to(
    spec: FetchSpec, read: PartitionRead, driver: PartitionDriver | None
) -> FetchedPartition:
    """Return the answer for a partition, with the current state of its replica, if any."""
    if driver is None or read.fetch.error_code:
        return FetchedPartition(read.error_code)
    state = driver.partition.state
    high_watermark, start = state.high_watermark, state.log_start_offset
    fields = (
        read.error_code,
        high_watermark,
        start,
        read.chunks,
        read.diverging,
        state.leader_id,
        state.leader_epoch,
        read.preferred_replica,
        driver.producers.transactions.last_stable_offset(start, high_watermark),
        _aborted(read, driver) if spec.is_read_committed else None,
    )
    return _new_tuple(FetchedPartition, fields)


def newest_answer(
    delayed: DelayedFetch, session: FetchSession, drivers: Drivers
) -> FetchedPartition | None:
    """Return the answer to a follower in sync that lacks the newest batches of its one partition.

    The session counts it as sent. None: it is another case, or the batches are not in memory.
    """
    spec, (read, *others) = delayed.spec, delayed.reads
    if others or len(session.partitions) != 1 or not spec.is_from_follower:
        return None
    fetch = read.fetch
    partition, driver = session.partition_of(fetch), drivers.get(fetch.topic_partition)
    if partition is None or driver is None or is_restless(spec, driver):
        return None
    if read.is_final or read.size or read.missing or read.bring_ins:
        return None
    recent = driver.read_newest(read.next_offset, min(fetch.max_bytes, spec.max_bytes))
    if recent is None or recent[1] < spec.min_bytes:
        return None
    state = driver.partition.state
    high_watermark, start = state.high_watermark, state.log_start_offset
    partition.high_watermark, partition.log_start_offset = high_watermark, start
    spec.partitions = [fetch]
    session.unsettled.setdefault(fetch.key, False)
    if session.restless:
        session.restless.pop(fetch.key, None)
    stable = driver.producers.transactions.last_stable_offset(start, high_watermark)
    fields = (
        _NONE,
        high_watermark,
        start,
        recent[0],
        None,
        state.leader_id,
        state.leader_epoch,
        NO_REPLICA,
        stable,
        None,
    )
    return _new_tuple(FetchedPartition, fields)


def _aborted(read: PartitionRead, driver: PartitionDriver) -> list[AbortedTransaction]:
    """Return the aborted transactions with records between the offsets that were read."""
    if not read.chunks:
        return []
    return driver.log.aborted.reaching_into(read.fetch.fetch_offset, read.next_offset)


def unsettled_answers(
    spec: FetchSpec, session: FetchSession, reads: list[PartitionRead], drivers: Drivers
) -> FetchAnswers:
    """Return the new answers of a session; `spec.partitions` becomes the list of their fetches.

    The session counts them as sent: the caller must send the answers.
    """
    fetches: list[PartitionFetch] = []
    answers: FetchAnswers = []
    for read in reads:
        fetch = read.fetch
        partition = session.partitions.get(fetch.key)
        if partition is None or partition.fetch is not fetch:
            continue  # replaced or dropped meanwhile
        driver = drivers.get(fetch.topic_partition)
        found = answer_to(spec, read, driver)
        if partition.tell(found):
            fetches.append(fetch)
            answers.append(found)
        has_records = bool(read.chunks)
        session.settle(
            partition,
            is_settled=not has_records and _has_read_all(spec, read, driver),
            is_final=read.is_final,
            has_records=has_records,
            is_restless=is_restless(spec, driver),
        )
    spec.partitions = fetches
    return answers


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
            if is_told and _has_read_all(spec, read, driver):
                spec.session.settle(
                    partition, is_settled=True, is_restless=is_restless(spec, driver)
                )
    reads[:] = [read for read in reads if read.chunks or read.missing or read.is_final]


def is_restless(spec: FetchSpec, driver: PartitionDriver | None) -> bool:
    """Return whether its follower is not in sync: it may become eligible to join the ISR."""
    return (
        spec.is_from_follower
        and driver is not None
        and not driver.partition.serving.is_in_sync(spec.replica_id)
    )


def _has_read_all(spec: FetchSpec, read: PartitionRead, driver: PartitionDriver | None) -> bool:
    if read.is_final or driver is None:
        return False
    return driver.end(spec.read_end) <= read.next_offset


def new_sessions(settings: BrokerSettings) -> FetchSessions:
    """Return an empty cache of sessions, as large as the settings allow."""
    slots_max = settings.max_incremental_fetch_session_cache_slots
    return FetchSessions(slots_max, new_id=lambda: 1 + random_number(2**31 - 1))
