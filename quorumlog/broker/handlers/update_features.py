"""UpdateFeatures (57): raises or lowers feature levels. Source: KIP-584, KIP-778, KIP-1022."""

from typing import Final

from quorumlog.broker.responses.controller_answers import changed_cluster, changed_voters
from quorumlog.broker.responses.features import (
    KRAFT_VERSION,
    KRAFT_VERSION_MAX,
    kraft_version_problem,
)
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.cluster_changes import (
    DONE,
    FeatureUpdate,
    Outcome,
    UpdateFeatures,
    UpgradeType,
)
from quorumlog.wire.codec.error_codes import ErrorCode
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
    """Change all levels or none. Before version 2, every feature gets the same result."""
    updates = tuple(_update(header.api_version, one) for one in request.feature_updates)
    if KRAFT_VERSION in {one.name for one in updates}:
        outcome = await _upgrade_kraft_version(context, updates, request)
    else:
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


async def _upgrade_kraft_version(
    context: BrokerContext, updates: tuple[FeatureUpdate, ...], request: UpdateFeaturesRequest
) -> Outcome:
    """Raise `kraft.version`: the leader of the quorum decides, not its controller."""
    if len(updates) > 1:
        # DEVIATION: Kafka changes it together with other features.
        # docs/decisions/0001-voter-changes.md
        message = f"{KRAFT_VERSION} cannot be changed beside other features"
        return Outcome(error_code=ErrorCode.INVALID_REQUEST, error_message=message)
    [update] = updates
    if not context.controller.kraft_version <= update.level <= KRAFT_VERSION_MAX:
        return Outcome(
            error_code=ErrorCode.INVALID_UPDATE_VERSION,
            error_message=f"{KRAFT_VERSION} is {context.controller.kraft_version}: it can only be "
            f"raised, to {KRAFT_VERSION_MAX} at most",
        )
    problem = kraft_version_problem(context.image, update.level)
    if problem is not None:
        return Outcome(error_code=ErrorCode.INVALID_UPDATE_VERSION, error_message=problem)
    if request.validate_only:
        return DONE
    result = await changed_voters(
        context.controller.upgrade_kraft_version(update.level),
        doubt=f"{KRAFT_VERSION} may have changed",
    )
    return Outcome(error_code=result.error_code, error_message=result.error_message)


def _update(version: int, one: FeatureUpdateKey) -> FeatureUpdate:
    upgrade_type = one.upgrade_type
    if version < FIRST_VERSION_WITH_TYPES:
        upgrade_type = UpgradeType.SAFE_DOWNGRADE if one.allow_downgrade else UpgradeType.UPGRADE
    return FeatureUpdate(name=one.feature, level=one.max_version_level, upgrade_type=upgrade_type)
