"""Verdicts on random runs: of a model of a broker, and of histories with one planted anomaly.

The model knows by itself whether its clients were wronged. No run of an ideal broker is invalid,
however uncertain its clients are; and every run in which a broken broker showed a client what an
ideal one could not have shown is invalid.
"""

import random
from collections.abc import Callable, Sequence

import pytest

from quorumlog.chaos.checkers import Severity, check_history, verdict, witnesses
from quorumlog.chaos.history import Operation
from quorumlog.chaos.history.operations_table import table_of
from tests.support.chaos.broker_faults import FAULTS
from tests.support.chaos.broker_model import Fault, Run, consumed, produced
from tests.support.chaos.hand_made_histories import found, rows_of
from tests.support.chaos.random_histories import PLANTS, Sketch, good
from tests.support.sizes import tries

RUNS = 600
RUNS_WITH_A_FAULT = 60
LOT = 75  # runs that are judged as one history, with keys and processes of their own
PROCESSES = 1_000  # that a run may have


def together(runs: Sequence[Run]) -> list[Operation]:
    """Put many runs into one history, in which no run touches a key or a process of another."""
    for number, run in enumerate(runs):
        for op in run.ops:
            op.process += PROCESSES * number
            op.messages = [(f"{number}/{key}", offset, value) for key, offset, value in op.messages]
    return rows_of([op for run in runs for op in run.ops])


@pytest.mark.parametrize("calm", [True, False], ids=["calm", "uncertain"])
def test_an_ideal_broker_is_never_accused(calm: bool) -> None:
    for first in range(0, tries(RUNS), LOT):
        runs = [consumed(produced(seed, calm=calm)) for seed in range(first, first + LOT)]
        assert not any(run.damage for run in runs)
        rows = together(runs)
        for form in ("marked", "unmarked"):
            found = check_history(table_of(rows, final_reads=form))
            # Jepsen's form takes what no reader read for lost; a reader may have given up.
            is_right = "" if calm or form == "marked" else "unseen"
            bad = {one.name for one in found.results if one.severity is Severity.INVALID}
            assert bad <= {is_right}, (first, form, found.as_json())
            assert found.valid is True or not calm, (first, form, found.unknown_because)


def test_operations_in_any_order_give_the_same_verdict() -> None:
    runs = [consumed(produced(seed, calm=False)) for seed in range(20)]
    table = table_of(together(runs))
    places = random.Random(1).sample(range(table.num_rows), table.num_rows)
    assert check_history(table.take(places)).as_json() == check_history(table).as_json()


@pytest.mark.parametrize("break_it", FAULTS, ids=lambda fault: fault.__name__)
def test_what_a_broken_broker_shows_is_found(
    break_it: Callable[[Run], Fault | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (verdict, witnesses):
        monkeypatch.setattr(module, "WITNESSES_MAX", 1 << 20)
    runs: list[tuple[int, Run]] = []
    for seed in range(tries(RUNS_WITH_A_FAULT)):
        run = produced(seed, calm=seed % 2 == 0)
        fault = break_it(run)
        if fault is not None:
            run.fault = fault
            runs.append((seed, consumed(run)))
    accused = {
        witness["ops"][0]["process"] // PROCESSES
        for result in check_history(table_of(together([run for _, run in runs]))).results
        if result.severity is Severity.INVALID
        for witness in result.witnesses
    }
    for number, (seed, run) in enumerate(runs):
        assert (number in accused) == bool(run.damage), (seed, run.damage)
    assert len(accused) > len(runs) // 3


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
