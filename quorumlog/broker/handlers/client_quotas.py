"""AlterClientQuotas (49), DescribeClientQuotas (48): KIP-546. `broker/quotas` enforces them."""

from collections.abc import Mapping, Sequence

from quorumlog.broker.coordination.core.partition_hash import java_string_hash
from quorumlog.broker.responses.controller_answers import changed_cluster, shortened
from quorumlog.broker.responses.java_maps import entity_hash, in_map_order, names_in_map_order
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.cluster_changes import AlterClientQuotas, QuotaAlteration
from quorumlog.metadata_quorum.image.quotas import QuotaComponent, filter_problem, matching
from quorumlog.metadata_quorum.image.records import QuotaEntity
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    RequestEntryData,
    ResponseEntityData,
    ResponseEntryData,
)
from quorumlog.wire.codec.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)


@answers(AlterClientQuotasRequest, 0, 1)
async def handle_alter(
    context: BrokerContext, request: AlterClientQuotasRequest
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


@answers(DescribeClientQuotasRequest, 0, 1)
def handle_describe(
    context: BrokerContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """Describe quotas; a filter without components matches all entities."""
    components = [
        QuotaComponent(one.entity_type, one.match_type, one.match) for one in request.components
    ]
    problem = filter_problem(components)
    if problem is not None:
        return DescribeClientQuotasResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message=shortened(problem), entries=None
        )
    found = dict(matching(context.image.access.quotas, components, strict=request.strict))
    return DescribeClientQuotasResponse(
        entries=[
            _entry(entity, found[entity]) for entity in in_map_order(found, hash_of=entity_hash)
        ]
    )


def _entry(entity: QuotaEntity, values: Mapping[str, float]) -> EntryData:
    """Return an entity; its values are in Kafka's order, which comes from two Java maps."""
    changes = names_in_map_order(sorted(values))
    return EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        values=[
            ValueData(key=key, value=values[key]) for key in names_in_map_order(changes, buckets=0)
        ],
    )
