"""Requests to the controller: their form, their limits, and the answers to those that fail."""

from collections.abc import Callable
from typing import Any

import cbor2
import pytest

from quorumlog.metadata_quorum.cbor_values import MalformedValue, from_plain, to_plain
from quorumlog.metadata_quorum.cluster_changes import (
    ConfigChange,
    ConfigChanges,
    ConfigOperation,
    ConfigResult,
    UnregisterBroker,
)
from quorumlog.metadata_quorum.controller import assignments
from quorumlog.metadata_quorum.controller.refusals import failure_response
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    ElectionResult,
    NewPartitions,
    NewTopic,
    QuorumDescription,
    QuorumReplica,
)
from quorumlog.metadata_quorum.controller_requests import (
    AllocateProducerIds,
    AlterConfigs,
    AlterPartitions,
    ConfigResults,
    ControllerRequest,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    DescribeQuorum,
    ElectionResults,
    ElectLeaders,
    FindTopics,
)
from quorumlog.metadata_quorum.io.rpc import CONTROLLER_RPCS
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset, TopicId
from tests.support.metadata_quorum.controllers import Bench, ids

REPLICA = QuorumReplica(replica_id=BrokerId(1), log_end_offset=Offset(7), last_fetch_ms=5)
CHANGES = (
    ConfigChange(name="retention.ms", value="5"),
    ConfigChange(name="flush.ms", operation=ConfigOperation.DELETE),
    ConfigChange(name="cleanup.policy", value="compact", operation=ConfigOperation.APPEND),
)
SENT = [
    FindTopics(names=("t", "u")),
    DeleteTopics(topic_ids=(TopicId(b"i" * 16),)),
    CreatePartitions(
        topics=(
            NewPartitions(name="t", count=3),
            NewPartitions(name="u", count=2, assignments=(ids(1, 2), ())),
            NewPartitions(name="v", count=2, assignments=()),
        ),
        validate_only=True,
    ),
    AlterConfigs(topics=(ConfigChanges(name="t", changes=CHANGES, replaces_all=True),)),
    ConfigResults(
        results=(
            ConfigResult(name="t", error_code=ErrorCode.NONE, configs={"flush.ms": "1"}),
            ConfigResult(name="u", error_code=ErrorCode.INVALID_CONFIG, error_message="no"),
        )
    ),
    ElectLeaders(partitions=(("t", 0), ("t", 1)), unclean=True),
    ElectionResults(
        results=(
            ElectionResult(
                topic="t", partition=0, error_code=ErrorCode.NONE, leader_epoch=Epoch(4)
            ),
        )
    ),
    DescribeQuorum(),
    QuorumDescription(
        leader_id=BrokerId(1),
        leader_epoch=Epoch(2),
        high_watermark=Offset(6),
        voters=(REPLICA,),
        observers=(),
        voter_addresses={BrokerId(1): "localhost:9093"},
    ),
]


@pytest.mark.parametrize("sent", SENT, ids=lambda sent: type(sent).__name__)
def test_it_arrives_as_it_was_sent(sent: object) -> None:
    assert any(type(sent) in kinds for kinds in CONTROLLER_RPCS.values())
    assert from_plain(type(sent), cbor2.loads(cbor2.dumps(to_plain(sent)))) == sent


def test_an_operation_that_does_not_exist_is_malformed() -> None:
    plain = {"topics": [{"name": "t", "changes": [{"name": "flush.ms", "operation": 9}]}]}
    with pytest.raises(MalformedValue, match="9 is not a valid ConfigOperation"):
        from_plain(AlterConfigs, plain)


