"""GetTelemetrySubscriptions (71), PushTelemetry (72). Source: KIP-714.

Advertised only with `client.telemetry`: clients report to every broker that has these APIs.
"""

import logging
from types import MappingProxyType
from typing import Final

from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.broker.telemetry.core.instances import (
    ACCEPTED_COMPRESSIONS,
    ClientInstances,
    ClientProperties,
)
from quorumlog.chance import random_bytes
from quorumlog.clock import monotonic_ms
from quorumlog.invariants import some
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from quorumlog.wire.codec.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from quorumlog.wire.codec.schemas import RequestHeader

_logger: Final = logging.getLogger(__name__)
_NO_ID: Final = bytes(16)


def _instances(context: BrokerContext) -> ClientInstances:
    instances = some(context.telemetry, "telemetry is advertised only where it is received")
    for problem in instances.subscribe(context.image.client_metrics):
        _logger.warning("%s", problem)
    return instances


def _properties(context: BrokerContext, header: RequestHeader) -> ClientProperties:
    name, version = context.software
    return ClientProperties(
        client_id=header.client_id or "",
        client_software_name=name,
        client_software_version=version,
        client_source_address=context.client_host.removeprefix("/"),
        client_source_port=str(context.client_port),
    )


@answers(GetTelemetrySubscriptionsRequest, 0, 0)
def handle_get(
    context: BrokerContext, header: RequestHeader, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    """Return the metrics that the client is to push, and an id if it has none."""
    instance_id = bytes(request.client_instance_id)
    while instance_id == _NO_ID:
        instance_id = random_bytes(16)
    instances = _instances(context)
    found = instances.asked(instance_id, _properties(context, header), monotonic_ms())
    if isinstance(found, ErrorCode):
        return GetTelemetrySubscriptionsResponse(error_code=found)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=found.subscription_id,
        accepted_compression_types=[*ACCEPTED_COMPRESSIONS],
        push_interval_ms=found.interval_ms,
        telemetry_max_bytes=instances.telemetry_max_bytes,
        delta_temporality=True,
        requested_metrics=[*found.metrics],
    )


@answers(PushTelemetryRequest, 0, 0)
def handle_push(
    context: BrokerContext, header: RequestHeader, request: PushTelemetryRequest
) -> PushTelemetryResponse:
    """Keep the metrics of a client."""
    error_code = _instances(context).pushed(
        bytes(request.client_instance_id),
        _properties(context, header),
        monotonic_ms(),
        subscription_id=request.subscription_id,
        is_terminating=request.terminating,
        compression=request.compression_type,
        metrics=memoryview(request.metrics),
    )
    return PushTelemetryResponse(error_code=error_code)


HANDLERS: Final = MappingProxyType({one.api_key: one for one in (handle_get, handle_push)})
