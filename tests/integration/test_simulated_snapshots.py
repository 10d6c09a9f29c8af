"""Whole nodes that cut their metadata logs: those far behind get snapshots, and all agree."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from quorumlog.chaos.node_simulation.settings import NodesResult
from quorumlog.chaos.node_simulation.simulate import simulate_nodes
from quorumlog.metadata_quorum.core.messages import SnapshotId
from quorumlog.metadata_quorum.driver import snapshotting
from quorumlog.metadata_quorum.image.model import ClusterImage
from quorumlog.metadata_quorum.image.records import MetadataRecord, ProducerIds
from quorumlog.metadata_quorum.image.snapshot_records import records_of
from quorumlog.metadata_quorum.log.metadata_log import MetadataLog

pytestmark = pytest.mark.integration

CONFIG: Final = {
    "metadata.log.max.record.bytes.between.snapshots": "300",
    "metadata.log.segment.bytes": "400",
    "metadata.max.retention.bytes": "500",
}


def run(seed: int, workload: str, *, until_violated: bool = False) -> NodesResult:
    return simulate_nodes(
        seed,
        duration_ms=5000,
        workload=workload,
        config=CONFIG,
        until_violated=until_violated,
    )


def noting(
    install: Callable[[MetadataLog, SnapshotId], None], noted: Path
) -> Callable[[MetadataLog, SnapshotId], None]:
    """Note each installation in a file: the run is in another process."""

    def install_and_note(log: MetadataLog, snapshot_id: SnapshotId) -> None:
        install(log, snapshot_id)
        noted.write_text(snapshot_id.file_name)

    return install_and_note


def test_nodes_far_behind_agree_with_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    noted = tmp_path / "installed"
    install = noting(MetadataLog.install_fetched, noted)
    monkeypatch.setattr(MetadataLog, "install_fetched", install)
    result = run(1, "metadata_linearizable")
    assert (result.valid, result.violations, result.anomalies) == (True, (), ())
    assert noted.exists()


def test_a_snapshot_that_lacks_a_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def incomplete(image: ClusterImage) -> Iterator[MetadataRecord]:
        return (record for record in records_of(image) if not isinstance(record, ProducerIds))

    monkeypatch.setattr(snapshotting, "records_of", incomplete)
    result = run(1, "idempotent_send", until_violated=True)
    assert result.violations[0].startswith("metadata-agree: ")
