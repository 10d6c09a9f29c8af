"""Whole nodes that remove old segments: what is gone was committed, and planted bugs are found.

The workload expects to read all that it wrote, so that its history shows that records are gone.
Here only the oracle judges: below the log starts it compares nothing.
"""

from typing import Final

import pytest

from quorumlog.broker.partitions.core.partition_invariants import PartitionInvariants
from quorumlog.chaos.node_simulation.settings import NodesResult
from quorumlog.chaos.node_simulation.simulate import simulate_nodes
from quorumlog.storage.core.retention import Retention

pytestmark = pytest.mark.integration

CONFIG: Final = {
    "log.retention.bytes": "1500",
    "log.segment.bytes": "500",
    "log.retention.check.interval.ms": "100",
}


def run(seed: int, **changed: str) -> NodesResult:
    return simulate_nodes(seed, duration_ms=5000, config={**CONFIG, **changed})


@pytest.mark.parametrize("seed", [2, 8])
def test_what_is_left_is_right_under_faults(seed: int) -> None:
    result = run(seed)
    assert result.violations == ()
    assert "vanished-write" in result.anomalies  # segments are gone


def test_a_broker_that_removes_what_is_not_committed_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Retention, "is_committed", lambda *_: True)
    monkeypatch.setattr(PartitionInvariants, "check", lambda *_, **__: None)
    result = run(2, **{"log.retention.bytes": "0"})
    assert result.violations[0].startswith("committed-kept")
