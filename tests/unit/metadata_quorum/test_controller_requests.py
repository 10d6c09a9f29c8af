"""What the controller is asked and answers arrives as it was sent."""

import cbor2
import pytest

from quorumlog.metadata_quorum.cbor_values import MalformedValue, from_plain, to_plain
from quorumlog.metadata_quorum.config_changes import (
    ConfigChange,
    ConfigChanges,
    ConfigOperation,
    ConfigResult,
)
from quorumlog.metadata_quorum.controller.requests import (
    AlterConfigs,
    ConfigResults,
    CreatePartitions,
    DeleteTopics,
    DescribeQuorum,
    ElectionResults,
    ElectLeaders,
    FindTopics,
)
from quorumlog.metadata_quorum.controller_client import (
    ElectionResult,
    NewPartitions,
    QuorumDescription,
    QuorumReplica,
)
from quorumlog.metadata_quorum.io.rpc import CONTROLLER_RPCS
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset, TopicId
from tests.support.metadata_quorum.controllers import ids

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
