"""AlterClientQuotas (49): quotas are stored, and not enforced. Source: KIP-546."""

from collections.abc import Sequence

from quorumlog.broker.coordination.core.partition_hash import java_string_hash
from quorumlog.broker.responses.controller_answers import changed_cluster
from quorumlog.broker.responses.java_maps import entity_hash, in_map_order
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.cluster_changes import AlterClientQuotas, QuotaAlteration
from quorumlog.wire.codec.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    RequestEntryData,
    ResponseEntityData,
    ResponseEntryData,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(AlterClientQuotasRequest, 0, 1)
async def handle(
    context: BrokerContext, header: RequestHeader, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    """Alter the quotas of each entity."""
    change = AlterClientQuotas(
        alterations=tuple(map(_alteration, request.entries)), validate_only=request.validate_only
    )
    outcomes = await changed_cluster(context, change, doubt="the quotas may have been altered")
    answered = zip(change.alterations, outcomes, strict=True)
    return AlterClientQuotasResponse(
        entries=[
            ResponseEntryData(
                error_code=outcome.error_code,
                error_message=outcome.error_message,
                entity=_entity(alteration.entity),
            )
            for alteration, outcome in in_map_order(
                answered, hash_of=lambda pair: entity_hash(pair[0].entity)
            )
        ]
    )


def _entity(entity: Sequence[tuple[str, str | None]]) -> list[ResponseEntityData]:
    ordered = in_map_order(
        entity, hash_of=lambda pair: java_string_hash(pair[0]), buckets=len(entity)
    )
    return [ResponseEntityData(entity_type=kind, entity_name=name) for kind, name in ordered]


def _alteration(entry: RequestEntryData) -> QuotaAlteration:
    return QuotaAlteration(
        entity=tuple((one.entity_type, one.entity_name) for one in entry.entity),
        values={op.key: None if op.remove else op.value for op in entry.ops},
    )
