"""DescribeQuorum (55), AddRaftVoter (80), RemoveRaftVoter (81): answered by the quorum's leader.

Sources: KIP-595, KIP-836, KIP-853, KIP-1186.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from quorumlog.addresses import address_text, host_and_port
from quorumlog.broker.responses.controller_answers import changed_voters
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.controller_client import (
    ControllerUnavailable,
    NewVoter,
    QuorumDescription,
    QuorumReplica,
)
from quorumlog.metadata_quorum.controller_requests import DescribeQuorum
from quorumlog.storage.io.checkpoints import uuid_from_text, uuid_to_text
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, UNKNOWN_OFFSET, BrokerId
from quorumlog.wire.codec.message import ZERO_UUID
from quorumlog.wire.codec.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from quorumlog.wire.codec.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    ReplicaState,
    ResponsePartitionData,
    ResponseTopicData,
)
from quorumlog.wire.codec.messages.remove_raft_voter import (
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)
from quorumlog.wire.codec.topic_names import METADATA_TOPIC

LISTENER_NAME: Final = "CONTROLLER"


@answers(DescribeQuorumRequest, 0, 2)
async def handle_describe(
    context: BrokerContext, request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    """Describe the only partition; a request for any other is refused whole, as in Kafka."""
    asked = [(topic.topic_name, part) for topic in request.topics for part in topic.partitions]
    if [(name, part.partition_index) for name, part in asked] != [(METADATA_TOPIC, 0)]:
        return _refused(request)
    try:
        quorum = await context.controller.ask(DescribeQuorum())
    except ControllerUnavailable:
        return DescribeQuorumResponse(
            error_code=ErrorCode.REQUEST_TIMED_OUT,
            error_message="no leader of the quorum answered in time",
        )
    partition = ResponsePartitionData(
        leader_id=quorum.leader_id,
        leader_epoch=quorum.leader_epoch,
        high_watermark=quorum.high_watermark,
        current_voters=list(_states(context, quorum.voters)),
        observers=list(_states(context, quorum.observers)),
    )
    return DescribeQuorumResponse(
        topics=[ResponseTopicData(topic_name=METADATA_TOPIC, partitions=[partition])],
        nodes=list(_nodes(quorum)),
    )


def _refused(request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(
        topics=[
            ResponseTopicData(
                topic_name=topic.topic_name,
                partitions=[
                    ResponsePartitionData(
                        partition_index=asked.partition_index,
                        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        leader_id=NO_LEADER,
                        high_watermark=UNKNOWN_OFFSET,
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _states(context: BrokerContext, replicas: Iterable[QuorumReplica]) -> Iterator[ReplicaState]:
    for replica in replicas:
        yield ReplicaState(
            replica_id=replica.replica_id,
            replica_directory_id=_directory_id(context, replica),
            log_end_offset=replica.log_end_offset,
            last_fetch_timestamp=replica.last_fetch_ms,
            last_caught_up_timestamp=replica.last_caught_up_ms,
        )


def _directory_id(context: BrokerContext, replica: QuorumReplica) -> bytes:
    """Return the id of the node's log directory: from its fetches, else its registration."""
    broker = context.image.brokers.get(replica.replica_id)
    directory_id = replica.directory_id or (broker and broker.directory_id)
    if not directory_id:
        return ZERO_UUID
    try:
        return uuid_from_text(directory_id)
    except ValueError:
        return ZERO_UUID  # recorded by another release


def _nodes(quorum: QuorumDescription) -> Iterator[Node]:
    """Return the addresses of voters and observers, if available; Kafka names voters only.

    An administrator who makes an observer a voter needs its address.
    """
    addresses = {**quorum.observer_addresses, **quorum.voter_addresses}
    for node_id, address in sorted(addresses.items()):
        host, port = host_and_port(address) if address else ("", 0)
        listener = Listener(name=LISTENER_NAME, host=host, port=port)
        yield Node(node_id=node_id, listeners=[listener] if address else [])


@answers(AddRaftVoterRequest, 0, 1)
async def handle_add_voter(
    context: BrokerContext, request: AddRaftVoterRequest
) -> AddRaftVoterResponse:
    """Send the change to the leader, which answers by its own timeout, not `timeout_ms`.

    Only the first listener is used: a node has one control listener, under any name.
    """
    if request.cluster_id not in {None, context.cluster_id}:
        return AddRaftVoterResponse(
            error_code=ErrorCode.INCONSISTENT_CLUSTER_ID,
            error_message=f"this is cluster {context.cluster_id}",
        )
    if not request.listeners:
        return AddRaftVoterResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message="the voter has no listener"
        )
    listener = request.listeners[0]
    voter = NewVoter(
        voter_id=BrokerId(request.voter_id),
        directory_id=uuid_to_text(request.voter_directory_id),
        address=address_text(listener.host, listener.port),
    )
    result = await changed_voters(
        context.controller.add_voter(voter, ack_when_committed=request.ack_when_committed),
        doubt="the voter may have been added",
    )
    return AddRaftVoterResponse(error_code=result.error_code, error_message=result.error_message)


@answers(RemoveRaftVoterRequest, 0, 0)
async def handle_remove_voter(
    context: BrokerContext, request: RemoveRaftVoterRequest
) -> RemoveRaftVoterResponse:
    """Send the change to the leader; it answers after the commit."""
    if request.cluster_id not in {None, context.cluster_id}:
        return RemoveRaftVoterResponse(
            error_code=ErrorCode.INCONSISTENT_CLUSTER_ID,
            error_message=f"this is cluster {context.cluster_id}",
        )
    result = await changed_voters(
        context.controller.remove_voter(
            BrokerId(request.voter_id), uuid_to_text(request.voter_directory_id)
        ),
        doubt="the voter may have been removed",
    )
    return RemoveRaftVoterResponse(error_code=result.error_code, error_message=result.error_message)
