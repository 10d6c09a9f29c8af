"""CreateAcls (30): ACLs are stored, and not enforced. Source: KIP-140, KIP-290.

# DEVIATION: A Kafka broker without an authorizer refuses the request with SECURITY_DISABLED.
# docs/decisions/0040-accepted-without-effect.md
"""

from quorumlog.broker.responses.controller_answers import changed_cluster
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.cluster_changes import CreateAcls
from quorumlog.metadata_quorum.image.records import AclBinding
from quorumlog.wire.codec.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(CreateAclsRequest, 1, 3)
async def handle(
    context: BrokerContext, header: RequestHeader, request: CreateAclsRequest
) -> CreateAclsResponse:
    """Create each ACL on its own; an ACL that exists already is no error."""
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
