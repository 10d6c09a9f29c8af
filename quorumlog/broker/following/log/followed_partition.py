"""One followed partition: its fetch position, and how to apply an answer of its leader."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from quorumlog.backoff import Backoff
from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.lasting_condition import LastingCondition
from quorumlog.storage.core.append_checks import earlier_beginning
from quorumlog.storage.errors import OlderEpoch, RecordsTooLarge, StorageError, UnexpectedOffset
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import NO_EPOCH, Epoch, Offset
from quorumlog.wire.codec.message import Buffer, contents
from quorumlog.wire.codec.messages.fetch import (
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

Key = tuple[bytes, int]
"""A topic's id and a partition's index."""
_new_tuple: Final = tuple.__new__  # the class of a NamedTuple costs three times as much
_logger: Final = logging.getLogger(__name__)


class Position(NamedTuple):
    """The position to fetch from: the end of the local log, in the leader's epoch."""

    leader_epoch: Epoch
    fetch_offset: Offset
    last_fetched_epoch: Epoch
    log_start_offset: Offset


def topics_of(
    named: Iterable[Key], asked: Mapping[Key, Position], partition_max_bytes: int
) -> list[FetchTopic]:
    """Return the entries of a fetch of these partitions, each from its position in `asked` on."""
    topics: dict[bytes, FetchTopic] = {}
    for topic_id, index in named:
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = FetchTopic(topic_id=topic_id, partitions=[])
        position = asked[topic_id, index]
        topic.partitions.append(
            FetchPartition(
                partition=index,
                current_leader_epoch=position.leader_epoch,
                fetch_offset=position.fetch_offset,
                last_fetched_epoch=position.last_fetched_epoch,
                log_start_offset=position.log_start_offset,
                partition_max_bytes=partition_max_bytes,
            )
        )
    return list(topics.values())


def forgotten_topics_of(forgotten: Iterable[Key]) -> list[ForgottenTopic]:
    """Return the entries of a fetch that drops these partitions from its session."""
    topics: dict[bytes, ForgottenTopic] = {}
    for topic_id, index in forgotten:
        gone = topics.setdefault(topic_id, ForgottenTopic(topic_id=topic_id, partitions=[]))
        gone.partitions.append(index)
    return list(topics.values())


@dataclass(slots=True, eq=False)
class FollowedPartition:
    """A partition, followed in one leader epoch."""

    driver: PartitionDriver
    leader_epoch: Epoch
    failures: int = 0  # consecutive
    not_before_ms: int = 0  # end of the back-off
    paid_ms: int = 0  # end of the throttle's delay
    divergence: tuple[int, int] | None = None  # the last: a leader epoch and its end offset
    diverged_at: int = 0  # the fetch offset of the last divergence
    is_going_round: bool = False  # the divergence was repeated; no later fetch succeeded
    not_appended: LastingCondition = field(default_factory=partial(LastingCondition, _logger))

    def position(self) -> Position:
        """Return the position of the next fetch."""
        driver = self.driver
        state = driver.partition.state
        epoch = driver.log.epochs.latest_epoch
        fields = (self.leader_epoch, state.log_end_offset, epoch, state.kept_log_start_offset)
        return _new_tuple(Position, fields)

    def may_ask(self, now_ms: int) -> bool:
        """Whether the delays are over, and the log is ready for a fetch."""
        return now_ms >= self.not_before_ms and now_ms >= self.paid_ms and self.is_ready

    @property
    def due_ms(self) -> int:
        """The end of both delays: back-off and throttle."""
        return max(self.not_before_ms, self.paid_ms)

    @property
    def is_ready(self) -> bool:
        """Whether the log is not being truncated, not contradicted, and durable as required."""
        driver = self.driver
        if driver.is_truncating:
            return False
        return not driver.partition.state.is_contradicted and driver.partition.may_fetch()

    @property
    def is_flushing(self) -> bool:
        """Whether the next fetch waits for a flush of the log."""
        return not self.driver.is_truncating and not self.driver.partition.may_fetch()

    def note_divergence(self, asked: Position, epoch: int, end_offset: int) -> None:
        """Record where the leader's log diverges, and whether the divergence is a repetition."""
        self.is_going_round = self.divergence == (epoch, end_offset)
        self.divergence, self.diverged_at = (epoch, end_offset), asked.fetch_offset

    def note_progress(self, asked: Position) -> None:
        """Record an applied answer; reset the failures, except in a repeated divergence.

        In one leader epoch, the same divergence comes once: its truncation removes the difference.
        """
        if asked.fetch_offset >= self.diverged_at:
            self.divergence, self.is_going_round = None, False
        if not self.is_going_round:
            self.failures = 0

    def back_off(self, now_ms: int, backoff: Backoff, random_fraction: float) -> None:
        """Leave the partition out of fetches for a while, longer after each failure."""
        self.failures += 1
        delay_ms = backoff.delay_ms(self.failures, random_fraction)
        self.not_before_ms = now_ms + int(delay_ms)


