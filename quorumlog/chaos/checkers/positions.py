"""Changes of a reader's position by anything other than reading.

Two polls of a process follow each other only if no operation between them moved its position.
Assign and subscribe (ok or info) forget every key that is not in their new list, as in Jepsen's
checker. A seek forgets the keys that it names. A crash forgets all keys, and so do a poll of
unknown outcome and a transaction that may not be committed: they may have taken records that no
other poll shows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from quorumlog.chaos.checkers.entries import FAIL, INFO, OK, Codes, Flags, Ints, sorted_codes
from quorumlog.chaos.checkers.rows import Rows
from quorumlog.chaos.history.model import NEMESIS, OUTCOMES

_LISTS: Final = ("assign", "subscribe")


@dataclass(slots=True, kw_only=True)
class Change:
    """One change. `keys`: the keys that it keeps (if `keeps`), or the keys that it moves."""

    op: int
    keeps: bool
    keys: Codes


@dataclass(slots=True, kw_only=True)
class Changes:
    """By process, in order; `seeks` are the `moves` of seek operations.

    `members` are the processes that ever subscribed, or polled as a member of a group.
    """

    moves: dict[int, list[Change]]
    seeks: dict[int, list[Change]]
    members: list[int]


def are_moves(is_f: Callable[..., Flags], outcome: Codes) -> Flags:
    """Return which operations moved a position or may have. `is_f` selects operations by f."""
    moving = is_f(*_LISTS, "seek", "crash") & (outcome != FAIL)
    moving |= is_f("poll", "final_poll") & (outcome == INFO)
    found: Flags = moving | (is_f("txn") & (outcome != OK))
    return found


def position_changes(rows: Rows) -> Changes:
    """Collect the changes that happened or may have."""
    moving = are_moves(rows.is_f, rows.outcome)
    members = rows.is_f("poll") & (rows.rebalanced | rows.of_member)
    members |= rows.is_f("subscribe") & moving
    changes = Changes(moves={}, seeks={}, members=np.unique(rows.process[members]).tolist())
    found = np.flatnonzero(moving)
    found = found[np.argsort(rows.invoked[found])]  # the rows of a part come in any order
    for row in found.tolist():
        process, f = int(rows.process[row]), rows.fs[rows.f[row]]
        named = slice(*rows.starts[row : row + 2]) if f in (*_LISTS, "seek") else slice(0)
        change = Change(op=int(rows.invoked[row]), keeps=f != "seek", keys=rows.key[named])
        changes.moves.setdefault(process, []).append(change)
        if f == "seek":
            changes.seeks.setdefault(process, []).append(change)
    return changes


def changes_before(
    changes: Mapping[int, Sequence[Change]], *, process: Ints, key: Codes, op: Ints, of: Flags
) -> Codes:
    """Return for each entry in `of` the number of earlier `changes` of its key by its process."""
    segment = np.zeros(len(process), np.int32)
    readers = np.flatnonzero(of) if changes else np.zeros(0, np.int64)
    readers = readers[np.argsort(process[readers], kind="stable")]
    for name, mine in changes.items():
        start, end = np.searchsorted(process[readers], [name, name + 1])
        entries = readers[start:end]
        keys, column = np.unique(key[entries], return_inverse=True)
        moves = np.zeros((len(mine) + 1, len(keys)), np.int32)
        for place, change in enumerate(mine, start=1):
            named = np.isin(keys, change.keys)
            moves[place] = ~named if change.keeps else named
        made = np.cumsum(moves, axis=0, dtype=np.int32)
        before = np.searchsorted([change.op for change in mine], op[entries])
        segment[entries] = made[before, column]
    return segment


def context_of(table: pa.Table) -> pa.Table:
    """Return the few operations of a run on which the entries of other runs depend, in their order.

    A run is any set of whole operations; a process may have operations in many runs. The context of
    a run has the operations that move positions, and of each process its last operation, its last
    poll, its last successful poll and the first of its operations that names each key. The context
    of joined contexts is the context of all their runs.
    """
    process = table.column("process").to_numpy()
    fs, f = sorted_codes(table.column("f"))
    names, code = sorted_codes(table.column("type"))
    outcome = np.array([OUTCOMES.index(name) for name in names] or [0], np.int32)[code]

    def is_f(*names: str) -> Flags:
        found: Flags = np.array([name in names for name in fs], np.bool_)[f]
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
