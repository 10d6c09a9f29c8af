"""Consumers that read near (KIP-392), as a replica does, or in another leader epoch (KIP-320)."""

import asyncio
from dataclasses import replace
from pathlib import Path

from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.data_path import DEBUG_REPLICA, NO_REPLICA, FetchedPartition
from quorumlog.broker.replicas import Replicas
from quorumlog.metadata_quorum.image import ClusterDelta
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset, TopicId
from quorumlog.wire.codec.message import contents
from quorumlog.wire.codec.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.support.broker.one_broker import (
    AT,
    BATCH,
    append,
    fetch_of,
    follow,
    from_leader,
    one_broker,
    size,
)
from tests.support.broker.replica_calls import append_to, fetch_from
from tests.support.broker.replicas import ALL_ALIVE, BROKERS, Replica, broker, fetched_by, image
from tests.support.groups.asking import asking, create
from tests.support.groups.single_broker import TestController

ONE, TWO, THREE = BROKERS
RACKS = {
    ONE: replace(broker(ONE), rack="a"),
    TWO: replace(broker(TWO), rack="b"),
    THREE: replace(broker(THREE), rack="b"),
}


def leader(isr: tuple[int, ...] = (1, 2, 3), *, gone: BrokerId | None = None) -> Replica:
    """Return a leader with ten records, of which its followers hold none yet."""
    brokers = {id_: replace(one, fenced=id_ == gone) for id_, one in RACKS.items()}
    replica = Replica(ONE)
    published = events.PartitionPublished(
        image=image(1, 4, 9, isr), brokers=brokers, min_insync_replicas=1
    )
    replica.step(0, published)
    replica.step(0, events.RecordsAppended(log_end_offset=Offset(10)))
    return replica


def fetched(replica: Replica, by: BrokerId, offset: int, log_start_offset: int = 0) -> None:
    start = Offset(log_start_offset)
    fetch = fetched_by(by, offset, broker_epoch=0, leader_epoch=4, log_start_offset=start)
    replica.step(0, fetch)


def preferred(replica: Replica, rack: str, offset: int) -> int:
    return replica.partition.serving.preferred_replica(rack, Offset(offset))


def test_of_the_replicas_in_a_rack_the_one_with_most_records_is_named() -> None:
    replica = leader()
    assert preferred(replica, "b", 0) == -1  # none has fetched yet
    fetched(replica, TWO, 5)
    fetched(replica, THREE, 7)
    assert preferred(replica, "b", 5) == THREE
    assert preferred(replica, "b", 8) == -1  # neither has the offset
    fetched(replica, TWO, 7)
    assert preferred(replica, "b", 5) == TWO
    assert preferred(replica, "a", 5) == -1  # the leader is read where it is
    assert preferred(replica, "elsewhere", 5) == -1
    fetched(replica, TWO, 7, log_start_offset=6)
    fetched(replica, THREE, 7, log_start_offset=6)
    assert preferred(replica, "b", 5) == -1


def test_a_replica_out_of_the_isr_or_fenced_is_not_named() -> None:
    lagging = leader(isr=(1, 3))
    fetched(lagging, TWO, 7)
    assert preferred(lagging, "b", 5) == -1
    gone = leader(gone=TWO)
    fetched(gone, TWO, 7)
    assert preferred(gone, "b", 5) == -1


def read_near(
    replicas: Replicas, offset: int, last_fetched_epoch: int = -1, max_wait_ms: int = 0
) -> list[FetchedPartition] | asyncio.Future[list[FetchedPartition]]:
    spec = fetch_of(offset, leader_epoch=1, max_wait_ms=max_wait_ms)
    spec.partitions[0].last_fetched_epoch = Epoch(last_fetched_epoch)
    return fetch_from(replicas, replace(spec, may_read_follower=True))


def answered(replicas: Replicas, offset: int, last_fetched_epoch: int = -1) -> FetchedPartition:
    answers = read_near(replicas, offset, last_fetched_epoch)
    assert isinstance(answers, list)
    return answers[0]


