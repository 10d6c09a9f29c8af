"""UpdateFeatures (57): raises or lowers feature levels. Source: KIP-584, KIP-778, KIP-1022."""

from typing import Final

from quorumlog.broker.responses.cluster_answers import changed_cluster
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.cluster_changes import FeatureUpdate, UpdateFeatures, UpgradeType
from quorumlog.wire.codec.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader

FIRST_VERSION_WITH_TYPES: Final = 1
FIRST_VERSION_WITHOUT_RESULTS: Final = 2


@answers(UpdateFeaturesRequest, 0, 2)
async def handle(
    context: BrokerContext, header: RequestHeader, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    """Change all levels or none. Before version 2 each feature has the result of all."""
    updates = tuple(_update(header.api_version, one) for one in request.feature_updates)
    [outcome] = await changed_cluster(
        context,
        UpdateFeatures(updates=updates, validate_only=request.validate_only),
        doubt="the levels may have changed",
    )
    response = UpdateFeaturesResponse(
        error_code=outcome.error_code, error_message=outcome.error_message
    )
    if header.api_version < FIRST_VERSION_WITHOUT_RESULTS:
        response.results = [
            UpdatableFeatureResult(
                feature=one.feature,
                error_code=outcome.error_code,
                error_message=outcome.error_message,
            )
            for one in request.feature_updates
        ]
    return response


def _update(version: int, one: FeatureUpdateKey) -> FeatureUpdate:
    upgrade_type = one.upgrade_type
    if version < FIRST_VERSION_WITH_TYPES:
        upgrade_type = UpgradeType.SAFE_DOWNGRADE if one.allow_downgrade else UpgradeType.UPGRADE
    return FeatureUpdate(name=one.feature, level=one.max_version_level, upgrade_type=upgrade_type)
