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

from quorumlog.chaos.checkers.entries import FAIL, INFO, OK, Codes, Flags, Ints
from quorumlog.chaos.checkers.rows import Rows

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

    `members` are the processes that ever subscribed.
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
    changes = Changes(moves={}, seeks={}, members=[])
    found = np.flatnonzero(moving)
    found = found[np.argsort(rows.invoked[found])]  # the rows of a part come in any order
    for row in found.tolist():
        process, f = int(rows.process[row]), rows.fs[rows.f[row]]
        named = slice(*rows.starts[row : row + 2]) if f in (*_LISTS, "seek") else slice(0)
        change = Change(op=int(rows.invoked[row]), keeps=f != "seek", keys=rows.key[named])
        changes.moves.setdefault(process, []).append(change)
        if f == "seek":
            changes.seeks.setdefault(process, []).append(change)
        if f == "subscribe" and process not in changes.members:
            changes.members.append(process)
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
