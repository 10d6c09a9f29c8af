"""What a client waits for in vain is in its log once it lasts, rarely again, and when it ends."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from quorumlog.client import Consumer, KafkaError, Producer
from quorumlog.client.core import absences, waits
from quorumlog.client.core.absences import (
    CLUSTER,
    GAP_MS,
    NAMED_MAX,
    REPORT_AFTER_MS,
    REPORT_AGAIN_MS,
    Absences,
    Subject,
    is_missing,
    missing_partitions,
    missing_topics,
)
from quorumlog.client.core.metadata_cache import Leader, MetadataCache
from quorumlog.client.core.waits import NEEDS_CONTROLLER, OVERDUE_AFTER_MS, Attempt, Wait, Waits
from quorumlog.client.io import cluster as cluster_module
from quorumlog.client.io.lookout import Lookout
from quorumlog.client.settings import ConsumerOptions
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages import APIS
from quorumlog.wire.codec.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from quorumlog.wire.codec.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.support.client.fake_cluster import METADATA, PRODUCE, T, fake_cluster
from tests.support.client.fake_group import FIND
from tests.support.client.opened import consuming, in_group, producing
from tests.support.client.refusals import refused

GONE: dict[Subject, str] = {CLUSTER: "refused"}


def texts(absences: Absences, now_ms: float, causes: dict[Subject, str]) -> list[str]:
    return [notice.text for notice in absences.step(now_ms, causes)]


def test_neither_a_failover_nor_two_blips_are_worth_a_word() -> None:
    absences = Absences()
    assert texts(absences, 0, GONE) == []
    assert texts(absences, REPORT_AFTER_MS - 1, GONE) == []
    assert texts(absences, REPORT_AFTER_MS, {}) == []
    absences = Absences()
    assert texts(absences, 0, GONE) == []
    assert texts(absences, GAP_MS + 1, GONE) == []  # without a look in between


def test_what_lasts_is_said_once_and_rarely_again() -> None:
    absences, said = Absences(), []
    for now_ms in range(0, 2 * REPORT_AGAIN_MS, 100):
        said += [(now_ms, text) for text in texts(absences, now_ms, GONE)]
    first, second = REPORT_AFTER_MS, REPORT_AFTER_MS + REPORT_AGAIN_MS
    assert said == [
        (first, "the cluster: refused (for 3 s)"),
        (second, "the cluster: refused (for 63 s)"),
    ]
    over = absences.step(2 * REPORT_AGAIN_MS, {})
    assert [(notice.text, notice.is_over) for notice in over] == [("the cluster: found", True)]
    assert texts(absences, 2 * REPORT_AGAIN_MS + 1, {}) == []


def test_many_of_one_cause_are_one_line() -> None:
    absences = Absences()
    causes: dict[Subject, str] = {TopicPartition("t", index): "no leader" for index in range(100)}
    absences.step(0, causes)
    (line,) = texts(absences, REPORT_AFTER_MS, causes)
    more = 100 - NAMED_MAX
    assert line == f"t-0, t-1, t-2, t-3, t-4 and {more} more: no leader (for 3 s)"
    causes[TopicPartition("u", 0)] = "no leader"  # a late one is named with the others
    absences.step(REPORT_AFTER_MS + 1, causes)
    (line,) = texts(absences, 2 * REPORT_AFTER_MS + 1, causes)
    assert f"and {more + 1} more" in line


def metadata() -> MetadataCache:
    cache = MetadataCache()
    led = MetadataResponsePartition(partition_index=0, leader_id=1, leader_epoch=0)
    leaderless = MetadataResponsePartition(partition_index=1, leader_id=-1, leader_epoch=3)
    topics = [
        MetadataResponseTopic(name="t", partitions=[led, leaderless]),
        MetadataResponseTopic(name="no", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        MetadataResponseTopic(name="shy", error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ]
    brokers = [MetadataResponseBroker(node_id=1, host="h", port=1)]
    cache.update(MetadataResponse(brokers=brokers, topics=topics))
    return cache


def test_what_the_metadata_lacks_is_named_with_its_cause() -> None:
    assert missing_topics(metadata(), ["t", "no", "shy", "not asked for yet"]) == {
        "topic 'no'": "does not exist",
        "topic 'shy'": "TOPIC_AUTHORIZATION_FAILED",
    }
    named = [TopicPartition("t", index) for index in range(3)]
    named += [TopicPartition(topic, 0) for topic in ("no", "shy", "not asked for yet")]
    cache = metadata()
    assert missing_partitions(cache, named) == {
        TopicPartition("t", 1): "no broker leads it",
        TopicPartition("t", 2): "t has 2 partitions, counted from 0",
        TopicPartition("no", 0): "topic 'no' does not exist",
        TopicPartition("shy", 0): "TOPIC_AUTHORIZATION_FAILED",
    }
    assert [is_missing(cache, name) for name in named] == [False, False, True, True, False, False]


def waits_told(of: Waits, now_ms: float) -> list[str]:
    return [notice.text for notice in of.step(now_ms)]


def opened(of: Waits, now_ms: float, subject: str | None = None) -> Wait:
    wait = Wait(subject, now_ms)
    of.begin(wait)
    return wait


def sent(wait: Wait, now_ms: float, api: str = "ListGroups", expected_ms: float = 0) -> Attempt:
    attempt = Attempt(
        api=api, began_ms=now_ms, expected_ms=expected_ms, broker="broker 1 at h:1", is_sent=True
    )
    wait.begin(attempt)
    return attempt


def test_a_request_without_an_answer_is_reported_after_three_seconds_and_rarely_again() -> None:
    of, said = Waits(), []
    wait = opened(of, 0)
    sent(wait, 0)
    for now_ms in range(0, 2 * REPORT_AGAIN_MS, 500):
        said += [(now_ms, text) for text in waits_told(of, now_ms)]
    text = "broker 1 at h:1 does not answer ListGroups"
    assert REPORT_AFTER_MS == 3_000
    assert said == [(3_000, f"{text} (for 3 s)"), (63_000, f"{text} (for 63 s)")]
    over = of.end(wait, is_answered=True)
    assert [(one.text, one.is_over) for one in over] == [("ListGroups: answered", True)]


def test_fast_failures_are_one_wait_and_a_wait_by_its_own_terms_is_no_news() -> None:
    of = Waits()
    wait = opened(of, 0, "a producer id")
    for now_ms in range(0, REPORT_AFTER_MS, 100):
        attempt = sent(wait, now_ms, "InitProducerId")
        assert waits_told(of, now_ms) == []
        wait.end(attempt)
        wait.fail("COORDINATOR_LOAD_IN_PROGRESS")
    expected = "a producer id: COORDINATOR_LOAD_IN_PROGRESS (for 3 s)"
    assert waits_told(of, REPORT_AFTER_MS) == [expected]
    of = Waits()
    sent(opened(of, 0), 0, "JoinGroup", expected_ms=10_000)
    assert waits_told(of, 10_000) == []
    assert of.next_ms(10_000) == 10_000 + waits.RECHECK_MS
    assert waits_told(of, 10_000 + OVERDUE_AFTER_MS) != []


def test_waits_for_the_same_end_together_and_one_that_gives_up_has_no_answer() -> None:
    of = Waits()
    first, second = opened(of, 0), opened(of, 10)
    sent(first, 0)
    sent(second, 10)
    assert len(waits_told(of, REPORT_AFTER_MS)) == 1
    assert waits_told(of, REPORT_AFTER_MS + 10) == []
    assert of.end(first, is_answered=True) == []
    assert len(of.end(second, is_answered=True)) == 1
    of = Waits()
    wait = opened(of, 0)
    sent(wait, 0)
    assert len(waits_told(of, REPORT_AFTER_MS)) == 1
    assert of.end(wait, is_answered=False) == []
    assert of.next_ms(REPORT_AFTER_MS) == float("inf")


@pytest.mark.parametrize(
    ("broker", "is_sent", "api", "expected"),
    [
        (None, False, "ListGroups", "no broker accepts a connection for ListGroups"),
        ("broker 2", False, "ListGroups", "broker 2 does not answer a connection attempt"),
        ("broker 2", True, "ListGroups", "broker 2 does not answer ListGroups"),
        (
            "broker 2",
            True,
            "CreateTopics",
            "broker 2 does not answer CreateTopics, for which it needs the active controller",
        ),
    ],
)
def test_the_cause_tells_its_progress(
    broker: str | None, is_sent: bool, api: str, expected: str
) -> None:
    attempt = Attempt(api=api, began_ms=0, broker=broker, is_sent=is_sent)
    assert attempt.lack() == expected


def test_the_requests_that_need_the_controller_are_apis() -> None:
    assert {api.name for api in APIS.values()} >= NEEDS_CONTROLLER


LOGGER = "quorumlog.client.io.lookout"
EARLY: ConsumerOptions = {"auto_offset_reset": "earliest", "client_id": "me"}
HASTY: ConsumerOptions = {**EARLY, "default_api_timeout_ms": 50}
GROUP: ConsumerOptions = {**HASTY, "group_id": "g"}
Said = Callable[[str], Awaitable[None]]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Said:
    """Wait until the log has a line with this text."""
    monkeypatch.setattr(absences, "REPORT_AFTER_MS", 1)
    caplog.set_level(logging.INFO, LOGGER)

    async def wait(text: str) -> None:
        while not any(text in record.getMessage() for record in caplog.records):
            await asyncio.sleep(0.001)

    return wait


async def polled(consumer: Consumer, waiting: Awaitable[None]) -> None:
    """Poll until `waiting` is done."""
    task = asyncio.ensure_future(waiting)
    while not task.done():
        await consumer.poll(1)
    await task


async def poll_on(consumer: Consumer) -> None:
    while True:
        await consumer.poll(10)


async def test_dead_brokers_are_named_once(said: Said, caplog: pytest.LogCaptureFixture) -> None:
    async with consuming(**EARLY) as (cluster, consumer):
        consumer.assign([T])
        await consumer.position(T)
        await cluster.kill(1, 2)
        await polled(consumer, said("me: the cluster: no broker answers: 127.0.0.1"))
        assert "connection refused: no process listens there" in caplog.text
        await cluster.start(1)
        await polled(consumer, said("me: the cluster: found"))
        assert caplog.text.count("no broker answers") == 1


async def test_a_partition_without_a_leader_is_said_by_who_waits_for_it(said: Said) -> None:
    async with producing(client_id="sender", linger_ms=0) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.leaders[T] = Leader(-1, 1)
        await cluster.kill(1)
        delivery = await producer.send("t", b"1")
        await said("sender: t-0: no broker leads it")
        cluster.leaders[T] = Leader(2, 2)
        await delivery
        await said("sender: t-0: found")


async def test_a_leader_that_cannot_be_reached_is_said(said: Said) -> None:
    async with consuming(**EARLY) as (cluster, consumer):
        consumer.assign([T])
        await consumer.position(T)
        await cluster.kill(1)
        text = "me: t-0: its leader, broker 1, cannot be reached: 127.0.0.1"
        await polled(consumer, said(text))


async def test_a_leader_that_refuses_to_be_read_is_said(said: Said) -> None:
    async with consuming(**EARLY) as (cluster, consumer):
        cluster.fault = lambda _, api: ErrorCode.KAFKA_STORAGE_ERROR if api == 1 else None
        consumer.assign([T])
        await polled(consumer, said("me: t-0: its leader refuses to be read: KAFKA_STORAGE_ERROR"))
        cluster.fault = lambda _, __: None
        await polled(consumer, said("me: t-0: found"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (TopicPartition("typo", 0), "typo-0: topic 'typo' does not exist"),
        (TopicPartition("t", 7), "t-7: t has 1 partitions, counted from 0"),
    ],
)
async def test_an_assigned_partition_that_does_not_exist_is_said_and_raised(
    said: Said, name: TopicPartition, text: str
) -> None:
    async with consuming(**HASTY) as (cluster, consumer):
        consumer.assign([name, T])
        await said(text)
        for _ in range(2):  # as long as it lasts
            with refused(
                f"{name} does not exist", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, definite=True
            ):
                await poll_on(consumer)
        cluster.topics[name.topic] = 8
        await said(f"{name}: found")


async def test_a_subscribed_topic_that_does_not_exist_is_waited_for(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "MISSING_TOPIC_REFRESH_MS", 1)

    async with in_group(**GROUP) as (cluster, consumer):
        consumer.subscribe(["later"])
        await polled(consumer, said("topic 'later': does not exist"))
        cluster.topics["later"] = 1
        await polled(consumer, said("topic 'later': found"))
        while not consumer.assignment():
            await consumer.poll(1)


async def test_a_missing_coordinator_is_said(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_group(**GROUP) as (cluster, consumer):
        find = cluster.find

        def lost(request: object) -> object:
            answer = find(request)
            answer.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            return answer

        monkeypatch.setattr(cluster, "find", lost)
        consumer.subscribe(["t"])
        await polled(consumer, said("the coordinator of group g: COORDINATOR_NOT_AVAILABLE"))
        monkeypatch.setattr(cluster, "find", find)
        await polled(consumer, said("the coordinator of group g: found"))
        assert FIND in {api for _, api in cluster.asked}


async def test_asking_for_a_topic_that_does_not_exist_creates_none_and_ends_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_module, "UNKNOWN_TOPIC_MS", 20)

    async with asyncio.timeout(20), fake_cluster() as cluster:
        creations = []
        answer = cluster.metadata

        def metadata(request: object) -> object:
            creations.append(request.allow_auto_topic_creation)  # type: ignore[attr-defined]
            return answer(request)

        monkeypatch.setattr(cluster, "metadata", metadata)
        async with Consumer(cluster.bootstrap, **EARLY) as consumer:
            for question in (
                consumer.partitions_for("typo"),
                consumer.end_offsets([TopicPartition("typo", 0)]),
            ):
                with refused(
                    r"'typo'.* it does not exist", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                ):
                    await question
            with pytest.raises(KafkaError, match="t has 1 partitions, counted from 0: no 7"):
                await consumer.beginning_offsets([TopicPartition("t", 7)])
        assert METADATA in {api for _, api in cluster.asked}
        assert not any(creations)
        creations.clear()
        async with Producer(cluster.bootstrap, max_block_ms=50) as producer:
            with pytest.raises(KafkaError, match="typo"):
                await producer.send("typo", b"")
        assert all(creations)


async def test_a_new_topic_is_waited_for_a_moment() -> None:
    async with consuming(**EARLY) as (cluster, consumer):
        asked = asyncio.ensure_future(consumer.partitions_for("new"))
        while len([1 for _, api in cluster.asked if api == METADATA]) < 3:
            await asyncio.sleep(0.001)
        cluster.topics["new"] = 2
        assert await asked == [0, 1]


async def test_a_silent_cluster_does_not_make_what_is_missing_seem_found(
    said: Said, caplog: pytest.LogCaptureFixture
) -> None:
    async with consuming(**EARLY) as (cluster, consumer):
        consumer.assign([T, TopicPartition("typo", 0)])
        await consumer.position(T)
        await polled(consumer, said("typo-0: topic 'typo' does not exist"))
        await cluster.kill(1, 2)
        await polled(consumer, said("the cluster: no broker answers"))
        await cluster.start(1)
        await polled(consumer, said("the cluster: found"))
        assert "typo-0: found" not in caplog.text


async def test_records_that_a_leader_refuses_are_said(said: Said) -> None:
    async with producing() as (cluster, producer):
        few = ErrorCode.NOT_ENOUGH_REPLICAS
        cluster.fault = lambda _, api: few if api == PRODUCE else None
        delivery = await producer.send("t", b"")
        await said("t-0: its leader does not take records: NOT_ENOUGH_REPLICAS")
        cluster.fault = lambda _, __: None
        await delivery
        await said("t-0: found")


async def test_a_position_that_a_leader_does_not_return_is_said(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with consuming(default_api_timeout_ms=5_000) as (cluster, consumer):
        one = ListOffsetsPartitionResponse(
            partition_index=0, error_code=ErrorCode.OFFSET_NOT_AVAILABLE
        )
        topic = ListOffsetsTopicResponse(name="t", partitions=[one])
        refused = ListOffsetsResponse(topics=[topic])
        monkeypatch.setattr(cluster, "list_offsets", lambda _: refused)
        consumer.assign([T])
        await said("t-0: its leader returns no offset: OFFSET_NOT_AVAILABLE")
        asked = asyncio.ensure_future(consumer.end_offsets([T]))
        await said("ListOffsets: t-0: OFFSET_NOT_AVAILABLE")
        asked.cancel()


@pytest.mark.jumping_time
@pytest.mark.parametrize("is_stale", [False, True], ids=["metadata", "stale metadata"])
async def test_a_due_time_that_is_rounded_down_is_not_awaited_for_ever(*, is_stale: bool) -> None:
    """1028.3474765220063 s are a bit less than 1,028,347.4765220063 ms in floating point."""
    due_ms = 1_028_347.4765220063
    assert due_ms / 1000 * 1000 < due_ms
    loop = asyncio.get_running_loop()
    await asyncio.sleep((due_ms - REPORT_AFTER_MS) / 1000)
    lookout = Lookout("me", MetadataCache(), why_failing=lambda _: None, why_unheard=lambda _: None)
    if is_stale:  # then no wait is reported
        lookout._why_silent = due_ms, "refused"
    wait = Wait("an answer", due_ms - REPORT_AFTER_MS)
    wait.fail("refused")
    lookout._waits.begin(wait)
    lookout._set_timer()
    await asyncio.sleep(REPORT_AFTER_MS / 1000 + 1)  # JumpingSelector: time must not stand still
    assert wait.reported_ms == (None if is_stale else pytest.approx(due_ms))
    lookout.end(wait, is_answered=True)
    lookout.close()
    assert loop.time() > due_ms / 1000
