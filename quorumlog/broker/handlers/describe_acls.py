"""DescribeAcls (29): the ACLs in this broker's image that match a filter. Source: KIP-140."""

from itertools import groupby

from quorumlog.broker.responses.controller_answers import shortened
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.image.acls import AclFilter, filter_problem, matching
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(DescribeAclsRequest, 1, 3)
def handle(
    context: BrokerContext, header: RequestHeader, request: DescribeAclsRequest
) -> DescribeAclsResponse:
    """Describe the ACLs by resource, in a fixed order."""
    wanted = AclFilter(
        resource_type=request.resource_type_filter,
        resource_name=request.resource_name_filter,
        pattern_type=request.pattern_type_filter,
        principal=request.principal_filter,
        host=request.host_filter,
        operation=request.operation,
        permission_type=request.permission_type,
    )
    problem = filter_problem(wanted)
    if problem is not None:
        return DescribeAclsResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message=shortened(problem)
        )
    found = groupby(
        matching(context.image.access.acls, wanted),
        lambda acl: (acl.resource_type, acl.resource_name, acl.pattern_type),
    )
    return DescribeAclsResponse(
        resources=[
            DescribeAclsResource(
                resource_type=resource_type,
                resource_name=name,
                pattern_type=pattern_type,
                acls=[
                    AclDescription(
                        principal=acl.principal,
                        host=acl.host,
                        operation=acl.operation,
                        permission_type=acl.permission_type,
                    )
                    for acl in acls
                ],
            )
            for (resource_type, name, pattern_type), acls in found
        ]
    )
