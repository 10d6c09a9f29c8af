"""The levels of features that a run changes."""

from typing import Any, cast

from quorumlog.chaos.back_ends.admin_churner import FeatureLevels
from quorumlog.client import Admin
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from quorumlog.wire.codec.messages.update_features import (
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

HIGHEST = {"group.version": 1, "transaction.version": 2}


class Cluster:
    """Has features at these levels. `refuses` to change them, if it is told to."""

    def __init__(self) -> None:
        self.levels, self.refuses = {**HIGHEST}, False

    async def request(self, request: Any) -> Any:
        if isinstance(request, ApiVersionsRequest):
            return ApiVersionsResponse(
                error_code=0,
                api_keys=[],
                throttle_time_ms=0,
                supported_features=[
                    SupportedFeatureKey(name=name, min_version=0, max_version=level)
                    for name, level in HIGHEST.items()
                ],
                finalized_features=[
                    FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=0)
                    for name, level in self.levels.items()
                    if level
                ],
            )
        assert isinstance(request, UpdateFeaturesRequest)
        (update,) = request.feature_updates
        error_code = ErrorCode.FEATURE_UPDATE_FAILED if self.refuses else ErrorCode.NONE
        if not self.refuses:
            self.levels[update.feature] = update.max_version_level
        return UpdateFeaturesResponse(
            throttle_time_ms=0, error_code=error_code, error_message=None, results=[]
        )


async def test_what_was_lowered_is_raised_again() -> None:
    cluster, levels = Cluster(), FeatureLevels()
    admin = cast(Admin, cluster)
    while HIGHEST["group.version"] == cluster.levels["group.version"]:
        assert await levels.change_one(admin)
    assert levels.are_lowered
    for _ in range(20):
        assert await levels.change_one(admin)
    await levels.raise_again(admin)
    assert cluster.levels == HIGHEST
    assert not levels.are_lowered


async def test_what_the_cluster_does_not_raise_yet_is_asked_for_again() -> None:
    cluster, levels = Cluster(), FeatureLevels()
    admin = cast(Admin, cluster)
    assert await levels.change_one(admin)
    cluster.refuses = True
    assert not await levels.change_one(admin)
    await levels.raise_again(admin)
    assert levels.are_lowered
    cluster.refuses = False
    await levels.raise_again(admin)
    assert cluster.levels == HIGHEST
