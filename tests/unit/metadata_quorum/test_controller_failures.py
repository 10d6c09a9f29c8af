"""A request that the controller cannot decide has an answer of its own kind."""

import pytest

from quorumlog.metadata_quorum.config_changes import ConfigChanges
from quorumlog.metadata_quorum.controller.failures import failure_response
from quorumlog.metadata_quorum.controller.requests import (
    AllocateProducerIds,
    AlterConfigs,
    AlterPartitions,
    ConfigResults,
    ControllerRequest,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectionResults,
    ElectLeaders,
    FindTopics,
    TopicResults,
)
from quorumlog.metadata_quorum.controller_client import BrokerHeartbeat, NewPartitions, NewTopic
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, TopicId

CODE = ErrorCode.UNKNOWN_SERVER_ERROR
IDS = (TopicId(b"i" * 16), TopicId(b"j" * 16))


@pytest.mark.parametrize(
    "request_",
    [
        CreateTopics(topics=(NewTopic(name="t"), NewTopic(name="u"))),
        FindTopics(names=("t", "u")),
        DeleteTopics(topic_ids=IDS),
        CreatePartitions(
            topics=(NewPartitions(name="t", count=2), NewPartitions(name="u", count=3))
        ),
        AlterConfigs(
            topics=(ConfigChanges(name="t", changes=()), ConfigChanges(name="u", changes=()))
        ),
        ElectLeaders(partitions=(("t", 0), ("u", 1))),
    ],
)
def test_each_thing_that_was_asked_for_has_its_result(request_: ControllerRequest) -> None:
    response = failure_response(request_)
    assert isinstance(response, TopicResults | ConfigResults | ElectionResults)
    assert [result.error_code for result in response.results] == [CODE, CODE]
    if isinstance(request_, DeleteTopics):
        assert isinstance(response, TopicResults)
        assert tuple(result.topic_id for result in response.results) == IDS
    elif isinstance(response, ElectionResults):
        assert [(one.topic, one.partition) for one in response.results] == [("t", 0), ("u", 1)]
    else:
        assert [result.name for result in response.results] == ["t", "u"]


def test_what_a_broker_asks_for_is_refused_as_a_whole() -> None:
    broker_id = BrokerId(1)
    for request in (
        AlterPartitions(broker_id=broker_id, broker_epoch=1, proposals=()),
        AllocateProducerIds(broker_id=broker_id, broker_epoch=1),
        BrokerHeartbeat(broker_id=broker_id, broker_epoch=1, metadata_offset=1),
    ):
        assert getattr(failure_response(request), "error_code", None) is CODE
