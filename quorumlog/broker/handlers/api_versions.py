"""ApiVersions (18): what this broker answers. Source: KIP-35, KIP-511."""

from quorumlog.broker.handlers.api import ApiHandler
from quorumlog.broker.io.context import BrokerContext
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader


def _ranges(context: BrokerContext) -> list[ApiVersion]:
    return [
        ApiVersion(
            api_key=handler.api_key,
            min_version=_advertised_min_version(handler),
            max_version=handler.max_version,
        )
        for _, handler in sorted(context.handlers.items())
    ]


def _advertised_min_version(handler: ApiHandler) -> int:
    advertised = handler.advertised_min_version
    return handler.min_version if advertised is None else advertised


def unsupported_version(context: BrokerContext) -> ApiVersionsResponse:
    """Return what is said in version 0 to a client that asks in a version we do not know."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_ranges(context))


def handle(
    context: BrokerContext, header: RequestHeader, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    """Answer with exactly what is registered."""
    del header, request
    return ApiVersionsResponse(error_code=ErrorCode.NONE, api_keys=_ranges(context))


HANDLER = ApiHandler(
    api_key=ApiVersionsRequest.API_KEY, min_version=0, max_version=4, handle=handle
)
