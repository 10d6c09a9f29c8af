"""Guards of the cluster's administration: one operation on the cluster permits a whole request."""

from collections.abc import Callable
from typing import Any, Final

from quorumlog.broker.guards.guard import (
    MESSAGES,
    Asked,
    Guard,
    amended,
    described,
    refused_topics,
    refused_whole,
)
from quorumlog.broker.guards.topics import cluster_operations
from quorumlog.broker.responses.cluster_view import ALL_OF_CLUSTER
from quorumlog.broker.server.api import Reply
from quorumlog.metadata_quorum.image.acls import AclOperation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import Response
from quorumlog.wire.codec.messages.alter_client_quotas import (
    AlterClientQuotasResponse,
    ResponseEntityData,
    ResponseEntryData,
)
from quorumlog.wire.codec.messages.alter_partition_reassignments import ReassignableTopicResponse
from quorumlog.wire.codec.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from quorumlog.wire.codec.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from quorumlog.wire.codec.messages.create_acls import AclCreationResult, CreateAclsResponse
from quorumlog.wire.codec.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsResponse
from quorumlog.wire.codec.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from quorumlog.wire.codec.messages.elect_leaders import ReplicaElectionResult
from quorumlog.wire.codec.schemas import response_class

REFUSED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def _top(asked: Asked[Any]) -> Response:
    return refused_whole(asked, REFUSED)


def cluster_guard(
    operation: AclOperation, refuse: Callable[[Asked[Any]], Response] = _top
) -> Guard:
    """Return the guard of a request that needs an operation on the cluster."""

    def guard(asked: Asked[Any]) -> Reply:
        if asked.access.may_cluster(operation):
            return asked.pass_on()
        return refuse(asked)

    return guard


def guard_describe_cluster(asked: Asked[DescribeClusterRequest]) -> Reply:
    """Permit everyone; limit the bit field to the client's operations."""

    def amend(response: DescribeClusterResponse) -> DescribeClusterResponse:
        if response.cluster_authorized_operations == ALL_OF_CLUSTER:
            response.cluster_authorized_operations = cluster_operations(asked.access)
        return response

    return amended(asked.pass_on(), amend)


# Refusals in the form of responses that have an error for each part.


def refuse_creations(asked: Asked[Any]) -> Response:
    """Refuse each ACL of CreateAcls."""
    results = [
        AclCreationResult(**described(AclCreationResult, REFUSED)) for _ in asked.request.creations
    ]
    return CreateAclsResponse(results=results)


def refuse_filters(asked: Asked[Any]) -> Response:
    """Refuse each filter of DeleteAcls."""
    shape = DeleteAclsFilterResult
    results = [shape(**described(shape, REFUSED)) for _ in asked.request.filters]
    return DeleteAclsResponse(filter_results=results)


def refuse_moves(asked: Asked[Any]) -> Response:
    """Refuse each partition of AlterReplicaLogDirs."""
    topics = [topic for directory in asked.request.dirs for topic in directory.topics]
    return AlterReplicaLogDirsResponse(
        results=refused_topics(topics, AlterReplicaLogDirTopicResult, REFUSED)
    )


def refuse_elections(asked: Asked[Any]) -> Response:
    """Refuse ElectLeaders, and each of its partitions: version 0 has no other error."""
    results = refused_topics(asked.request.topic_partitions, ReplicaElectionResult, REFUSED)
    return refused_whole(asked, REFUSED, replica_election_results=results)


def refuse_reassignments(asked: Asked[Any]) -> Response:
    """Refuse AlterPartitionReassignments, and each of its partitions."""
    results = refused_topics(asked.request.topics, ReassignableTopicResponse, REFUSED)
    return refused_whole(asked, REFUSED, responses=results)


def refuse_quota_descriptions(asked: Asked[Any]) -> Response:
    """Refuse DescribeClientQuotas: without entries, which an empty list would claim."""
    return refused_whole(asked, REFUSED, entries=None)


def refuse_quotas(asked: Asked[Any]) -> Response:
    """Refuse each entity of AlterClientQuotas."""
    return AlterClientQuotasResponse(
        entries=[
            ResponseEntryData(
                **described(ResponseEntryData, REFUSED),
                entity=[
                    ResponseEntityData(entity_type=one.entity_type, entity_name=one.entity_name)
                    for one in entry.entity
                ],
            )
            for entry in asked.request.entries
        ]
    )


def refuse_credentials(asked: Asked[Any]) -> Response:
    """Refuse each user of AlterUserScramCredentials."""
    shape = AlterUserScramCredentialsResult
    users = dict.fromkeys(one.name for one in (*asked.request.deletions, *asked.request.upsertions))
    return AlterUserScramCredentialsResponse(
        results=[shape(user=user, **described(shape, REFUSED)) for user in users]
    )


def refuse_share_states(asked: Asked[Any]) -> Response:
    """Refuse each partition of a request to a share coordinator."""
    shape: Any = response_class(asked.request.API_KEY)
    [results] = shape.FIELDS
    message = MESSAGES[REFUSED]
    refused = refused_topics(asked.request.topics, results.type[0], REFUSED, error_message=message)
    response: Response = shape(results=refused)
    return response
