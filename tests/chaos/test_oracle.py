"""The checkers against the same rules written as loops, on thousands of histories."""

import pytest

from quorumlog.chaos.checkers import check_history
from quorumlog.chaos.history.pairing import table_of
from tests.support.chaos.hand_made_histories import rows_of
from tests.support.chaos.history_oracle import Oracle
from tests.support.chaos.random_histories import PLANTS, good
from tests.support.chaos.wild_histories import wild
from tests.support.sizes import tries

SEEDS = 1200
CHUNK = 100


@pytest.mark.parametrize("first", range(0, tries(SEEDS), CHUNK))
def test_wild_histories_get_the_verdict_of_the_oracle(first: int) -> None:
    valids = set()
    for seed in range(first, first + CHUNK):
        rows = rows_of(wild(seed))
        for marked in (True, False):
            table = table_of(rows, final_reads="marked" if marked else "unmarked")
            verdict = check_history(table)
            counts = {result.name: result.count for result in verdict.results}
            assert (verdict.valid, counts) == Oracle(rows, marked=marked).judge(), seed
            valids.add(verdict.valid)
    assert valids == {True, False, "unknown"}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_orderly_histories_do_too(plant: object) -> None:
    assert callable(plant)
    for sketch in (good(4000), good(4001)):
        plant(sketch)
        rows = rows_of(sketch.ops)
        verdict = check_history(table_of(rows))
        counts = {result.name: result.count for result in verdict.results}
        assert (verdict.valid, counts) == Oracle(rows).judge()