async def test_a_follower_serves_what_is_committed_and_no_more(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        take = follow(replicas)
        for offset in range(2):
            take(from_leader(offset))
        state = replicas.drivers[AT].partition.state
        state.high_watermark = Offset(1)  # the second one is not committed
        assert len(b"".join(contents(answered(replicas, 0).records))) == len(from_leader(0))
        for offset in (1, 2):
            found = answered(replicas, offset)
            assert (found.error_code, list(found.records)) == (ErrorCode.NONE, [])
        assert answered(replicas, 3).error_code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_follower_that_is_behind_sends_the_consumer_to_the_leader(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        follow(replicas)(from_leader(0))
        found = answered(replicas, 5, last_fetched_epoch=1)
        assert found.error_code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert found.diverging is None


async def test_what_a_follower_learns_to_be_committed_ends_a_wait(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        take = follow(replicas)
        waiting = read_near(replicas, 0, max_wait_ms=60_000)
        assert isinstance(waiting, asyncio.Future)
        take(from_leader(0))
        async with asyncio.timeout(5):
            assert (await waiting)[0].records


async def test_a_leader_names_the_replica_at_once_and_sends_no_records(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        append(replicas)
        replicas.drivers[AT].partition.state.brokers = {**ALL_ALIVE, **RACKS}
        fetch_from(replicas, fetch_of(1, replica_id=2, leader_epoch=0, max_wait_ms=0))
        spec = replace(fetch_of(0, max_wait_ms=60_000), may_read_follower=True, near_rack="b")
        answers = fetch_from(replicas, spec)
        assert isinstance(answers, list)
        assert (answers[0].preferred_replica, list(answers[0].records)) == (2, [])


def raise_leader_epoch(controller: TestController, epoch: int) -> None:
    topic = controller.image.topics[AT.topic]
    newer = replace(topic.partitions[0], leader_epoch=Epoch(epoch), partition_epoch=Epoch(epoch))
    topics = {**controller.image.topics, AT.topic: replace(topic, partitions=(newer,))}
    controller.publish(ClusterDelta(partitions=frozenset({AT})), topics=topics)


async def test_a_consumer_of_another_leader_epoch_reads_nothing(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        topic_id = TopicId(await create(connection, AT.topic, partitions=1))
        raise_leader_epoch(broker.controller, 3)
        assert append_to(broker.replicas, AT, BATCH, acks=1, timeout_ms=0).done()
        for known_epoch, expected in (
            (-1, ErrorCode.NONE),
            (2, ErrorCode.FENCED_LEADER_EPOCH),
            (3, ErrorCode.NONE),
            (4, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ):
            for version in (9, 12, 17):
                wanted = FetchPartition(current_leader_epoch=known_epoch, partition_max_bytes=1000)
                topic = FetchTopic(topic=AT.topic, topic_id=topic_id, partitions=[wanted])
                request = FetchRequest(max_wait_ms=0, max_bytes=1000, topics=[topic])
                response = await connection.send(request, version=version)
                [data] = response.responses[0].partitions
                assert data.error_code == expected
                assert bool(data.records) == (expected is ErrorCode.NONE)


LATEST, EARLIEST = -1, -2


def answer_of(replicas: Replicas, replica_id: int, leader_epoch: int = -1) -> ErrorCode:
    spec = fetch_of(0, replica_id=replica_id, leader_epoch=leader_epoch, max_wait_ms=0)
    answers = fetch_from(replicas, spec)
    assert isinstance(answers, list)
    return answers[0].error_code


async def test_it_reads_a_leader_above_its_high_watermark_as_no_follower(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        append(replicas)  # broker 2 is in the ISR and does not fetch
        assert size(fetch_from(replicas, fetch_of(0, replica_id=NO_REPLICA, max_wait_ms=0))) == 0
        assert size(fetch_from(replicas, fetch_of(0, replica_id=DEBUG_REPLICA, max_wait_ms=0))) > 0
        assert (await replicas.list_offset(AT, LATEST)).offset == 0
        assert (await replicas.list_offset(AT, LATEST, replica_id=DEBUG_REPLICA)).offset == 1
        fetch_from(replicas, fetch_of(1, replica_id=DEBUG_REPLICA, max_wait_ms=0))
        partition = replicas.drivers[AT].partition
        assert partition.state.high_watermark == 0


async def test_it_reads_a_follower_which_checks_the_leader_epoch(tmp_path: Path) -> None:
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
