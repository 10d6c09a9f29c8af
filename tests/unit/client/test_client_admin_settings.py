"""Settings and the cluster: what is asked of whom, and what comes of the answers."""

from typing import Any

import pytest

from quorumlog.client import (
    ErrorCode,
    KafkaError,
)
from quorumlog.client import descriptions as about
from quorumlog.wire.codec.messages import describe_configs as describe_configs_
from quorumlog.wire.codec.messages import describe_log_dirs as log_dirs_
from quorumlog.wire.codec.messages import describe_quorum as quorum_
from quorumlog.wire.codec.messages import incremental_alter_configs as alter_
from quorumlog.wire.codec.messages import list_config_resources as resources_
from quorumlog.wire.codec.messages import unregister_broker as unregister_
from tests.support.client.fake_admin import MOVED, cluster_and_admin
from tests.support.client.fake_cluster import T


def altered(code: ErrorCode = ErrorCode.NONE) -> alter_.IncrementalAlterConfigsResponse:
    one = alter_.AlterConfigsResourceResponse(
        error_code=code, error_message="said", resource_type=2, resource_name="t"
    )
    return alter_.IncrementalAlterConfigsResponse(responses=[one])


async def test_settings_are_changed_one_by_one() -> None:
    async with cluster_and_admin() as (cluster, admin):
        refused = altered(ErrorCode.INVALID_CONFIG)
        empty = alter_.IncrementalAlterConfigsResponse(responses=[])
        cluster.offer(alter_.IncrementalAlterConfigsRequest, altered(), altered(), refused, empty)
        await admin.alter_configs(
            "topic",
            "t",
            {"retention.ms": 5},
            delete=["segment.ms"],
            append={"cleanup.policy": "compact"},
            subtract={"cleanup.policy": "delete"},
            validate_only=True,
        )
        (request,) = cluster.requests()
        assert request.validate_only
        (resource,) = request.resources
        assert (resource.resource_type, resource.resource_name) == (2, "t")
        changes = [(one.name, one.config_operation, one.value) for one in resource.configs]
        assert changes == [
            ("retention.ms", 0, "5"),
            ("cleanup.policy", 2, "compact"),
            ("cleanup.policy", 3, "delete"),
            ("segment.ms", 1, None),
        ]
        await admin.alter_configs("broker", "2", {"log.retention.ms": 1})
        assert cluster.seen[-1][0] == 2  # the broker itself
        with pytest.raises(KafkaError, match="INVALID_CONFIG: t: said") as caught:
            await admin.alter_configs("topic", "t", {"retention.ms": "x"})
        assert caught.value.definite
        with pytest.raises(KafkaError, match="left out") as caught:
            await admin.alter_configs("topic", "t", {"retention.ms": "x"})
        assert not caught.value.definite
        with pytest.raises(ValueError, match="no setting is given"):
            await admin.alter_configs("topic", "t")


async def test_a_resource_that_cannot_be_is_refused_at_once() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer(
            describe_configs_.DescribeConfigsRequest,
            describe_configs_.DescribeConfigsResponse(results=[]),
        )
        wrong: Any = "topicc"
        with pytest.raises(
            ValueError, match="a resource is one of 'topic', 'broker', 'group', not 'topicc'"
        ):
            await admin.describe_configs(wrong, "t")
        with pytest.raises(ValueError, match="a broker is named by its id, not 'first'"):
            await admin.describe_configs("broker", "first")
        with pytest.raises(KafkaError, match="broker 9 is not among the live ones: 1, 2") as caught:
            await admin.describe_configs("broker", "9")
        assert caught.value.code == ErrorCode.BROKER_ID_NOT_REGISTERED
        assert caught.value.definite
        assert cluster.seen == []


async def test_what_has_settings_is_listed() -> None:
    async with cluster_and_admin() as (cluster, admin):
        found = [
            resources_.ConfigResource(resource_name="t", resource_type=2),
            resources_.ConfigResource(resource_name="1", resource_type=4),
            resources_.ConfigResource(resource_name="?", resource_type=99),
        ]
        cluster.offer(
            resources_.ListConfigResourcesRequest,
            resources_.ListConfigResourcesResponse(config_resources=found),
        )
        assert await admin.list_config_resources(["topic", "broker"]) == [
            about.ConfigResource("99", "?"),
            about.ConfigResource("broker", "1"),
            about.ConfigResource("topic", "t"),
        ]
        assert cluster.requests()[0].resource_types == [2, 4]
        with pytest.raises(ValueError, match="'disk' must be one of 'topic', 'broker'"):
            await admin.list_config_resources(["disk"])


def quorum(code: ErrorCode, leader_id: int = -1) -> quorum_.DescribeQuorumResponse:
    voter = quorum_.ReplicaState(replica_id=1, log_end_offset=7, last_fetch_timestamp=3)
    one = quorum_.ResponsePartitionData(
        error_code=code,
        leader_id=leader_id,
        leader_epoch=4,
        high_watermark=6,
        current_voters=[voter],
        observers=[],
    )
    topic = quorum_.ResponseTopicData(topic_name="__cluster_metadata", partitions=[one])
    return quorum_.DescribeQuorumResponse(topics=[topic])


async def test_the_quorum_is_asked_until_it_has_a_leader() -> None:
    async with cluster_and_admin() as (cluster, admin):
        empty = quorum_.DescribeQuorumResponse(topics=[])
        answers = quorum(MOVED), quorum(ErrorCode.NONE, 2), empty
        cluster.offer(quorum_.DescribeQuorumRequest, *answers)
        told = await admin.describe_quorum()
        assert (told.leader_id, told.leader_epoch, told.high_watermark) == (2, 4, 6)
        assert [(one.replica_id, one.log_end_offset) for one in told.voters] == [(1, 7)]
        assert told.observers == ()
        with pytest.raises(KafkaError, match="the answer is empty"):
            await admin.describe_quorum()


async def test_a_refusal_to_unregister_is_raised_and_not_repeated() -> None:
    async with cluster_and_admin() as (cluster, admin):
        code = ErrorCode.INVALID_REQUEST
        refusal = unregister_.UnregisterBrokerResponse(error_code=code, error_message="in service")
        done = unregister_.UnregisterBrokerResponse()
        cluster.offer(unregister_.UnregisterBrokerRequest, refusal, done)
        with pytest.raises(KafkaError, match="in service") as caught:
            await admin.unregister_broker(3)
        assert caught.value.definite
        await admin.unregister_broker(3)
        assert [request.broker_id for request in cluster.requests()] == [3, 3]


async def test_every_broker_tells_its_log_directories() -> None:
    async with cluster_and_admin() as (cluster, admin):
        log = log_dirs_.DescribeLogDirsPartition(partition_index=0, partition_size=9, offset_lag=1)
        one = log_dirs_.DescribeLogDirsResult(
            log_dir="/d",
            total_bytes=100,
            usable_bytes=50,
            topics=[log_dirs_.DescribeLogDirsTopic(name="t", partitions=[log])],
        )
        cluster.offer(
            log_dirs_.DescribeLogDirsRequest, log_dirs_.DescribeLogDirsResponse(results=[one])
        )
        told = await admin.describe_log_dirs()
        assert sorted(told) == [1, 2]
        assert told[1]["/d"].replicas == {
            T: about.ReplicaSize(size_bytes=9, offset_lag=1, is_future=False)
        }
        assert (told[2]["/d"].total_bytes, told[2]["/d"].usable_bytes) == (100, 50)
        assert cluster.requests()[0].topics is None
        assert list(await admin.describe_log_dirs([2])) == [2]
