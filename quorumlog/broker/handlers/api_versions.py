"""ApiVersions (18): the APIs and features of this broker. Source: KIP-35, KIP-511, KIP-584."""

import re
from typing import Final

from quorumlog.broker.responses.features import finalized_features, supported_features
from quorumlog.broker.server.api import BrokerContext, answers, version_ranges
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from quorumlog.wire.codec.schemas import RequestHeader

FIRST_VERSION_WITH_SOFTWARE: Final = 3
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@answers(ApiVersionsRequest, 0, 4)
def handle(
    context: BrokerContext, header: RequestHeader, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    """Return exactly the served APIs, and the supported and finalized features.

    A client whose name or version is not in KIP-511's form is refused with INVALID_REQUEST.
    """
    if header.api_version < FIRST_VERSION_WITH_SOFTWARE:
        return ApiVersionsResponse(api_keys=version_ranges(context))
    software = (request.client_software_name, request.client_software_version)
    if not all(map(_SOFTWARE.fullmatch, software)):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(
        api_keys=version_ranges(context),
        supported_features=supported_features(context, header.api_version),
        finalized_features_epoch=context.image.end_offset - 1,  # of the last applied record
        finalized_features=finalized_features(context),
    )
