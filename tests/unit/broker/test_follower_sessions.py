"""Fetch sessions at the leader's data path and over a connection (KIP-227)."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.fetching.core.fetch_sessions import (
    FINAL_EPOCH,
    SWEEP_INTERVAL_MS,
    FetchSession,
)
from quorumlog.broker.fetching.core.fetch_spec import FetchSpec
from quorumlog.broker.fetching.io.delayed_fetch import DelayedFetch
from quorumlog.broker.fetching.io.fetches import Fetches
from quorumlog.broker.following.core.session_client import SessionClient
from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.data_path import FetchedPartition
from quorumlog.broker.partitions.core.effects import AnswerFetch
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.replicas import Replicas
from quorumlog.clock import monotonic_ms
from quorumlog.metadata_quorum.image import ClusterDelta
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, Offset, TopicPartition
from quorumlog.wire.codec.messages.delete_topics import DeleteTopicsRequest
from quorumlog.wire.codec.messages.fetch import FetchRequest
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.broker.one_broker import AT, BATCH, append, fetch_of, one_broker, size
from tests.support.broker.replica_calls import append_to, fetch_from, read_local
from tests.support.broker.session_consumer import TOPIC, Consumer, created, parked
from tests.support.broker.session_consumer import append as append_to_topic
from tests.support.groups.asking import asking, create
from tests.support.groups.single_broker import SETTINGS, SingleBroker, single_broker


class FollowerTwo:
    """Broker 2, in a session with the leader."""

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas
        first = fetch_of(0, replica_id=2, leader_epoch=0).partitions
        session = replicas.fetch_sessions.open(
            monotonic_ms(), first, uses_topic_ids=False, is_privileged=True
        )
        assert session is not None
        self.session: FetchSession = session

    def names(self, offset: int) -> None:
        [asked] = fetch_of(offset, replica_id=2, leader_epoch=0).partitions
        assert self.replicas.fetch_sessions.change(self.session, [asked], [])

    def spec(self, max_wait_ms: int) -> FetchSpec:
        candidates = self.session.candidates(monotonic_ms())
        return replace(
            fetch_of(0, replica_id=2, max_wait_ms=max_wait_ms),
            partitions=[one.fetch for one in candidates],
            session=self.session,
        )

    async def fetch(self, max_wait_ms: int = 0) -> list[FetchedPartition]:
        fetched = fetch_from(self.replicas, self.spec(max_wait_ms))
        return await fetched if isinstance(fetched, asyncio.Future) else fetched


async def test_a_follower_acknowledges_by_naming_and_learns_of_commits(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        follower = FollowerTwo(replicas)
        assert [one.high_watermark for one in await follower.fetch()] == [0]
        produced = append_to(replicas, AT, BATCH, acks=-1, timeout_ms=1000)
        assert size(await follower.fetch()) == len(BATCH)
        assert not produced.done()
        assert size(await follower.fetch()) == len(BATCH)  # not named: it has not taken them
        follower.names(1)
        [told] = await follower.fetch()
        assert produced.done()
        assert (told.high_watermark, list(told.records)) == (1, [])
        assert await follower.fetch() == []
        assert await follower.fetch(max_wait_ms=1) == []


async def test_a_follower_that_waits_gets_the_batch_that_is_appended(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        follower = FollowerTwo(replicas)
        await follower.fetch()
        for offset in range(3):
            waiting = asyncio.ensure_future(follower.fetch(max_wait_ms=60_000))
            await asyncio.sleep(0)
            append(replicas)
            [told] = await waiting
            assert (len(told.records), told.high_watermark) == (1, offset)
            follower.names(offset + 1)


async def test_now_and_then_a_follower_counts_without_naming_anything(tmp_path: Path) -> None:
    """Whether it may join the ISR depends on the controller's answers, too."""

    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        follower = FollowerTwo(replicas)
        await follower.fetch()
        seen: list[Offset] = []
        judge = PartitionDriver.judge_follower_fetch

        def noting(
            self: PartitionDriver, now_ms: int, event: events.FollowerFetched
        ) -> AnswerFetch:
            seen.append(event.fetch_offset)
            return judge(self, now_ms, event)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PartitionDriver, "judge_follower_fetch", noting)
            await follower.fetch()
            assert seen == []
            follower.session.swept_ms -= SWEEP_INTERVAL_MS
            await follower.fetch()
            assert seen == [0]


