"""What a node says and refuses when it reads its disk."""

import asyncio
import logging
from pathlib import Path

import pytest

from quorumlog.metadata_quorum.core.messages import EPOCH_STEP_MAX
from quorumlog.metadata_quorum.io.election_store import Election, ElectionStore
from quorumlog.metadata_quorum.io.metadata_log import DIRECTORY
from quorumlog.metadata_quorum.io.node import MetadataQuorum
from quorumlog.metadata_quorum.io.settings import MetadataQuorumSettings
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
