"""Counters: each read lies between the lowest and the highest possible sum.

An `add` names a number, which may be negative; a `read` returns the sum. The lower bound of a read
is the sum of the positive adds acknowledged before it began and of the negative adds invoked before
it ended; the upper bound is the reverse. Source: jepsen.checker, counter.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa

from quorumlog.chaos.checkers.calls import by_key, calls_checker, count_calls, found, witness
from quorumlog.chaos.checkers.entries import FAIL, OK, Ints
from quorumlog.chaos.checkers.texts import TEXTS
from quorumlog.chaos.checkers.verdict import Anomaly, Partial
from quorumlog.chaos.history.model import HistoryError

_OUT_OF_BOUNDS: Final = "out-of-bounds"


def _check(calls: pa.Table) -> Partial:
    partial, told = Partial(counts=count_calls(calls)), []
    f = calls.column("f").to_pylist()
    is_add = np.array([name == "add" for name in f], np.bool_)
    _refuse_texts(calls, is_add)
    columns = ("outcome", "invoked", "completed", "value")
    outcome, invoked, completed, value = (calls.column(name).to_numpy() for name in columns)
    for key, rows in by_key(calls):
        adds = rows[is_add[rows] & (outcome[rows] != FAIL)]
        reads = rows[~is_add[rows] & (outcome[rows] == OK)]
        known = adds[outcome[adds] == OK]

        def asked(sign: int, of: Ints = adds, reads: Ints = reads) -> Ints:
            """Sum the adds invoked before each read ended."""
            return _sums(invoked[of], value[of], sign, completed[reads])

        def done(sign: int, of: Ints = known, reads: Ints = reads) -> Ints:
            """Sum the adds acknowledged before each read began."""
            return _sums(completed[of], value[of], sign, invoked[reads])

        least, most = done(1) + asked(-1), asked(1) + done(-1)
        bad = np.flatnonzero((value[reads] < least) | (value[reads] > most))
        told += [
            witness(
                calls,
                key,
                f"{value[reads[n]]} was read; from {least[n]} to {most[n]} is possible",
                [("read", int(reads[n]))],
            )
            for n in bad.tolist()
        ]
    if told:
        partial.results = [found(_OUT_OF_BOUNDS, told, len(told))]
    return partial


def _refuse_texts(calls: pa.Table, is_add: Any) -> None:
    """Raise HistoryError for an add, or a successful read, without a number."""
    must = is_add | (calls.column("outcome").to_numpy() == OK)
    for row in np.flatnonzero(must).tolist():
        if calls.column("text")[row].as_py():
            event, text = calls.column("invoked")[row], calls.column("text")[row]
            raise HistoryError(f"event {event}: {text} is no number, which the model counter needs")


def _sums(at: Ints, value: Ints, sign: int, before: Ints) -> Ints:
    """Return, for each moment in `before`, the sum of the earlier values of this sign."""
    order = np.argsort(at, kind="stable")
    amounts = np.where(np.sign(value[order]) == sign, value[order], 0)
    sums = np.concatenate([[0], np.cumsum(amounts)])
    total: Ints = sums[np.searchsorted(at[order], before)]
    return total


CHECKER: Final = calls_checker(
    "counter",
    TEXTS["counter"],
    (Anomaly(_OUT_OF_BOUNDS, "A read is no sum of earlier or concurrent adds."),),
    frozenset({"add", "read"}),
    _check,
)
