"""What a node says and refuses when it reads its disk."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.metadata_quorum.core.messages import EPOCH_STEP_MAX
from quorumlog.metadata_quorum.io.founding import VotersChanged
from quorumlog.metadata_quorum.io.metadata_quorum import MetadataQuorum
from quorumlog.metadata_quorum.log.election_store import Election, ElectionStore
from quorumlog.metadata_quorum.log.metadata_log import DIRECTORY
from quorumlog.metadata_quorum.settings import MetadataQuorumSettings
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.identifiers import BrokerId, Epoch


def settings(directory: Path, *voters: int) -> MetadataQuorumSettings:
    return MetadataQuorumSettings(
        cluster_id="c",
        node_id=BrokerId(1),
        voters={BrokerId(voter): f"127.0.0.1:{voter}" for voter in voters or (1, 2, 3)},
        log_dir=str(directory),
    )


def open_and_close(given: MetadataQuorumSettings) -> None:
    async def scenario() -> None:
        await MetadataQuorum(given, RealDisk()).stop(resign=False)

    asyncio.run(scenario())


def save(directory: Path, **election: int) -> None:
    (directory / DIRECTORY).mkdir(exist_ok=True)
    store = ElectionStore(RealDisk(), str(directory / DIRECTORY))
    store.save(Election(leader_epoch=Epoch(election["leader_epoch"])))


@pytest.mark.parametrize(("epoch", "warns"), [(EPOCH_STEP_MAX, False), (EPOCH_STEP_MAX + 1, True)])
def test_an_absurd_epoch_on_the_disk_is_named_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, epoch: int, warns: bool
) -> None:
    save(tmp_path, leader_epoch=epoch)
    with caplog.at_level(logging.WARNING):
        open_and_close(settings(tmp_path))
    assert (f"quorum-state of node 1 names epoch {epoch}" in caplog.text) is warns


# --- the first start ---


def state(directory: Path) -> Election:
    return ElectionStore(RealDisk(), str(directory / DIRECTORY)).load()


def test_a_voter_of_a_new_cluster_has_its_election_state_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_and_close(replace(settings(tmp_path), is_new_cluster=True))
    assert state(tmp_path) == Election(voters=(BrokerId(1), BrokerId(2), BrokerId(3)))
    assert caplog.text == ""


def test_a_voter_without_its_election_state_is_new_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        open_and_close(settings(tmp_path))
        assert state(tmp_path) == Election(is_new=True)
    assert "node 1 has lost its last vote" in caplog.text
    assert "new-cluster" in caplog.text


def test_a_lone_voter_has_nobody_to_mislead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_and_close(settings(tmp_path, 1))
    assert not state(tmp_path).is_new
    assert caplog.text == ""


def test_the_voters_of_a_cluster_are_those_of_its_last_run(tmp_path: Path) -> None:
    open_and_close(replace(settings(tmp_path, 1, 2, 3), is_new_cluster=True))
    message = (
        r"names 1, 2, but node 1 has voted in a quorum of 1, 2, 3: the voters .* cannot change"
    )
    with pytest.raises(VotersChanged, match=message):
        open_and_close(settings(tmp_path, 1, 2))
    with pytest.raises(VotersChanged):
        open_and_close(settings(tmp_path, 2, 3))  # it was one of them
    open_and_close(settings(tmp_path, 3, 2, 1))


def test_an_election_state_of_an_earlier_version_names_no_voters_and_is_taken(
    tmp_path: Path,
) -> None:
    save(tmp_path, leader_epoch=3)
    assert state(tmp_path).voters is None
    open_and_close(settings(tmp_path, 1, 2))
