"""Random histories of a cluster that keeps its promises are valid; one planted anomaly is found."""

from collections.abc import Callable

import pytest

from quorumlog.chaos.checkers import check_history
from quorumlog.chaos.history.pairing import table_of
from tests.support.chaos.hand_made_histories import found, rows_of
from tests.support.chaos.random_histories import PLANTS, Sketch, good
from tests.support.sizes import tries


@pytest.mark.parametrize("seed", range(tries(40)))
def test_a_cluster_that_keeps_its_promises_is_valid(seed: int) -> None:
    verdict = check_history(table_of(rows_of(good(seed).ops)))
    assert (found(verdict), verdict.unknown_because) == ([], [])
    assert verdict.valid is True


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_anomaly_is_found(plant: Callable[[Sketch], str], seed: int) -> None:
    sketch = good(1000 + seed)
    expected = plant(sketch)
    verdict = check_history(table_of(rows_of(sketch.ops)))
    assert expected in found(verdict)
    assert verdict.valid is False
    result = next(result for result in verdict.results if result.name == expected)
    assert result.count >= 1
    assert all(len(witness["ops"]) >= 1 for witness in result.witnesses)
