"""Clusters of nodes that do nothing, which leave no state behind."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quorumlog.cluster import LocalCluster

FAKE = "tests.support.cluster.fake_node"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the registry and temporary clusters below the directory of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / "state/quorumlog/nodes"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., LocalCluster]]:
    """Make clusters of nodes that do nothing, in one directory; none outlives the test."""
    made: list[LocalCluster] = []

    def make(directory: Path | None = tmp_path / "c", **options: Any) -> LocalCluster:
        made.append(LocalCluster(directory, node_module=FAKE, **options))
        return made[-1]

    yield make
    for cluster in made:
        cluster.stop()
