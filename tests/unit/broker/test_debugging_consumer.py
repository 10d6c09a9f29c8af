"""Kafka's debugging consumer, replica id -2: it reads any replica, up to the end of its log."""

import asyncio
from pathlib import Path

from quorumlog.broker.partitions.core.data_path import DEBUG_REPLICA, NO_REPLICA, FetchedPartition
from quorumlog.broker.replicas import Replicas
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch
from tests.support.broker.one_broker import (
    AT,
    append,
    fetch_of,
    follow,
    from_leader,
    one_broker,
    size,
)
from tests.support.broker.replica_calls import fetch_from

LATEST, EARLIEST = -1, -2


def answer_of(replicas: Replicas, replica_id: int, leader_epoch: int = -1) -> ErrorCode:
    spec = fetch_of(0, replica_id=replica_id, leader_epoch=leader_epoch, max_wait_ms=0)
    answers = fetch_from(replicas, spec)
    assert isinstance(answers, list)
    return answers[0].error_code


async def test_it_reads_above_the_high_watermark_of_a_leader_and_is_no_follower(
    tmp_path: Path,
) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        append(replicas)  # broker 2 is in the ISR and does not fetch
        assert size(fetch_from(replicas, fetch_of(0, replica_id=NO_REPLICA, max_wait_ms=0))) == 0
        assert size(fetch_from(replicas, fetch_of(0, replica_id=DEBUG_REPLICA, max_wait_ms=0))) > 0
        assert (await replicas.list_offset(AT, LATEST)).offset == 0
        assert (await replicas.list_offset(AT, LATEST, replica_id=DEBUG_REPLICA)).offset == 1
        fetch_from(replicas, fetch_of(1, replica_id=DEBUG_REPLICA, max_wait_ms=0))
        partition = replicas.drivers[AT].partition
        assert partition.state.high_watermark == 0


async def test_it_reads_a_follower(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        take = follow(replicas)
        take(from_leader(0))
        for replica_id in (NO_REPLICA, BrokerId(3)):
            assert answer_of(replicas, replica_id) is ErrorCode.NOT_LEADER_OR_FOLLOWER
            refused = await replicas.list_offset(AT, LATEST, replica_id=replica_id)
            assert refused.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert size(fetch_from(replicas, fetch_of(0, replica_id=DEBUG_REPLICA, max_wait_ms=0))) > 0
        for timestamp, offset in ((LATEST, 1), (EARLIEST, 0), (1, 0)):
            found = await replicas.list_offset(AT, timestamp, replica_id=DEBUG_REPLICA)
            assert (found.error_code, found.offset) == (ErrorCode.NONE, offset)


async def test_a_follower_still_checks_the_leader_epoch(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        follow(replicas)  # in leader epoch 1
        assert answer_of(replicas, DEBUG_REPLICA, 0) is ErrorCode.FENCED_LEADER_EPOCH
        assert answer_of(replicas, DEBUG_REPLICA, 1) is ErrorCode.NONE
        assert answer_of(replicas, DEBUG_REPLICA, 2) is ErrorCode.UNKNOWN_LEADER_EPOCH
        newer = await replicas.list_offset(AT, LATEST, Epoch(2), DEBUG_REPLICA)
        assert newer.error_code is ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_what_a_follower_commits_ends_its_wait(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        take = follow(replicas)
        waiting = fetch_from(replicas, fetch_of(0, replica_id=DEBUG_REPLICA, max_wait_ms=60_000))
        assert isinstance(waiting, asyncio.Future)
        take(from_leader(0))
        async with asyncio.timeout(5):
            answers: list[FetchedPartition] = await waiting
        assert size(answers) > 0