async def test_the_next_fetch_of_a_session_ends_the_one_that_waits_and_one_given_up_leaves_no_trace(
    tmp_path: Path,
) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        follower = FollowerTwo(replicas)
        await follower.fetch()
        first, second = (fetch_from(replicas, follower.spec(60_000)) for _ in range(2))
        assert isinstance(first, asyncio.Future)
        assert isinstance(second, asyncio.Future)
        assert first.result() == []
        append(replicas)
        assert size(await second) == len(BATCH)
        follower.names(1)
        waiting = fetch_from(replicas, follower.spec(60_000))
        assert isinstance(waiting, asyncio.Future)
        waiting.cancel()
        await asyncio.sleep(0)
        assert follower.session.waiting is None
        append(replicas)
        assert size(await follower.fetch()) == len(BATCH)


async def test_a_follower_with_consumers_learns_of_commits_at_once(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        follower = FollowerTwo(replicas)
        await follower.fetch()
        append(replicas)
        assert size(await follower.fetch()) == len(BATCH)
        follower.names(1)  # which commits the record
        spec = replace(follower.spec(60_000), awaits_commits=True)
        [told] = await answered(replicas, spec)
        assert (told.high_watermark, list(told.records)) == (1, [])
        spec = replace(follower.spec(60_000), awaits_commits=True)
        waiting = fetch_from(replicas, spec)
        assert isinstance(waiting, asyncio.Future)  # there is nothing new
        waiting.cancel()


async def answered(replicas: Replicas, spec: FetchSpec) -> list[FetchedPartition]:
    fetched = fetch_from(replicas, spec)
    async with asyncio.timeout(5):
        return await fetched if isinstance(fetched, asyncio.Future) else fetched


async def test_a_follower_that_is_not_in_sync_is_judged_again_and_again(tmp_path: Path) -> None:
    """The controller may have refused it for a reason that is over, without news of the partition.

    One in sync says nothing new by fetching what it has.
    """
    async with one_broker(tmp_path, isr=(1,)) as replicas:
        follower = FollowerTwo(replicas)
        await follower.fetch()
        await follower.fetch()
        assert all(follower.session.unsettled.values())
        assert len(follower.session.restless) == 1
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        follower = FollowerTwo(replicas)
        await follower.fetch()
        assert len(follower.session.restless) == 0


PARTITIONS = 12


async def consuming(broker: SingleBroker, connection: KafkaConnection, count: int) -> Consumer:
    """Return a consumer of all partitions of a new topic."""
    consumer = Consumer(connection, await created(broker, connection, count))
    consumer.positions = dict.fromkeys(range(count), 0)
    return consumer


@pytest.mark.parametrize("version", [7, 12, 13, 17])
async def test_an_answer_tells_what_has_changed(version: int, tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        topic_id = await created(broker, connection, 3)
        consumer = Consumer(connection, topic_id, version)
        consumer.positions = dict.fromkeys(range(3), 0)
        append_to_topic(broker, 1)
        assert sorted(await consumer.fetch()) == [0, 1, 2]  # the first tells everything
        assert consumer.session.session_id > 0
        assert consumer.positions == {0: 0, 1: 1, 2: 0}
        assert await consumer.fetch() == {}
        append_to_topic(broker, 2)
        [told] = (await consumer.fetch()).values()
        assert (told.partition_index, told.high_watermark) == (2, 1)
        assert told.records
        append_to_topic(broker, 0)
        append_to_topic(broker, 2)
        del consumer.positions[0]  # paused: forgotten
        assert list(await consumer.fetch()) == [2]
        consumer.positions[0] = 0
        assert list(await consumer.fetch()) == [0]
        assert len(broker.replicas.fetch_sessions) == 1


async def test_a_first_answer_tells_everything_even_if_it_had_to_wait(tmp_path: Path) -> None:
    """Clients check that the answer to a full fetch is full."""

    async with asking(tmp_path) as (broker, connection):
        consumer = await consuming(broker, connection, 20)
        assert sorted(await consumer.fetch(max_wait_ms=1)) == list(range(20))
        assert await consumer.fetch(max_wait_ms=1) == {}


async def test_records_that_were_not_taken_are_told_again(tmp_path: Path) -> None:
    """A client that stays at its offset without naming it means the records that are there."""

    async with asking(tmp_path) as (broker, connection):
        consumer = await consuming(broker, connection, 2)
        append_to_topic(broker, 0)
        await consumer.fetch()
        consumer.positions[0] = 0
        consumer.session.asked[0] = 0
        for _ in range(3):
            told = await consumer.fetch()
            assert told[0].records
            consumer.positions[0] = consumer.session.asked[0] = 0


async def test_a_full_answer_does_not_keep_the_other_partitions_out(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        consumer = await consuming(broker, connection, 3)
        for index in range(3):
            append_to_topic(broker, index)
            append_to_topic(broker, index)
        seen = []
        for _ in range(6):
            request = consumer.request(max_bytes=1)
            told = consumer.take(await connection.send(request, version=17))
            seen += [index for index, answer in told.items() if answer.records]
        assert seen == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("version", [12, 17])
async def test_a_wait_ends_with_any_partition_of_its_session(version: int, tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        topic_id = await created(broker, connection, 20)
        consumer = Consumer(connection, topic_id, version)
        consumer.positions = dict.fromkeys(range(20), 0)
        await consumer.fetch()
        for index in (3, 19):
            waiting = asyncio.create_task(consumer.fetch(max_wait_ms=2**31 - 1))
            await parked(broker)
            append_to_topic(broker, index)
            assert list(await waiting) == [index]


async def test_a_new_leader_epoch_ends_a_fetch_that_waits_in_a_session(tmp_path: Path) -> None:
    """The session remembers in which epoch was asked (KAFKA-9338)."""

    async with asking(tmp_path) as (broker, connection):
        consumer = Consumer(connection, await created(broker, connection, 20))
        consumer.positions, consumer.leader_epoch = dict.fromkeys(range(20), 0), 0
        await consumer.fetch()
        waiting = asyncio.create_task(consumer.fetch(max_wait_ms=2**31 - 1))
        await parked(broker)
        topic = broker.controller.image.topics[TOPIC]
        newer = replace(topic.partitions[7], leader_epoch=Epoch(1), partition_epoch=Epoch(1))
        partitions = (*topic.partitions[:7], newer, *topic.partitions[8:])
        topics = {**broker.controller.image.topics, TOPIC: replace(topic, partitions=partitions)}
        changed = ClusterDelta(partitions=frozenset({TopicPartition(TOPIC, 7)}))
        broker.controller.publish(changed, topics=topics)
        [told] = (await waiting).values()
        assert told.partition_index == 7
        assert told.error_code == ErrorCode.FENCED_LEADER_EPOCH
        again = await consumer.fetch()  # an error stays until it is asked otherwise
        assert again[7].error_code == ErrorCode.FENCED_LEADER_EPOCH


async def test_a_topic_made_again_is_another_one_for_a_session(tmp_path: Path) -> None:
    """KAFKA-13111: the session names topics by id."""

    async with asking(tmp_path) as (broker, connection):
        consumer = await consuming(broker, connection, 1)
        await consumer.fetch()
        await connection.send(DeleteTopicsRequest(topic_names=[TOPIC], timeout_ms=1000), version=5)
        told = await consumer.fetch()
        assert told[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await created(broker, connection, 1)
        append_to_topic(broker, 0)
        told = await consumer.fetch()
        assert told[0].error_code == ErrorCode.INCONSISTENT_TOPIC_ID
        assert not told[0].records
        anew = Consumer(connection, consumer.topic_id)  # no session has kept the name for this id
        anew.positions = {0: 0}
        assert (await anew.fetch())[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_a_fetch_that_is_behind_another_begins_after_the_call_that_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete, fetch, seen = Fetches._complete, Fetches.fetch, list[str]()

    def noting_end(self: Fetches, delayed: DelayedFetch) -> None:
        seen.append("ends")
        complete(self, delayed)
        seen.append("has ended")

    def noting_begin(self: Fetches, *asked: Any) -> Any:
        seen.append("begins")
        return fetch(self, *asked)

    async with asking(tmp_path) as (broker, connection):
        consumer = await consuming(broker, connection, 1)
        await consumer.fetch()
        monkeypatch.setattr(Fetches, "_complete", noting_end)
        monkeypatch.setattr(Fetches, "fetch", noting_begin)
        first = asyncio.create_task(consumer.fetch(max_wait_ms=10_000))
        behind = FetchRequest(session_epoch=-1, max_wait_ms=0)
        second = asyncio.create_task(connection.send(behind, version=17))
        await parked(broker)
        [accepted] = broker.server._connections
        assert accepted._end > 0  # the second has arrived with the first
        assert seen == ["begins"]
        append_to_topic(broker, 0)
        assert (await first)[0].records
        assert (await second).error_code == 0
    assert seen == ["begins", "ends", "has ended", "begins"]


async def test_a_repeated_fetch_is_renumbered_until_its_topic_is_gone(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        consumer = await consuming(broker, connection, 1)
        fetches = []
        for offset in range(6):
            append_to_topic(broker, 0)
            assert (await consumer.fetch())[0].records
            session = broker.replicas.fetch_sessions.find(consumer.session.session_id)
            assert session is not None
            [partition] = session.partitions.values()
            assert partition.fetch.fetch_offset == offset
            fetches.append(partition.fetch)
        assert fetches[3] is fetches[4] is fetches[5]
        await connection.send(DeleteTopicsRequest(topic_names=[TOPIC], timeout_ms=1000), version=5)
        assert (await consumer.fetch())[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_a_topic_that_is_not_known_yet_is_served_when_it_is(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        known = await create(connection, "known", partitions=1)
        soon = (int.from_bytes(known, "big") + 1).to_bytes(16, "big")
        consumer = Consumer(connection, soon)
        consumer.positions = {0: 0}
        assert (await consumer.fetch())[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert (await consumer.fetch())[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert await created(broker, connection, 1) == soon
        append_to_topic(broker, 0)
        told = await consumer.fetch()
        assert (told[0].error_code, bool(told[0].records)) == (ErrorCode.NONE, True)


async def test_a_session_that_is_not_known_or_missed_a_step_is_refused(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        consumer = await consuming(broker, connection, 1)
        await consumer.fetch()
        session_id = consumer.session.session_id
        for wrong_id, epoch, version, expected in (
            (session_id ^ 1, 1, 17, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
            (session_id, 2, 17, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
            (session_id, 1, 12, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
        ):
            request = FetchRequest(session_id=wrong_id, session_epoch=epoch)
            answer = await connection.send(request, version=version)
            assert (answer.error_code, answer.responses) == (expected, [])
        assert await consumer.fetch() == {}  # none of these harmed it
        final = FetchRequest(session_id=session_id, session_epoch=FINAL_EPOCH)
        assert (await connection.send(final, version=17)).session_id == 0
        late = FetchRequest(session_id=session_id, session_epoch=2)
        answer = await connection.send(late, version=17)
        assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_full_fetch_ends_the_wait_in_the_session_it_replaces(tmp_path: Path) -> None:
    """A follower begins another session on another connection when its partitions change."""

    async with asking(tmp_path) as (broker, connection):
        consumer = await consuming(broker, connection, 2)
        consumer.positions = {0: 0}
        await consumer.fetch()
        waiting = asyncio.create_task(consumer.fetch(max_wait_ms=2**31 - 1))
        await parked(broker)
        other = await KafkaConnection.open("127.0.0.1", broker.port, client_id="other")
        second = Consumer(other, consumer.topic_id)
        second.session = SessionClient(closes=consumer.session.session_id)
        second.positions = {0: 0, 1: 0}
        await second.fetch()
        assert await waiting == {}
        assert len(broker.replicas.fetch_sessions) == 1
        await other.close()


async def test_without_a_slot_a_fetch_is_answered_without_a_session(tmp_path: Path) -> None:
    settings = replace(SETTINGS, max_incremental_fetch_session_cache_slots=1)

    async with single_broker(tmp_path, settings) as broker:
        connection = await KafkaConnection.open("127.0.0.1", broker.port, client_id="test")
        topic_id = await created(broker, connection, 1)
        first, second = Consumer(connection, topic_id), Consumer(connection, topic_id)
        first.positions, second.positions = {0: 0}, {0: 0}
        await first.fetch()
        for _ in range(3):
            append_to_topic(broker, 0)
            assert (await second.fetch())[0].records
            assert second.session.session_id == 0
        assert (await first.fetch())[0].records
        await connection.close()


class Story:
    """A consumer that is moved about at random over what a broker appends; `seed` decides all."""

    def __init__(self, broker: SingleBroker, consumer: Consumer, choose: random.Random) -> None:
        self.broker, self.consumer, self.choose = broker, consumer, choose
        self.appended = [0] * PARTITIONS

    def append_one(self, index: int) -> None:
        append_to_topic(self.broker, index)
        self.appended[index] += 1

    def change(self) -> None:
        """Append, pause, resume or seek."""
        index, positions = self.choose.randrange(PARTITIONS), self.consumer.positions
        match self.choose.randrange(5):
            case 0 | 1:
                self.append_one(index)
            case 2:
                positions.pop(index, None)
            case 3:
                positions.setdefault(index, 0)
            case _:
                positions[index] = self.choose.randint(0, self.appended[index])

    async def fetch(self, max_wait_ms: int) -> None:
        """Fetch; something is appended meanwhile if it waits; an answer may be lost."""
        before = dict(self.consumer.positions)
        request = self.consumer.request(max_wait_ms, self.choose.choice([1, 200, 1_000_000]))
        sending = self.consumer.connection.send(request, version=self.consumer.version)
        answer = asyncio.create_task(sending)
        await asyncio.sleep(0)
        if max_wait_ms:
            self.append_one(self.choose.randrange(PARTITIONS))
        response = await answer
        if self.choose.random() < 0.1:
            self.consumer.session = SessionClient(closes=self.consumer.session.session_id)
            return
        for index, told in self.consumer.take(response).items():
            assert told.error_code == ErrorCode.NONE
            at = TopicPartition(TOPIC, index)
            whole = bytes(read_local(self.broker.replicas, at, before[index], 10**6).records)
            part = told.records or b""
            assert isinstance(part, bytes | memoryview)
            assert whole.startswith(part)


@pytest.mark.parametrize("seed", range(8))
async def test_in_a_session_the_same_is_read_as_without(seed: int, tmp_path: Path) -> None:
    """Whatever is appended, forgotten, asked again, lost or waited for."""
    choose = random.Random(seed)

    async with asking(tmp_path) as (broker, connection):
        topic_id = await created(broker, connection, PARTITIONS)
        consumer = Consumer(connection, topic_id, choose.choice([12, 17]))
        story = Story(broker, consumer, choose)
        for _ in range(60):
            for _ in range(choose.randrange(4)):
                story.change()
            await story.fetch(choose.choice([0, 0, 20]))
        consumer.positions = dict.fromkeys(range(PARTITIONS), 0)
        fetches = 0
        while consumer.positions != dict(enumerate(story.appended)):
            await story.fetch(0)
            fetches += 1
            assert fetches < 1000, "something is never told"