def take_answer(
    followed: FollowedPartition,
    asked: Position,
    answer: PartitionData,
    *,
    now_ms: int,
    wall_ms: Callable[[], int],
    backoff: Backoff,
    random_fraction: Callable[[], float],
) -> bool:
    """Append, truncate or start over, if the answer is still current.

    Return whether it is the first of consecutive errors, which is logged.
    """
    driver, fetch_offset = followed.driver, asked.fetch_offset
    last_fetched_epoch = asked.last_fetched_epoch
    if driver.is_truncating or not driver.partition.accepts_answer(
        followed.leader_epoch, fetch_offset, last_fetched_epoch
    ):
        return False
    if not answer.error_code and _take_records(followed, asked, answer, now_ms, wall_ms):
        return False
    if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        driver.feed(
            now_ms,
            events.FetchOutOfRange(
                leader_epoch=followed.leader_epoch,
                fetch_offset=fetch_offset,
                last_fetched_epoch=last_fetched_epoch,
                log_start_offset=Offset(answer.log_start_offset),
            ),
        )
        if driver.is_truncating or driver.partition.state.log_end_offset != fetch_offset:
            return False
    is_first = followed.failures == 0 and answer.error_code != ErrorCode.NONE
    followed.back_off(now_ms, backoff, random_fraction())
    return is_first


def _take_records(
    followed: FollowedPartition,
    asked: Position,
    answer: PartitionData,
    now_ms: int,
    wall_ms: Callable[[], int],
) -> bool:
    """Truncate or append; False: the answer cannot be applied, retry later."""
    driver, leader_epoch = followed.driver, followed.leader_epoch
    at = driver.topic_partition
    diverging = answer.diverging_epoch
    if diverging is not None and diverging.epoch >= 0:
        return _diverge(followed, asked, diverging.epoch, diverging.end_offset, now_ms)
    try:
        records = _one_buffer(answer)
        base_offset = _earlier_beginning(driver, records, leader_epoch)
        if base_offset is not None:
            return _begin_earlier(
                followed, asked, answer, base_offset=base_offset, now_ms=now_ms, wall_ms=wall_ms
            )
        driver.append_as_follower(
            records,
            leader_epoch=leader_epoch,
            high_watermark=Offset(answer.high_watermark),
            log_start_offset=Offset(answer.log_start_offset),
            now_ms=now_ms,
            wall_ms=wall_ms(),
        )
    except OlderEpoch as error:  # our last leader epoch is damaged: the leader has another
        if not followed.is_going_round:
            _logger.warning("%s: %s: our log is cut where that epoch begins", at, error)
        return _diverge(followed, asked, error.epoch, asked.fetch_offset, now_ms)
    except StorageError as error:
        driver.maybe_fail(error)
        followed.not_appended.note(now_ms, f"{at}: not appended: {error}", at)
        return False
    except (CorruptBatch, UnexpectedOffset, RecordsTooLarge) as error:
        driver.maybe_fail()
        followed.not_appended.note(
            now_ms,
            f"{at}: not appended, as broker {driver.partition.state.leader_id}, which leads, sent "
            f"it from offset {asked.fetch_offset} on: {error}",
            at,
        )
        return False
    followed.note_progress(asked)
    if not followed.is_going_round and followed.not_appended:
        followed.not_appended.end(now_ms, "followed partitions are appended to again", at)
    return True


def _diverge(
    followed: FollowedPartition, asked: Position, epoch: int, end_offset: int, now_ms: int
) -> bool:
    """Truncate the local log: the leader's `epoch` ends at `end_offset` or later.

    False: the leader has repeated its answer, so retry later.
    """
    driver = followed.driver
    followed.note_divergence(asked, epoch, end_offset)
    diverged = events.LeaderDiverged(
        leader_epoch=followed.leader_epoch,
        fetch_offset=asked.fetch_offset,
        last_fetched_epoch=asked.last_fetched_epoch,
        epoch=Epoch(epoch),
        end_offset=Offset(end_offset),
    )
    driver.feed(now_ms, diverged)
    if followed.is_going_round and not driver.partition.state.is_contradicted:
        at, leader_id = driver.topic_partition, driver.partition.state.leader_id
        followed.not_appended.note(
            now_ms,
            f"{at}: broker {leader_id}, which leads, answers the fetch from offset "
            f"{asked.fetch_offset} on again and again with a divergence at offset {end_offset}, "
            f"in epoch {epoch}, where our log was cut: its leader epochs do not fit its records",
            at,
        )
    return not followed.is_going_round


def _earlier_beginning(
    driver: PartitionDriver, records: Buffer, leader_epoch: Epoch
) -> Offset | None:
    """Return the log start offset that the first batch requires; None: no change."""
    log = driver.log
    if not records or log.log_start_offset < log.log_end_offset:
        return None
    next_offset = log.log_end_offset
    return earlier_beginning(records, next_offset=next_offset, leader_epoch=leader_epoch)


def _begin_earlier(
    followed: FollowedPartition,
    asked: Position,
    answer: PartitionData,
    *,
    base_offset: Offset,
    now_ms: int,
    wall_ms: Callable[[], int],
) -> bool:
    """Restart the log at the batch's base offset and take the answer; False: not restarted."""
    driver = followed.driver
    driver.feed(
        now_ms,
        events.BatchBeganEarlier(
            leader_epoch=followed.leader_epoch,
            fetch_offset=asked.fetch_offset,
            last_fetched_epoch=asked.last_fetched_epoch,
            base_offset=base_offset,
        ),
    )

    def take() -> bool:
        begins = driver.partition.accepts_answer(followed.leader_epoch, base_offset, NO_EPOCH)
        return begins and _take_records(followed, followed.position(), answer, now_ms, wall_ms)

    if not driver.is_truncating:
        return take()
    answer.records = bytes(_one_buffer(answer))  # the receive buffer may be reused
    driver.hold(take)
    return True


def _one_buffer(answer: PartitionData) -> bytes | bytearray | memoryview:
    records = answer.records
    if type(records) is memoryview or isinstance(records, Buffer):
        return records
    return b"".join(contents(records or ()))
