"""Requests that wait for an image, or for this broker to lead, continue at once, not by a timer."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from quorumlog.broker.controller_requests.image_watch import SEEN_HERE_MS, ImageWatch
from quorumlog.broker.responses.controller_answers import decided
from quorumlog.metadata_quorum.controller_client import TopicResult
from quorumlog.metadata_quorum.controller_requests import CreateTopics, TopicResults
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, TopicImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, TopicId, TopicPartition
from tests.support.broker.replicas import image
from tests.support.waiting import loop_turns

AT = TopicPartition("t", 0)
OTHER = ClusterImage(topic_names={TopicId(b"o" * 16): "other"})
AWAITED = ClusterImage(topic_names={TopicId(b"t" * 16): AT.topic})


def is_named(image: ClusterImage) -> bool:
    return AT.topic in image.topic_names.values()


def waiting(watch: ImageWatch, *, leads: bool = False) -> "asyncio.Task[bool]":
    partitions = [AT] if leads else []
    waits = watch.wait_until(is_named, timeout_ms=10_000, leaders_of=lambda _: partitions)
    return asyncio.ensure_future(waits)


@pytest.mark.jumping_time
async def test_all_requests_continue_with_the_image_of_their_change() -> None:
    watch, loop = ImageWatch(), asyncio.get_running_loop()
    first, second = waiting(watch), waiting(watch)
    for other in (OTHER, ClusterImage()):  # others' changes, which do not end the wait
        await loop_turns(5)
        watch.publish(ClusterDelta(), other)
    await loop_turns(5)
    assert not first.done()
    watch.publish(ClusterDelta(), AWAITED)
    assert all(await asyncio.gather(first, second))
    assert loop.time() == 0
    assert not watch._waiting


@pytest.mark.jumping_time
@pytest.mark.parametrize("begins_to_lead", [True, False])
async def test_a_request_continues_when_its_leader_leads_or_after_a_second(
    begins_to_lead: bool,
) -> None:
    to_lead, loop = {AT}, asyncio.get_running_loop()
    watch = ImageWatch(to_lead.__contains__)
    watch.publish(ClusterDelta(), AWAITED)
    request = waiting(watch, leads=True)
    await loop_turns(5)
    watch.became_leader(TopicPartition("other", 0), Epoch(1))
    await loop_turns(5)
    assert not request.done()
    if begins_to_lead:
        to_lead.clear()
        watch.became_leader(AT, Epoch(1))
    assert await request
    assert loop.time() == (0 if begins_to_lead else SEEN_HERE_MS / 1000)


@pytest.mark.jumping_time
async def test_a_request_without_its_change_ends_after_its_timeout() -> None:
    watch, loop = ImageWatch(), asyncio.get_running_loop()
    watch.publish(ClusterDelta(), OTHER)
    assert not await waiting(watch)
    assert loop.time() == 10
    assert not watch._waiting


@pytest.mark.jumping_time
@pytest.mark.parametrize(
    ("error_code", "wait_s"),
    [(ErrorCode.NONE, SEEN_HERE_MS / 1000), (ErrorCode.TOPIC_ALREADY_EXISTS, 0)],
)
async def test_only_a_change_waits_for_the_leaders_of_its_partitions(
    error_code: ErrorCode, wait_s: float
) -> None:
    topic = TopicImage(
        name=AT.topic, topic_id=TopicId(b"t" * 16), partitions=(image(1, 0, 0, (1,)),)
    )
    watch = ImageWatch({AT}.__contains__)
    watch.publish(ClusterDelta(), ClusterImage(topics={AT.topic: topic}))
    result = TopicResult(name=AT.topic, error_code=error_code)

    async def answer(_: object) -> TopicResults:
        return TopicResults(results=(result,))

    context: Any = SimpleNamespace(metadata=watch, controller=SimpleNamespace(ask=answer))
    results = await decided(
        context,
        CreateTopics(topics=()),
        names=[AT.topic],
        kind=TopicResult,
        doubt="",
        is_seen=lambda image, one: one.name in image.topics,
        wait_ms=10_000,
        makes_partitions=True,
    )
    assert results == (result,)
    assert asyncio.get_running_loop().time() == wait_s
