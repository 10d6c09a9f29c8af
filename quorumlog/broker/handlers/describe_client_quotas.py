"""DescribeClientQuotas (48): the quotas that match a filter. Source: KIP-546."""

from collections.abc import Mapping

from quorumlog.broker.responses.controller_answers import shortened
from quorumlog.broker.responses.java_maps import entity_hash, in_map_order, names_in_map_order
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.image.quotas import QuotaComponent, filter_problem, matching
from quorumlog.metadata_quorum.image.records import QuotaEntity
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(DescribeClientQuotasRequest, 0, 1)
def handle(
    context: BrokerContext, header: RequestHeader, request: DescribeClientQuotasRequest
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
