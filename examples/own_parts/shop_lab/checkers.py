"""A checker: the reads of one process of one key never fall."""

import pyarrow as pa

from quorumlog.chaos.checkers.calls import by_key, calls_checker, count_calls, found, witness
from quorumlog.chaos.checkers.entries import OK
from quorumlog.chaos.checkers.verdict import Anomaly, Partial


def _check(calls: pa.Table) -> Partial:
    partial, witnesses = Partial(counts=count_calls(calls)), []
    columns = ("process", "outcome", "value")
    process, outcome, value = (calls.column(name).to_numpy() for name in columns)
    for key, rows in by_key(calls):
        last: dict[int, int] = {}  # process -> the row of its last read
        for row in (int(row) for row in rows if outcome[row] == OK):
            before = last.get(process[row], row)
            if value[row] < value[before]:
                text = f"{value[row]} was read after {value[before]}"
                witnesses.append(witness(calls, key, text, [("first", before), ("then", row)]))
            last[process[row]] = row
    if witnesses:
        partial.results = [found("fallen", witnesses, len(witnesses))]
    return partial


CHECKER = calls_checker(
    "rising",
    "the reads of one process never fall",
    (Anomaly("fallen", "A read found less than an earlier read of the same process."),),
    frozenset({"read"}),
    _check,
)
