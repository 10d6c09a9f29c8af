"""Raises or lowers the level of a feature of a cluster, whatever features it has (KIP-584)."""

from typing import Final

from quorumlog import chance
from quorumlog.client import Admin
from quorumlog.wire.codec.messages.api_versions import ApiVersionsRequest
from quorumlog.wire.codec.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

_UPGRADE: Final = 1
_SAFE_DOWNGRADE: Final = 2
_TIMEOUT_MS: Final = 5_000


async def change_a_level(admin: Admin) -> bool:
    """Set one feature to another level; False: there is none to set, or the cluster refuses."""
    asked = ApiVersionsRequest(client_software_name="chaos", client_software_version="1")
    known = await admin.request(asked)
    now = {one.name: one.max_version_level for one in known.finalized_features}
    others = [
        (one.name, level)
        for one in known.supported_features
        for level in range(one.min_version, one.max_version + 1)
        if level != now.get(one.name)
    ]
    if not others:
        return False
    name, level = others[chance.random_number(len(others))]
    kind = _SAFE_DOWNGRADE if level < now.get(name, level) else _UPGRADE
    update = FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
    request = UpdateFeaturesRequest(timeout_ms=_TIMEOUT_MS, feature_updates=[update])
    return (await admin.request(request)).error_code == 0
