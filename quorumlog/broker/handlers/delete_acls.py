"""DeleteAcls (31): deletes the ACLs that match filters. Source: KIP-140, KIP-290."""

from quorumlog.broker.responses.controller_answers import changed_cluster
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.cluster_changes import DeleteAcls, Outcome
from quorumlog.metadata_quorum.image.acls import AclFilter
from quorumlog.wire.codec.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(DeleteAclsRequest, 1, 3)
async def handle(
    context: BrokerContext, header: RequestHeader, request: DeleteAclsRequest
) -> DeleteAclsResponse:
    """Delete ACLs; return the deleted ACLs of each filter."""
    filters = tuple(
        AclFilter(
            resource_type=one.resource_type_filter,
            resource_name=one.resource_name_filter,
            pattern_type=one.pattern_type_filter,
            principal=one.principal_filter,
            host=one.host_filter,
            operation=one.operation,
            permission_type=one.permission_type,
        )
        for one in request.filters
    )
    outcomes = await changed_cluster(
        context, DeleteAcls(filters=filters), doubt="the ACLs may have been deleted"
    )
    return DeleteAclsResponse(filter_results=list(map(_result, outcomes)))


def _result(outcome: Outcome) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(
        error_code=outcome.error_code,
        error_message=outcome.error_message,
        matching_acls=[
            DeleteAclsMatchingAcl(
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission_type,
            )
            for acl in outcome.acls
        ],
    )
