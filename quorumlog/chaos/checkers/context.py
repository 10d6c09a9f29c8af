"""The context of a run: its few operations on which the entries of other runs depend.

A run is any set of whole operations; a process may have operations in many runs. Two polls of a
process are consecutive only if no operation between them moved its position, and the lives of
readers span all runs. The context of a run has the operations that move positions (see positions),
and of each process its last operation, its last poll, its last successful poll and the first of its
operations that names each key. The context of joined contexts is the context of all their runs.
"""

import numpy as np
import pyarrow as pa

from quorumlog.chaos.checkers.entries import OK, Flags, Ints, sorted_codes
from quorumlog.chaos.checkers.positions import are_moves
from quorumlog.chaos.history.model import NEMESIS, OUTCOMES


def context_of(table: pa.Table) -> pa.Table:
    """Return the context of a run of operations, in the order of their invocations."""
    process = table.column("process").to_numpy()
    fs, f = sorted_codes(table.column("f"))
    names, code = sorted_codes(table.column("type"))
    outcome = np.array([OUTCOMES.index(name) for name in names] or [0], np.int32)[code]

    def is_f(*names: str) -> Flags:
        found: Flags = np.isin(f, [code for code, name in enumerate(fs) if name in names])
        return found

    clients, polls = process != NEMESIS, is_f("poll")
    order = np.argsort(table.column("invoked").to_numpy(), kind="stable")
    order = order[clients[order]]
    processes, number = np.unique(process, return_inverse=True)
    chosen = clients & are_moves(is_f, outcome)
    for wanted in (order, order[polls[order]], order[(polls & (outcome == OK))[order]]):
        last = np.full(len(processes), -1)
        last[number[wanted]] = wanted  # the last write stays
        chosen[last[last >= 0]] = True
    chosen[_first_of_keys(table, order[(polls | is_f("assign"))[order]], number)] = True
    return table.take(pa.array(order[chosen[order]]))


def _first_of_keys(table: pa.Table, rows: Ints, number: Ints) -> Ints:
    """Return those of `rows` that are the first of their process to name a key."""
    micro = table.column("micro").combine_chunks()
    lengths = micro.value_lengths().to_numpy(zero_copy_only=False)
    keys, key = sorted_codes(micro.flatten().field("key"))
    rank = np.full(len(number), len(rows))
    rank[rows] = np.arange(len(rows))
    at = np.flatnonzero(np.repeat(rank < len(rows), lengths))
    of = np.repeat(np.arange(len(number)), lengths)[at]
    new = np.append(True, (of[1:] != of[:-1]) | (key[at][1:] != key[at][:-1]))[: len(at)]
    of, key = of[new], key[at[new]]  # most operations name one key many times
    _, place = np.unique(number[of] * len(keys) + key, return_inverse=True)
    first = np.full(int(place.max(initial=-1)) + 1, len(rows))
    np.minimum.at(first, place, rank[of])
    found: Ints = rows[first]
    return found
