"""A follower whose leader answers as if one of the two logs were damaged reports it, and waits."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.backoff import Backoff
from quorumlog.broker.following.log.followed_partition import FollowedPartition, take_answer
from quorumlog.broker.replicas import Replicas
from quorumlog.wire.codec.identifiers import Epoch
from quorumlog.wire.codec.messages.fetch import EpochEndOffset, PartitionData
from tests.support.broker.one_broker import (
    AT,
    TOPIC_ID,
    from_leader,
    one_broker,
    publish,
    reports_of,
)
from tests.support.broker.replicas import ALL_ALIVE, BROKERS, image

ONE = BROKERS[0]
Take = Callable[[PartitionData], FollowedPartition]
NOTHING_FITS = PartitionData(
    partition_index=0, diverging_epoch=EpochEndOffset(epoch=1, end_offset=0)
)


class Clock:
    now_ms = 0


def follower(replicas: Replicas, clock: Clock, isr: tuple[int, ...]) -> Take:
    """Return what takes an answer of broker 2, which leads in epoch 1, as soon as one is due."""
    replicas.registered(ALL_ALIVE[ONE].broker_epoch)
    publish(replicas, image(2, 1, 1, isr, replicas=(1, 2)))
    followed = FollowedPartition(replicas.drivers[AT], Epoch(1))

    def take(answer: PartitionData) -> FollowedPartition:
        clock.now_ms = max(clock.now_ms, followed.due_ms)
        take_answer(
            followed,
            followed.position(),
            answer,
            now_ms=clock.now_ms,
            wall_ms=lambda: 0,
            backoff=Backoff(10, 1000),
            random_fraction=0.5,
        )
        return followed

    return take


def batches(start: int, end: int) -> PartitionData:
    records = b"".join(bytes(from_leader(offset)) for offset in range(start, end))
    return PartitionData(partition_index=0, high_watermark=9, records=records)


async def test_a_member_reports_its_log_until_it_is_no_member(tmp_path: Path) -> None:
    clock = Clock()
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        take = follower(replicas, clock, isr=(1, 2))
        take(batches(0, 3))
        followed = take(NOTHING_FITS)
        assert replicas.drivers[AT].log.log_end_offset == 3
        assert not followed.may_ask(clock.now_ms)
        assert not followed.is_flushing  # no other partition waits for it
        [report] = await reports_of(replicas)
        assert (report.topic_id, report.last_epoch, report.log_end_offset) == (TOPIC_ID, 1, 3)
        assert not report.is_whole

        eligible = replace(image(2, 1, 2, (2,), replicas=(1, 2)), elr=(ONE,))
        publish(replicas, eligible)
        assert len(await reports_of(replicas)) == 2
        publish(replicas, image(2, 1, 3, (2,), replicas=(1, 2)))
        assert len(await reports_of(replicas)) == 2
        assert followed.may_ask(clock.now_ms)
        take(NOTHING_FITS)
        assert replicas.drivers[AT].log.log_end_offset == 0
        assert replicas.may_lead.is_set()


async def test_the_same_divergence_again_is_asked_about_ever_more_rarely(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was cut and fetched without end, as fast as both brokers could, and no log said so."""
    clock, turns = Clock(), 150
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        take = follower(replicas, clock, isr=(2,))
        with caplog.at_level(logging.WARNING):
            for _ in range(turns):
                take(batches(0, 3))
                take(NOTHING_FITS)
        assert replicas.drivers[AT].log.log_end_offset == 0
        assert clock.now_ms >= (turns - 10) * 1000
        lines = [record.getMessage() for record in caplog.records]
        assert all("broker 2, which leads, answers the fetch from offset 3 on" in x for x in lines)
        assert 3 <= len(lines) <= 2 + clock.now_ms // 60_000
        take(batches(0, 3))
        assert take(batches(3, 4)).failures == 0  # it got past: it waits no more
        assert take(NOTHING_FITS).may_ask(clock.now_ms)


async def test_a_refused_batch_names_the_leader_and_the_offset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        take = follower(replicas, Clock(), isr=(2,))
        take(batches(0, 3))
        damaged = from_leader(3)
        damaged[-1] ^= 1
        take(PartitionData(partition_index=0, records=bytes(damaged)))
        assert "as broker 2, which leads, sent it from offset 3 on: " in caplog.text
