"""The cluster: brokers, the metadata quorum, log directories."""

import asyncio
from collections.abc import Iterable, Mapping

from quorumlog.addresses import address_text
from quorumlog.client import descriptions as about
from quorumlog.client.admin import topics
from quorumlog.client.admin.asker import Asker, left_out
from quorumlog.client.checks import checked_all, checked_number, checked_partitions
from quorumlog.client.core.topic_partitions import by_topic
from quorumlog.client.errors import KafkaError
from quorumlog.client.io.cluster import check, labelled
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages import alter_replica_log_dirs as alter_
from quorumlog.wire.codec.messages import describe_quorum as describe_quorum_
from quorumlog.wire.codec.messages.add_raft_voter import AddRaftVoterRequest, Listener
from quorumlog.wire.codec.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResult,
)
from quorumlog.wire.codec.messages.remove_raft_voter import RemoveRaftVoterRequest
from quorumlog.wire.codec.messages.unregister_broker import UnregisterBrokerRequest
from quorumlog.wire.codec.topic_names import METADATA_TOPIC


async def describe(asker: Asker) -> about.ClusterDescription:
    """See Admin.describe_cluster."""
    view = await topics.view(asker, ())
    return about.ClusterDescription(
        cluster_id=view.cluster_id, controller_id=view.controller_id, nodes=view.nodes
    )


async def quorum(asker: Asker) -> about.QuorumDescription:
    """See Admin.describe_quorum."""
    wanted = describe_quorum_.RequestTopicData(
        topic_name=METADATA_TOPIC,
        partitions=[describe_quorum_.RequestPartitionData(partition_index=0)],
    )
    request = describe_quorum_.DescribeQuorumRequest(topics=[wanted])

    async def attempt() -> about.QuorumDescription:
        response = await asker.request(request)
        check(response.error_code, response.error_message or "DescribeQuorum")
        for topic in response.topics:
            for one in topic.partitions:
                check(one.error_code, one.error_message or "DescribeQuorum")
                return about.QuorumDescription(
                    leader_id=one.leader_id,
                    leader_epoch=one.leader_epoch,
                    high_watermark=one.high_watermark,
                    voters=tuple(_replica(replica) for replica in one.current_voters),
                    observers=tuple(_replica(replica) for replica in one.observers),
                    addresses={
                        node.node_id: _address(node.listeners[0])
                        for node in response.nodes
                        if node.listeners
                    },
                )
        message = "DescribeQuorum: the answer is empty"
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, message, definite=True)

    return await asker.retry(attempt, changes=False)


def _address(listener: describe_quorum_.Listener) -> str:
    return address_text(listener.host, listener.port)


def _replica(state: describe_quorum_.ReplicaState) -> about.QuorumReplica:
    return about.QuorumReplica(
        replica_id=state.replica_id,
        directory_id=state.replica_directory_id,
        log_end_offset=state.log_end_offset,
        last_fetch_timestamp_ms=state.last_fetch_timestamp,
        last_caught_up_timestamp_ms=state.last_caught_up_timestamp,
    )


async def unregister(asker: Asker, broker_id: int) -> None:
    """See Admin.unregister_broker."""
    await asker.ask(
        UnregisterBrokerRequest(broker_id=checked_number(broker_id, "a broker id")), changes=True
    )


async def log_dirs(
    asker: Asker, brokers: Iterable[int] | None
) -> dict[int, dict[str, about.LogDirDescription]]:
    """See Admin.describe_log_dirs."""
    if brokers is None:
        brokers = sorted((await describe(asker)).nodes)
    wanted = checked_all(brokers, int, "broker ids")
    found = await asyncio.gather(*(_log_dirs_of(asker, broker_id) for broker_id in wanted))
    return dict(zip(wanted, found, strict=True))


async def _log_dirs_of(asker: Asker, broker_id: int) -> dict[str, about.LogDirDescription]:
    request = DescribeLogDirsRequest(topics=None)  # all topics

    async def attempt() -> dict[str, about.LogDirDescription]:
        response = await asker.request(request, broker_id=broker_id)
        check(response.error_code, f"DescribeLogDirs of broker {broker_id}")
        return {one.log_dir: _log_dir(one) for one in response.results}

    return await asker.retry(attempt, changes=False)


def _log_dir(one: DescribeLogDirsResult) -> about.LogDirDescription:
    return about.LogDirDescription(
        error_code=one.error_code,
        total_bytes=one.total_bytes,
        usable_bytes=one.usable_bytes,
        replicas={
            TopicPartition(topic.name, partition.partition_index): about.ReplicaSize(
                size_bytes=partition.partition_size,
                offset_lag=partition.offset_lag,
                is_future=partition.is_future_key,
            )
            for topic in one.topics
            for partition in topic.partitions
        },
    )


async def alter_log_dirs(
    asker: Asker, broker_id: int, directories: Mapping[TopicPartition, str]
) -> None:
    """See Admin.alter_replica_log_dirs."""
    wanted = checked_partitions(directories)
    paths = sorted({*directories.values()})
    request = alter_.AlterReplicaLogDirsRequest(
        dirs=[
            alter_.AlterReplicaLogDir(
                path=path,
                topics=[
                    alter_.AlterReplicaLogDirTopic(name=topic, partitions=indexes)
                    for topic, indexes in by_topic(
                        [at for at in wanted if directories[at] == path]
                    ).items()
                ],
            )
            for path in paths
        ]
    )

    async def attempt() -> dict[TopicPartition, int]:
        response = await asker.request(request, broker_id=broker_id)
        return {
            TopicPartition(topic.topic_name, one.partition_index): one.error_code
            for topic in response.results
            for one in topic.partitions
        }

    codes = await asker.retry(attempt, changes=True)
    for at in wanted:  # outside the retries: each move was accepted, or refused with a final error
        if at not in codes:
            raise left_out(at)
        check(codes[at], labelled(at, f"{directories[at]} of broker {broker_id}"))


LISTENER_NAME = "CONTROLLER"
PORT_MAX = 65_535


async def add_voter(asker: Asker, voter_id: int, directory_id: bytes, address: str) -> None:
    """See Admin.add_raft_voter."""
    host, port = _parsed_address(address)
    request = AddRaftVoterRequest(
        voter_id=checked_number(voter_id, "a voter id"),
        voter_directory_id=_checked_directory(directory_id),
        listeners=[Listener(name=LISTENER_NAME, host=host, port=port)],
        timeout_ms=int(asker.settings.default_api_timeout_ms),
    )
    await asker.ask(request, changes=True)


async def remove_voter(asker: Asker, voter_id: int, directory_id: bytes) -> None:
    """See Admin.remove_raft_voter."""
    request = RemoveRaftVoterRequest(
        voter_id=checked_number(voter_id, "a voter id"),
        voter_directory_id=_checked_directory(directory_id),
    )
    await asker.ask(request, changes=True)


def _checked_directory(directory_id: bytes) -> bytes:
    if not isinstance(directory_id, bytes) or len(directory_id) != 16:
        raise ValueError(f"a directory id has 16 bytes, not {directory_id!r}")
    return directory_id


def _parsed_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port[:6]) <= PORT_MAX:
        raise ValueError(f"{address!r} is no address: write it as host:port")
    return host.strip("[]"), int(port)
