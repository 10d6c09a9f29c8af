"""Verdicts on runs of a model of a broker, which knows by itself whether its clients were wronged.

No run of an ideal broker is invalid, however uncertain its clients are; and every run in which a
broken broker showed a client what an ideal one could not have shown is invalid.
"""

from collections.abc import Callable

import pytest

from quorumlog.chaos.checkers import Verdict, check_history
from quorumlog.chaos.history.pairing import table_of
from tests.support.chaos.broker_faults import FAULTS
from tests.support.chaos.broker_model import Fault, Run, consumed, produced
from tests.support.chaos.hand_made_histories import rows_of
from tests.support.sizes import tries

SEEDS = 400


def judged(run: Run) -> Verdict:
    return check_history(table_of(rows_of(run.ops)))


@pytest.mark.parametrize("calm", [True, False], ids=["calm", "uncertain"])
def test_an_ideal_broker_is_never_accused(calm: bool) -> None:
    valid = 0
    for seed in range(tries(SEEDS)):
        run = consumed(produced(seed, calm=calm))
        assert not run.damage, (seed, run.damage)
        verdict = judged(run)
        assert verdict.valid is not False, (seed, verdict.as_json())
        assert verdict.valid is True or not calm, (seed, verdict.unknown_because)
        valid += verdict.valid is True
    assert valid > tries(SEEDS) // 4


@pytest.mark.parametrize("break_it", FAULTS, ids=lambda fault: fault.__name__)
def test_what_a_broken_broker_shows_is_found(break_it: Callable[[Run], Fault | None]) -> None:
    found = 0
    for seed in range(tries(SEEDS) // 4):
        run = produced(seed, calm=seed % 2 == 0)
        fault = break_it(run)
        if fault is None:
            continue
        run.fault = fault
        verdict = judged(consumed(run))
        assert (verdict.valid is False) == bool(run.damage), (seed, run.damage, verdict.as_json())
        found += bool(run.damage)
    assert found > 3
