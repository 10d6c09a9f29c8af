"""The API versions that this broker serves, as ApiVersions (18) lists them."""

from quorumlog.broker.server.api import BrokerContext
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.api_versions import ApiVersion, ApiVersionsResponse


def version_ranges(context: BrokerContext) -> list[ApiVersion]:
    """Return the versions of every API that has a handler, by API key."""
    return [
        ApiVersion(
            api_key=handler.api_key,
            min_version=handler.advertised_min_version,
            max_version=handler.max_version,
        )
        for _, handler in sorted(context.handlers.items())
    ]


def unsupported_version(context: BrokerContext) -> ApiVersionsResponse:
    """Return the response, in version 0, to an ApiVersions request of an unsupported version."""
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=version_ranges(context)
    )
