"""No request of a user keeps the controller busy: its work is linear, and has a limit."""

from collections.abc import Callable

import pytest

from quorumlog.metadata_quorum.controller.placement import place_replicas
from quorumlog.metadata_quorum.controller.requests import (
    ControllerRequest,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    FindTopics,
)
from quorumlog.metadata_quorum.controller_client import NewPartitions, NewTopic
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, TopicId
from tests.support.metadata_quorum.controllers import Bench, ids

LIMIT = 10_000


class CountedName(str):
    """Counts how often names are compared: a dict compares what collides, a scan compares all."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedName.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


class CountedId(bytes):
    """Does the same for ids."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        CountedName.comparisons += 1
        return bytes.__eq__(self, other)

    __hash__ = bytes.__hash__


def topic_id(number: int) -> TopicId:
    return TopicId(CountedId(number.to_bytes(16, "big")))


def creation(count: int) -> CreateTopics:
    names = [CountedName(f"t{i}") for i in range(count)]
    return CreateTopics(topics=tuple(NewTopic(name=name, partitions=0) for name in names))


def finding(count: int) -> FindTopics:
    return FindTopics(names=tuple(CountedName(f"t{i}") for i in range(count)))


def deletion(count: int) -> DeleteTopics:
    return DeleteTopics(topic_ids=tuple(map(topic_id, range(count))))


def growth(count: int) -> CreatePartitions:
    names = [CountedName(f"t{i}") for i in range(count)]
    return CreatePartitions(topics=tuple(NewPartitions(name=name, count=0) for name in names))


REQUESTS: list[Callable[[int], ControllerRequest]] = [creation, finding, deletion, growth]


@pytest.mark.parametrize("request_of", REQUESTS)
def test_the_work_is_linear_in_what_a_request_names(
    request_of: Callable[[int], ControllerRequest],
) -> None:
    bench, count = Bench(), 1000
    request = request_of(count)
    CountedName.comparisons = 0
    response = bench.ask(request)
    assert len(response.results) == count
    assert CountedName.comparisons < 20 * count


@pytest.mark.parametrize("request_of", REQUESTS)
def test_a_request_that_names_too_many_is_refused_whole(
    request_of: Callable[[int], ControllerRequest],
) -> None:
    response = Bench().ask(request_of(LIMIT + 1))
    assert len(response.results) == LIMIT + 1
    assert {result.error_code for result in response.results} == {ErrorCode.POLICY_VIOLATION}
    assert "at most 10000 topics" in (response.results[0].error_message or "")


def test_topics_that_need_too_many_partitions_together_are_refused_before_any_is_placed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else each of very many topics would be placed in full, only to be refused."""
    placed = []

    def count_and_place(*brokers: object, **counts: int) -> object:
        placed.append(counts["partitions"])
        return place_replicas(*brokers, **counts)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(
        "quorumlog.metadata_quorum.controller.assignments.place_replicas", count_and_place
    )
    bench = Bench().start(1, 2, 3)
    topics = tuple(NewTopic(name=f"t{i}", partitions=5001) for i in range(2))
    for asked in (topics, (*topics, NewTopic(name="small"))):
        response = bench.ask(CreateTopics(topics=asked))
        assert {result.error_code for result in response.results} == {ErrorCode.POLICY_VIOLATION}
    assert placed == []


def test_manual_assignments_count_as_partitions() -> None:
    bench = Bench().start(1)
    many = NewTopic(name="t", assignments={i: ids(1) for i in range(LIMIT + 1)})
    assert bench.create(many).error_code is ErrorCode.POLICY_VIOLATION


def test_a_deleted_topic_takes_only_its_own_changes_along() -> None:
    bench = Bench().start(1, 2, 3)
    for number in range(3):
        bench.create(NewTopic(name=f"t{number}", partitions=3))
    gone = bench.topic_id("t1")
    bench.ask(DeleteTopics(topic_ids=(gone,)))
    delta, image = bench.controller.cluster.publish(
        end_offset=bench.controller.cluster.end_offset, epoch=Epoch(1), controller_id=BrokerId(1)
    )
    assert {at.topic for at in delta.partitions} == {"t0", "t2"} == {*image.topics}
