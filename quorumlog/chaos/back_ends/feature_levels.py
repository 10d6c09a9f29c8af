"""Raises and lowers the levels of all features of a cluster (KIP-584)."""

from collections.abc import Mapping
from typing import Final

from quorumlog import chance
from quorumlog.client import Admin
from quorumlog.wire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from quorumlog.wire.codec.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

_UPGRADE: Final = 1
_SAFE_DOWNGRADE: Final = 2
_TIMEOUT_MS: Final = 5_000


class FeatureLevels:
    """Changes levels, and in the end raises the lowered ones again.

    Raised levels stay: some of them cannot be lowered (kraft.version).
    """

    def __init__(self) -> None:
        self._lowered: Final[dict[str, int]] = {}  # the highest former level of a feature

    @property
    def are_lowered(self) -> bool:
        """Whether a feature may have a lower level than before."""
        return bool(self._lowered)

    async def change_one(self, admin: Admin) -> bool:
        """Set one feature to another level; False: there is no other, or the cluster refuses."""
        known = await _ask_levels(admin)
        now = _finalized(known)
        others = [
            (one.name, level)
            for one in known.supported_features
            for level in range(one.min_version, one.max_version + 1)
            if level != now.get(one.name)
        ]
        if not others:
            return False
        name, level = others[chance.random_number(len(others))]
        is_lower = level < now.get(name, level)
        if is_lower:
            self._lowered[name] = max(now[name], self._lowered.get(name, 0))
        return await _set(admin, name, level, _SAFE_DOWNGRADE if is_lower else _UPGRADE)

    async def raise_again(self, admin: Admin) -> None:
        """Restore the highest level of each feature. Raises the errors of `Admin.request`."""
        now = _finalized(await _ask_levels(admin))
        for name, level in [*self._lowered.items()]:
            if now.get(name, 0) >= level or await _set(admin, name, level, _UPGRADE):
                del self._lowered[name]


async def _ask_levels(admin: Admin) -> ApiVersionsResponse:
    asked = ApiVersionsRequest(client_software_name="chaos", client_software_version="1")
    return await admin.request(asked)


def _finalized(known: ApiVersionsResponse) -> Mapping[str, int]:
    return {one.name: one.max_version_level for one in known.finalized_features}


async def _set(admin: Admin, name: str, level: int, kind: int) -> bool:
    update = FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
    request = UpdateFeaturesRequest(timeout_ms=_TIMEOUT_MS, feature_updates=[update])
    return (await admin.request(request)).error_code == 0
