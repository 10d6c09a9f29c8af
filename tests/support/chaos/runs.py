"""A check of runs of operations that lie in any order, as the tasks of Spark make them."""

import random

import pyarrow as pa

from quorumlog.chaos.checkers import Verdict
from quorumlog.chaos.checkers.checker import Checker, facts_of
from quorumlog.chaos.checkers.fault_bands import fault_bands
from quorumlog.chaos.checkers.fault_phase import fault_phase
from quorumlog.chaos.checking.parts.survey import look, survey_of
from quorumlog.chaos.checking.parts.table_cuts import cut_by_key, spread


def checked_in_runs(whole: pa.Table, checker: Checker, rng: random.Random) -> Verdict:
    assert checker.runs is not None
    facts, parts, step = facts_of(whole.schema.metadata), rng.choice([1, 3]), rng.choice([5, 20])
    cuts = [whole.slice(start, step) for start in range(0, whole.num_rows, step)]
    survey = survey_of((look(cut, checker) for cut in cuts), checker)
    taken_apart = [checker.runs.explode(cut, survey.context) for cut in cuts]
    taken_apart.append(checker.runs.explode_context(survey.context))
    rng.shuffle(taken_apart)
    places = spread({key: extent.size for key, extent in survey.extents.items()}, parts)
    keys = [part for _, part in cut_by_key(pa.concat_tables(taken_apart), parts, places)]
    nothing = checker.explode(whole.slice(0, 0))
    found = [checker.check(part.cast(checker.entries), facts) for part in (nothing, *keys)]
    bands = fault_bands(survey.nemesis)
    phase = fault_phase(survey.nemesis, bands, survey.acks)
    return checker.conclude(found, bands, facts).with_fault_phase(phase)
