"""Consumer groups in the event loop: topics, expressions, and targets that a thread makes."""

import asyncio
import errno
import os
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from quorumlog.broker.groups.core.consumer.assignors import ASSIGNORS, assign_uniform
from quorumlog.broker.groups.core.consumer.requests import ConsumerHeartbeat, HeartbeatResult
from quorumlog.broker.groups.core.consumer.topics import InvalidRegularExpression, IsMatch
from quorumlog.broker.groups.io import group_service, topic_expressions
from quorumlog.broker.groups.io.topic_expressions import Re2Matcher, topic_matcher
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, TopicImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition
from tests.support.broker.replicas import image as image_of
from tests.support.groups.consumer.coordination import heartbeat, join
from tests.support.groups.memory_log import World
from tests.support.waiting import until

ID = TopicId(b"i" * 16)
ALONE = image_of(1, 0, 0, (1,), replicas=(1,))


def publish(world: World, partitions: int, name: str = "t") -> None:
    topic = TopicImage(name=name, topic_id=ID, partitions=(ALONE,) * partitions)
    changed = frozenset(TopicPartition(name, index) for index in range(partitions))
    image = ClusterImage(topics={name: topic}, topic_names={ID: name})
    world.service.publish(ClusterDelta(partitions=changed), image)


def publish_names(world: World, names: Sequence[str]) -> None:
    """Show these topics, of one partition each, beside those that were shown before."""
    topics = {
        name: TopicImage(name=name, topic_id=TopicId(name.encode().rjust(16)), partitions=(ALONE,))
        for name in names
    }
    changed = frozenset(TopicPartition(name, 0) for name in names)
    world.service.publish(ClusterDelta(partitions=changed), ClusterImage(topics=topics))


async def beat(world: World, request: ConsumerHeartbeat) -> HeartbeatResult:
    async with asyncio.timeout(5):
        return await world.service.ask(request)


async def test_topics_come_and_grow_and_a_large_target_is_made_by_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[str] = []

    def assign(members: Any, counts: Any) -> Any:
        threads.append(threading.current_thread().name)
        return assign_uniform(members, counts)

    monkeypatch.setitem(ASSIGNORS, "uniform", assign)
    world = World()
    await world.lead()
    publish(world, 3)
    first = await beat(world, join("m"))
    assert (first.member_epoch, len(first.assignment or ())) == (1, 3)
    publish(world, 3000)
    second = await beat(world, heartbeat("m", 1))
    assert (second.member_epoch, len(second.assignment or ())) == (2, 3000)
    assert threads[0] == threading.main_thread().name
    assert threads[1].startswith("group-targets")
    world.service.stop()
    assert world.violations == []


class CountingMatcher:
    """RE2 that notes where names are tried."""

    def __init__(self) -> None:
        self.tried: Counter[str] = Counter()
        self._matcher = Re2Matcher()

    def compile(self, expression: str) -> IsMatch:
        is_match = self._matcher.compile(expression)

        def counted(name: str) -> bool:
            self.tried[threading.current_thread().name.rpartition("_")[0]] += 1
            return is_match(name)

        return counted


async def test_names_are_tried_by_a_thread_but_for_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = CountingMatcher()
    monkeypatch.setattr(group_service, "topic_matcher", lambda: matcher)
    world = World()
    await world.lead()
    publish_names(world, [f"t{number}" for number in range(10_000)])
    joins = [join(member, subscribed_topic_regex="t[0-9]*7", owned=frozenset()) for member in "ab"]
    answers = await asyncio.gather(*(beat(world, request) for request in joins))
    assert [len(answer.assignment or ()) for answer in answers] in ([1000, 0], [500, 500])
    assert matcher.tried == {"group-expressions": 10_000}
    publish_names(world, ["t70007"])  # alone, it is tried at once
    assert matcher.tried == {"group-expressions": 10_000, "": 1}
    publish_names(world, [f"t{number}" for number in range(20_000, 20_017)])
    while matcher.tried["group-expressions"] < 10_017:
        await asyncio.sleep(0)
    assert matcher.tried == {"group-expressions": 10_017, "": 1}
    world.service.stop()
    assert world.violations == []


async def test_a_target_that_fails_is_a_bug_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def assign(members: Any, counts: Any) -> Any:
        raise KeyError("bug")

    monkeypatch.setitem(ASSIGNORS, "uniform", assign)
    world = World()
    await world.lead()
    publish(world, 3000)
    asked = world.service.ask(join("m"))
    await until(lambda: world.violations)
    assert "KeyError" in str(world.violations[0])
    world.service.stop()
    assert (await asked).error_code is ErrorCode.NOT_COORDINATOR


async def test_a_target_that_comes_after_the_end_changes_nothing() -> None:
    world = World()
    await world.lead()
    publish(world, 3000)
    asked = world.service.ask(join("m"))
    world.service.stop()
    assert (await asked).error_code is ErrorCode.NOT_COORDINATOR
    assert world.violations == []


NAMES = "|".join(f"customers-{index * 7919 % 10_000}" for index in range(300))


@pytest.mark.parametrize(
    ("expression", "matching", "other"),
    [
        ("t", "t", "tt"),
        ("(logs|events)-([0-9]+)", "logs-17", "logs-"),
        ("(a+)+$", "a" * 249, "a" * 248 + "b"),
        ("(.?)" * 150, "a" * 150, "a" * 151),
        ("(?i)ORDERS.*", "orders-eu", "other"),
        (r"[\pL]+", "t", "t1"),
        (NAMES, "customers-7919", "customers-"),
    ],
)
def test_a_whole_name_matches(expression: str, matching: str, other: str) -> None:
    is_match = Re2Matcher().compile(expression)
    assert is_match(matching)
    assert not is_match(other)


@pytest.mark.parametrize(
    "expression",
    ["(.?){1000}(.?){1000}(.?){1000}", "(.?)" * 3000, "(?:a?){900}(?:a?){1000}a{1000}", "x" * 2001],
)
def test_an_expression_that_would_hold_up_others_is_refused(expression: str) -> None:
    with pytest.raises(InvalidRegularExpression, match="too large"):
        Re2Matcher().compile(expression)


@pytest.mark.parametrize(
    "expression", ["[", "*", "(?P<x>", "(?=a)", r"(a)\1", "x{1001}", "(((a{100}){100}){100})"]
)
def test_what_is_no_expression_of_re2_is_refused(expression: str) -> None:
    with pytest.raises(InvalidRegularExpression):
        Re2Matcher().compile(expression)


def test_without_the_library_every_expression_is_refused_with_the_extra_that_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic_expressions._library.cache_clear()
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(InvalidRegularExpression, match=r"google-re2: pip install '.*\[re2\]'"):
        topic_matcher().compile("t")


def test_a_library_that_cannot_be_loaded_now_is_loaded_for_a_later_expression(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic_expressions._library.cache_clear()

    class NoHandles:
        def find_spec(self, *_: object) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.delitem(sys.modules, "re2", raising=False)
        patched.setattr(sys, "meta_path", [NoHandles()])
        with pytest.raises(InvalidRegularExpression, match=r"cannot load google-re2: .*Too many"):
            topic_matcher().compile("t")
    assert topic_matcher().compile("t")("t")