# --- a request that the controller cannot decide ---


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (CreateTopics(topics=(NewTopic(name="t"), NewTopic(name="u"))), ["t", "u"]),
        (FindTopics(names=("t", "u")), ["t", "u"]),
        (DeleteTopics(topic_ids=(TopicId(b"i" * 16), TopicId(b"j" * 16))), [b"i" * 16, b"j" * 16]),
        (CreatePartitions(topics=(NewPartitions(name="t", count=2),)), ["t"]),
        (AlterConfigs(topics=(ConfigChanges(name="t", changes=()),)), ["t"]),
        (ElectLeaders(partitions=(("t", 0), ("u", 1)), unclean=False), [("t", 0), ("u", 1)]),
        (UnregisterBroker(broker_id=BrokerId(1)), [None]),
    ],
    ids=lambda given: type(given).__name__,
)
def test_each_thing_that_a_failed_request_names_has_its_result(
    request_: ControllerRequest, named: list[object]
) -> None:
    response: Any = failure_response(request_)
    assert {result.error_code for result in response.results} == {ErrorCode.UNKNOWN_SERVER_ERROR}
    if isinstance(request_, DeleteTopics):
        found = [result.topic_id for result in response.results]
    elif isinstance(request_, ElectLeaders):
        found = [(result.topic, result.partition) for result in response.results]
    else:
        found = [getattr(result, "name", None) for result in response.results]
    assert found == named


@pytest.mark.parametrize(
    "request_",
    [
        AlterPartitions(broker_id=BrokerId(1), broker_epoch=1, proposals=()),
        AllocateProducerIds(broker_id=BrokerId(1), broker_epoch=1),
        BrokerHeartbeat(broker_id=BrokerId(1), broker_epoch=1, metadata_offset=1),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_failed_request_of_a_broker_is_refused_as_a_whole(request_: ControllerRequest) -> None:
    response: Any = failure_response(request_)
    assert response.error_code is ErrorCode.UNKNOWN_SERVER_ERROR


# --- no request of a user keeps the controller busy: its work is linear, and has a limit ---


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


def counted(count: int) -> list[CountedName]:
    return [CountedName(f"t{number}") for number in range(count)]


def creation(count: int) -> CreateTopics:
    return CreateTopics(topics=tuple(NewTopic(name=one, partitions=0) for one in counted(count)))


def deletion(count: int) -> DeleteTopics:
    ids = (TopicId(CountedId(number.to_bytes(16, "big"))) for number in range(count))
    return DeleteTopics(topic_ids=tuple(ids))


def growth(count: int) -> CreatePartitions:
    topics = (NewPartitions(name=name, count=0) for name in counted(count))
    return CreatePartitions(topics=tuple(topics))


def search(count: int) -> FindTopics:
    return FindTopics(names=tuple(counted(count)))


@pytest.mark.parametrize("request_of", [creation, search, deletion, growth])
def test_the_work_is_linear_in_what_a_request_names_and_has_a_limit(
    request_of: Callable[[int], ControllerRequest],
) -> None:
    count = 1000
    request = request_of(count)
    CountedName.comparisons = 0
    assert len(Bench().codes(request)) == count
    assert CountedName.comparisons < 20 * count
    refused = Bench().outcomes(request_of(LIMIT + 1))
    assert [code for code, _ in refused] == ["POLICY_VIOLATION"] * (LIMIT + 1)
    assert "at most 10000 topics" in refused[0][1]


def test_topics_that_need_too_many_partitions_together_are_refused_before_any_is_placed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else each of very many topics would be placed in full, only to be refused."""
    bench = Bench().start(1, 2, 3)
    with monkeypatch.context() as patched:
        patched.setattr(assignments, "place_replicas", None)
        topics = tuple(NewTopic(name=f"t{number}", partitions=5001) for number in range(2))
        for asked in (topics, (*topics, NewTopic(name="small"))):
            assert {*bench.codes(CreateTopics(topics=asked))} == {"POLICY_VIOLATION"}
    # 10 003 records: the last topic has no room.
    topics = tuple(NewTopic(name=f"t{n}", partitions=n) for n in (5000, 4990, 10))
    bench.ask(CreateTopics(topics=topics))
    assert {*bench.controller.cluster.topic_names()} == {"t5000", "t4990"}


def test_a_deleted_topic_takes_only_its_own_changes_along() -> None:
    bench = Bench().start(1, 2, 3)
    for number in range(3):
        bench.create(NewTopic(name=f"t{number}", partitions=3))
    bench.ask(DeleteTopics(topic_ids=(bench.topic_id("t1"),)))
    delta, image = bench.controller.cluster.publish(
        end_offset=bench.controller.cluster.end_offset, epoch=Epoch(1), controller_id=BrokerId(1)
    )
    assert {at.topic for at in delta.partitions} == {"t0", "t2"} == {*image.topics}
