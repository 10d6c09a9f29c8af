"""Feature levels: described and changed. Source: KIP-584, KIP-778."""

from collections.abc import Mapping
from typing import Final

from quorumlog.client import descriptions as about
from quorumlog.client.admin.asker import Asker
from quorumlog.client.checks import checked_mapping, code_of
from quorumlog.client.descriptions import UpgradeKind
from quorumlog.client.io.cluster import check, labelled
from quorumlog.wire.codec.messages import update_features as update_
from quorumlog.wire.codec.messages.api_versions import ApiVersionsRequest

_KINDS: Final[Mapping[str, int]] = {"upgrade": 1, "safe_downgrade": 2, "unsafe_downgrade": 3}


async def describe(asker: Asker) -> dict[str, about.FeatureDescription]:
    """See Admin.describe_features."""
    request = ApiVersionsRequest(client_software_name="quorumlog", client_software_version="0")
    response = await asker.ask(request, changes=False)
    known = {one.name: one for one in response.supported_features}
    levels = {one.name: one.max_version_level for one in response.finalized_features}
    return {
        name: about.FeatureDescription(
            level=levels.get(name, 0),
            least=known[name].min_version if name in known else None,
            greatest=known[name].max_version if name in known else None,
        )
        for name in sorted({*known, *levels})
    }


async def update(
    asker: Asker, levels: Mapping[str, int], kind: UpgradeKind, *, validate_only: bool
) -> None:
    """See Admin.update_features."""
    upgrade_type = code_of(_KINDS, kind, "kind")
    if not checked_mapping(levels, "features to levels"):
        raise ValueError("no feature is given")
    updates = [
        update_.FeatureUpdateKey(
            feature=name,
            max_version_level=_checked_level(name, level),
            allow_downgrade=kind != "upgrade",
            upgrade_type=upgrade_type,
        )
        for name, level in levels.items()
    ]
    request = update_.UpdateFeaturesRequest(feature_updates=updates, validate_only=validate_only)

    async def attempt() -> None:
        response = await asker.request(request)
        check(response.error_code, response.error_message or "UpdateFeatures")
        for one in response.results:  # before version 2
            check(one.error_code, labelled(one.feature, one.error_message))

    await asker.retry(attempt, changes=True)


def _checked_level(name: str, level: int) -> int:
    if isinstance(level, bool) or not isinstance(level, int):
        raise TypeError(f"feature {name!r}: a level is an int, not {level!r}")
    return level
