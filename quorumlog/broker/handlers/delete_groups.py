"""DeleteGroups (42): deletes empty groups and their offsets. Source: KIP-229."""

import asyncio

from quorumlog.broker.groups.core.requests import DeleteGroup
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.wire.codec.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(DeleteGroupsRequest, 0, 2)
async def handle(
    context: BrokerContext, header: RequestHeader, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    """Delete the groups; answer once the tombstones are committed."""
    group_ids = request.groups_names
    outcomes = await asyncio.gather(
        *(context.groups.ask(DeleteGroup(group_id=group_id)) for group_id in group_ids)
    )
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=error_code)
            for group_id, error_code in zip(group_ids, outcomes, strict=True)
        ]
    )
