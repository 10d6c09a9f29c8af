"""CreateAcls (30), DeleteAcls (31), DescribeAcls (29). Source: KIP-140, KIP-290.

A broker with an authorizer enforces them (`broker/guards`); another stores them, and logs so.

# DEVIATION: A Kafka broker without an authorizer refuses the requests with SECURITY_DISABLED.
# docs/decisions/0040-accepted-without-effect.md
"""

import logging
from dataclasses import asdict
from itertools import groupby
from typing import Final

from quorumlog.broker.responses.controller_answers import changed_cluster, shortened
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.clock import monotonic_ms
from quorumlog.lasting_condition import LastingCondition
from quorumlog.metadata_quorum.cluster_changes import CreateAcls, DeleteAcls, Outcome
from quorumlog.metadata_quorum.image.acls import AclFilter, filter_problem, matching
from quorumlog.metadata_quorum.image.records import AclBinding
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from quorumlog.wire.codec.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from quorumlog.wire.codec.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

_without_effect: Final = LastingCondition(logging.getLogger(__name__))


@answers(CreateAclsRequest, 1, 3)
async def handle_create(context: BrokerContext, request: CreateAclsRequest) -> CreateAclsResponse:
    """Create each ACL on its own; an ACL that exists already is no error."""
    if context.access is None:
        _without_effect.note(
            monotonic_ms(), "ACLs are stored, and not enforced: authorizer.class.name is not set"
        )
    acls = tuple(
        AclBinding(
            resource_type=one.resource_type,
            resource_name=one.resource_name,
            pattern_type=one.resource_pattern_type,
            principal=one.principal,
            host=one.host,
            operation=one.operation,
            permission_type=one.permission_type,
        )
        for one in request.creations
    )
    outcomes = await changed_cluster(
        context, CreateAcls(acls=acls), doubt="the ACLs may have been created"
    )
    return CreateAclsResponse(
        results=[
            AclCreationResult(error_code=one.error_code, error_message=one.error_message)
            for one in outcomes
        ]
    )


@answers(DeleteAclsRequest, 1, 3)
async def handle_delete(context: BrokerContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    """Delete ACLs; return the deleted ACLs of each filter."""
    filters = tuple(map(_filter, request.filters))
    outcomes = await changed_cluster(
        context, DeleteAcls(filters=filters), doubt="the ACLs may have been deleted"
    )
    return DeleteAclsResponse(filter_results=list(map(_deleted, outcomes)))


def _deleted(outcome: Outcome) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(
        error_code=outcome.error_code,
        error_message=outcome.error_message,
        matching_acls=[DeleteAclsMatchingAcl(**asdict(acl)) for acl in outcome.acls],
    )


@answers(DescribeAclsRequest, 1, 3)
def handle_describe(context: BrokerContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    """Describe the ACLs by resource, in a fixed order."""
    wanted = _filter(request)
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


def _filter(one: DeleteAclsFilter | DescribeAclsRequest) -> AclFilter:
    return AclFilter(
        resource_type=one.resource_type_filter,
        resource_name=one.resource_name_filter,
        pattern_type=one.pattern_type_filter,
        principal=one.principal_filter,
        host=one.host_filter,
        operation=one.operation,
        permission_type=one.permission_type,
    )
