"""ApiVersions from v3 on: who the client is (KIP-511), and which features are in force."""

from pathlib import Path

import pytest

from quorumlog.broker.responses.features import FEATURES
from quorumlog.metadata_quorum.image import ClusterDelta
from quorumlog.metadata_quorum.image.features import METADATA_FEATURE, SUPPORTED
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset
from quorumlog.wire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from quorumlog.wire.codec.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.support.groups.asking import asking, versions

ASK = ApiVersionsRequest(client_software_name="test-client.2", client_software_version="1.0-rc1")


def levels(answer: ApiVersionsResponse) -> dict[str, tuple[int, int]]:
    return {
        one.name: (one.min_version_level, one.max_version_level)
        for one in answer.finalized_features
    }


async def test_a_level_is_raised_and_lowered_over_a_connection(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        for version in versions(57):
            up = FeatureUpdateKey(feature=METADATA_FEATURE, max_version_level=2)
            down = FeatureUpdateKey(
                feature=METADATA_FEATURE,
                max_version_level=1,
                allow_downgrade=True,
                upgrade_type=2,
            )
            for wanted, level in ((up, 2), (down, 1)):
                request = UpdateFeaturesRequest(feature_updates=[wanted])
                response = await connection.send(request, version=version)
                assert (response.error_code, response.error_message) == (0, None)
                answer = await connection.send(ASK, version=4)
                assert levels(answer)[METADATA_FEATURE] == (level, level)
            for name, level in (("share.version", 1), ("metadata.version", 28)):
                fixed = FeatureUpdateKey(feature=name, max_version_level=level)
                request = UpdateFeaturesRequest(feature_updates=[fixed])
                response = await connection.send(request, version=version)
                assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
                named = [(one.feature, one.error_code) for one in response.results]
                assert named == ([(name, response.error_code)] if version < 2 else [])


async def test_features_are_named_at_the_levels_that_are_true_here(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        broker.controller.publish(ClusterDelta(), end_offset=Offset(7))
        for version in (0, 1, 2):
            answer = await connection.send(ASK, version=version)
            assert answer.supported_features == []
            assert answer.finalized_features == []
        for version in (3, 4):
            answer = await connection.send(ASK, version=version)
            ranges = {
                feature.name: (feature.min_version, feature.max_version)
                for feature in answer.supported_features
            }
            least = 0 if version == 4 else 1  # older clients take no range that begins at 0
            assert ranges == {
                "eligible.leader.replicas.version": (1, 1),
                "group.version": (least, 1),
                "kraft.version": (least, 1),
                "metadata.version": (27, 27),
                "transaction.version": (least, 2),
                METADATA_FEATURE: (1, 6),
            }
            assert levels(answer) == {
                "eligible.leader.replicas.version": (1, 1),
                "metadata.version": (27, 27),
                METADATA_FEATURE: (1, 1),
            }
            assert answer.finalized_features_epoch == 6


def test_nothing_is_promised_that_makes_a_client_choose_a_protocol_that_is_not_there() -> None:
    names = {feature.name for feature in FEATURES} | {*SUPPORTED}
    assert names.isdisjoint({"share.version", "streams.version"})


@pytest.mark.parametrize("text", ["", "a b", "-a", "a.", "é", "a\n", "x" * 30_000 + "-"])
async def test_a_client_that_says_who_it_is_in_another_form_is_refused(
    tmp_path: Path, text: str
) -> None:
    async with asking(tmp_path) as (_, connection):
        for name, software_version in ((text, "1"), ("test", text)):
            request = ApiVersionsRequest(
                client_software_name=name, client_software_version=software_version
            )
            for version in (3, 4):
                refused = await connection.send(request, version=version)
                assert refused.error_code == ErrorCode.INVALID_REQUEST
                assert refused.api_keys == []
            older = await connection.send(request, version=2)
            assert older.error_code == ErrorCode.NONE
