"""Whole nodes whose topic is deleted and created again under live readers, and a planted bug."""

from typing import Final

import pytest

from quorumlog.chaos.node_simulation.settings import NodesResult
from quorumlog.chaos.node_simulation.simulate import simulate_nodes
from quorumlog.client.core.position import Position
from quorumlog.client.core.positions import Positions

pytestmark = pytest.mark.integration

FAULTS: Final = ("kill",)


def run(seed: int) -> NodesResult:
    return simulate_nodes(seed, duration_ms=6000, faults=FAULTS, workload="recreated_topic")


def test_each_life_of_the_topic_is_read_from_its_first_record() -> None:
    result = run(1)
    assert (result.violations, result.anomalies) == ((), ())
    assert result.verdict["valid"] is True


def test_a_position_that_outlives_its_topic_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def enter(_: Positions, position: Position, topic_id: bytes) -> bool:
        position.topic_id = topic_id
        return True

    monkeypatch.setattr(Positions, "maybe_enter", enter)
    assert "skipped-record" in run(1).anomalies
