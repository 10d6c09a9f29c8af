"""ApiVersions (18): what this broker answers. Source: KIP-35, KIP-511, KIP-584 (features)."""

import re
from typing import Final

from quorumlog.broker.handlers.api import ApiHandler
from quorumlog.broker.handlers.features import (
    finalized_features,
    finalized_features_epoch,
    supported_features,
)
from quorumlog.broker.io.context import BrokerContext
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader

FIRST_VERSION_WITH_SOFTWARE: Final = 3
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


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
    """Answer with exactly what is registered, and the features that are in force.

    A client that gives its name, but not in KIP-511's form, is refused with INVALID_REQUEST.
    """
    if header.api_version < FIRST_VERSION_WITH_SOFTWARE:
        return ApiVersionsResponse(api_keys=_ranges(context))
    software = (request.client_software_name, request.client_software_version)
    if not all(map(_SOFTWARE.fullmatch, software)):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(
        api_keys=_ranges(context),
        supported_features=supported_features(header.api_version),
        finalized_features_epoch=finalized_features_epoch(context.image),
        finalized_features=finalized_features(),
    )


HANDLER = ApiHandler(
    api_key=ApiVersionsRequest.API_KEY, min_version=0, max_version=4, handle=handle
)
