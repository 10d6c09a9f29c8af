"""Whole nodes that compact a topic: clients read the newest values, and planted bugs are found."""

from typing import Final

import pytest

from quorumlog.chaos.node_simulation.settings import NodesResult
from quorumlog.chaos.node_simulation.simulate import simulate_nodes
from quorumlog.storage.core.cleaning import NewestOffsets

pytestmark = pytest.mark.integration

CONFIG: Final = {
    "log.cleaner.backoff.ms": "200",
    "log.segment.bytes": "1500",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.cleaner.delete.retention.ms": "1000",
}


def run(seed: int) -> NodesResult:
    return simulate_nodes(seed, duration_ms=6000, config=CONFIG, workload="compacted_register")


@pytest.mark.parametrize("seed", [3, 19])
def test_the_newest_values_stay_under_faults(seed: int) -> None:
    result = run(seed)
    assert (result.violations, result.anomalies) == ((), ())


def test_a_cleaner_that_drops_the_newest_value_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NewestOffsets, "is_replaced", lambda *_: True)
    assert run(3).anomalies
