"""AddRaftVoter, RemoveRaftVoter and kraft.version over a connection (KIP-853)."""

from pathlib import Path

import pytest

from quorumlog.broker.responses.controller_answers import MESSAGE_MAX
from quorumlog.broker.responses.features import KRAFT_VERSION
from quorumlog.metadata_quorum.controller_client import (
    ControllerUnavailable,
    NewVoter,
    VoterChangeResult,
)
from quorumlog.metadata_quorum.image.features import METADATA_FEATURE
from quorumlog.storage.io.checkpoints import uuid_to_text
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId
from quorumlog.wire.codec.messages.add_raft_voter import AddRaftVoterRequest, Listener
from quorumlog.wire.codec.messages.api_versions import ApiVersionsRequest
from quorumlog.wire.codec.messages.remove_raft_voter import RemoveRaftVoterRequest
from quorumlog.wire.codec.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.support.groups import single_broker
from tests.support.groups.asking import asking, versions
from tests.unit.broker.test_server_features import ASK, levels

DIRECTORY = bytes(range(16))


def addition(host: str = "there", **fields: object) -> AddRaftVoterRequest:
    listeners = [Listener(name="CONTROLLER", host=host, port=9093), Listener(name="B", host="b")]
    given: dict[str, object] = {"voter_id": 4, "voter_directory_id": DIRECTORY}
    return AddRaftVoterRequest(**{**given, "listeners": listeners, **fields})  # type: ignore[arg-type]


def removal(cluster_id: str | None = None) -> RemoveRaftVoterRequest:
    return RemoveRaftVoterRequest(cluster_id=cluster_id, voter_id=4, voter_directory_id=DIRECTORY)


async def test_the_leader_is_asked_for_what_the_administrator_says(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        seen = broker.controller.voter_changes
        text = uuid_to_text(DIRECTORY)
        for version in versions(80):
            for host, address in (("there", "there:9093"), ("::1", "[::1]:9093")):
                request = addition(host, cluster_id="test", ack_when_committed=version == 0)
                response = await connection.send(request, version=version)
                assert (response.error_code, response.error_message) == (0, None)
                voter = NewVoter(voter_id=BrokerId(4), directory_id=text, address=address)
                assert seen[-1] == (voter, version == 0)
        removed = await connection.send(removal(), version=0)
        assert (removed.error_code, seen[-1]) == (0, (BrokerId(4), text))


async def test_the_leaders_refusal_is_the_answer(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        broker.controller.voter_change_result = VoterChangeResult(
            error_code=ErrorCode.DUPLICATE_VOTER, error_message="x" * 10_000
        )
        added = await connection.send(addition(), version=1)
        assert added.error_code == ErrorCode.DUPLICATE_VOTER
        assert len(str(added.error_message)) < MESSAGE_MAX + 10
        removed = await connection.send(removal(), version=0)
        assert removed.error_code == ErrorCode.DUPLICATE_VOTER


async def test_a_request_for_another_cluster_or_without_an_address_goes_no_further(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path) as (broker, connection):
        added = await connection.send(addition(cluster_id="other"), version=1)
        removed = await connection.send(removal("other"), version=0)
        homeless = await connection.send(addition(listeners=[]), version=1)
        assert added.error_code == removed.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
        assert homeless.error_code == ErrorCode.INVALID_REQUEST
        assert broker.controller.voter_changes == []


async def test_without_a_leader_the_outcome_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: object, **__: object) -> VoterChangeResult:
        raise ControllerUnavailable("silence")

    async with asking(tmp_path) as (broker, connection):
        for name in ("add_voter", "remove_voter", "upgrade_kraft_version"):
            monkeypatch.setattr(broker.controller, name, unavailable)
        for response in (
            await connection.send(addition(), version=1),
            await connection.send(removal(), version=0),
            await connection.send(upgrade(1), version=2),
        ):
            assert response.error_code == ErrorCode.REQUEST_TIMED_OUT
            assert "may have" in str(response.error_message)


# --- kraft.version ---


def upgrade(level: int, *others: str, validate_only: bool = False) -> UpdateFeaturesRequest:
    updates = [FeatureUpdateKey(feature=KRAFT_VERSION, max_version_level=level, upgrade_type=1)]
    updates += [
        FeatureUpdateKey(feature=name, max_version_level=2, upgrade_type=1) for name in others
    ]
    return UpdateFeaturesRequest(feature_updates=updates, validate_only=validate_only)


async def test_kraft_version_is_raised_by_the_leader_and_shown(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        answer = await connection.send(ASK, version=4)
        assert KRAFT_VERSION not in levels(answer)  # 0 is "off"
        [supported] = [one for one in answer.supported_features if one.name == KRAFT_VERSION]
        assert (supported.min_version, supported.max_version) == (0, 1)
        response = await connection.send(upgrade(1, validate_only=True), version=2)
        assert (response.error_code, broker.controller.quorum_level) == (0, 0)
        response = await connection.send(upgrade(1), version=2)
        assert (response.error_code, broker.controller.quorum_level) == (0, 1)
        assert levels(await connection.send(ApiVersionsRequest(
            client_software_name="t", client_software_version="1"
        ), version=4))[KRAFT_VERSION] == (1, 1)  # fmt: skip


@pytest.mark.parametrize("validate_only", [True, False])
async def test_kraft_version_waits_for_brokers_that_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validate_only: bool
) -> None:
    monkeypatch.setattr(single_broker, "ANNOUNCED", {METADATA_FEATURE: (1, 3)})
    async with asking(tmp_path) as (broker, connection):
        response = await connection.send(upgrade(1, validate_only=validate_only), version=2)
        assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert "does not support kraft.version 1" in str(response.error_message)
        assert broker.controller.quorum_level == 0


@pytest.mark.parametrize("level", [-1, 0, 2])
async def test_kraft_version_never_falls_and_has_an_end(tmp_path: Path, level: int) -> None:
    async with asking(tmp_path) as (broker, connection):
        broker.controller.quorum_level = 1
        response = await connection.send(upgrade(level), version=2)
        assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert broker.controller.quorum_level == 1


async def test_kraft_version_is_not_changed_beside_other_features(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        for version in (1, 2):
            request = upgrade(1, METADATA_FEATURE)
            response = await connection.send(request, version=version)
            assert response.error_code == ErrorCode.INVALID_REQUEST
        assert broker.controller.quorum_level == 0
        assert broker.context.image.features == {}
