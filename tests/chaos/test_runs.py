"""A history that is cut anywhere, also within a process, has the verdict of the whole."""

import random

import pyarrow as pa
import pytest

from quorumlog.chaos.checkers import check_history
from quorumlog.chaos.checkers.kafka_log import CHECKER
from quorumlog.chaos.checking.parts.cutting import spread
from quorumlog.chaos.history.pairing import table_of
from tests.support.chaos.hand_made_histories import rows_of
from tests.support.chaos.joined_histories import same
from tests.support.chaos.runs import checked_in_runs
from tests.support.chaos.wild_histories import wild, with_transactions
from tests.support.sizes import tries


@pytest.mark.parametrize("first", [0, 107])
def test_runs_of_any_length_in_any_order_give_the_verdict_of_the_whole(first: int) -> None:
    for seed in range(first, first + tries(8)):
        whole, rng = table_of(rows_of(wild(seed))), random.Random(seed)
        same(checked_in_runs(whole, CHECKER, rng), check_history(whole))


def test_transactions_may_be_cut_from_each_other() -> None:
    found = set()
    for seed in range(8):
        whole = table_of(rows_of(with_transactions(wild(seed), seed)))
        verdict = check_history(whole)
        same(checked_in_runs(whole, CHECKER, random.Random(seed)), verdict)
        found |= {result.name for result in verdict.results}
    assert "precommitted-read" in found


def test_the_context_of_contexts_is_that_of_their_runs() -> None:
    assert CHECKER.runs is not None
    for seed in range(tries(12)):
        whole = table_of(rows_of(wild(seed)))
        runs = [whole.slice(start, 7) for start in range(0, whole.num_rows, 7)]
        put_together = CHECKER.runs.context(pa.concat_tables(map(CHECKER.runs.context, runs)))
        assert put_together.equals(CHECKER.runs.context(whole).cast(put_together.schema))


def test_keys_of_all_sizes_are_spread_evenly() -> None:
    sizes = {f"key-{number}": 10 + number for number in range(12)}
    places = spread(sizes, 4)
    loads = [sum(sizes[key] for key in sizes if places[key] == part) for part in range(4)]
    assert max(loads) - min(loads) <= min(sizes.values())
    assert spread({}, 4) == {}
