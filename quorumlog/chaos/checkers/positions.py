"""Where a reader's position was changed by something else than reading.

Two polls of a process follow each other only if nothing between them moved its position:
assign and subscribe (ok or info) forget every key that is not in their new list, as in Jepsen's
checker; a seek forgets the keys it names, a crash forgets all.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from quorumlog.chaos.checkers.entries import FAIL, Codes, Flags, Ints

if TYPE_CHECKING:
    from quorumlog.chaos.checkers.explode import Rows

_LISTS: Final = ("assign", "subscribe")


@dataclass(slots=True, kw_only=True)
class Change:
    """One change: `keys` are the ones it keeps (`keeps`), or the ones it moves."""

    op: int
    keeps: bool
    keys: Codes


@dataclass(slots=True, kw_only=True)
class Changes:
    """By process, in order; `members` are the processes that ever subscribed."""

    by_process: dict[int, list[Change]]
    members: list[int]


def position_changes(rows: "Rows", invocation: Ints, outcome: Codes) -> Changes:
    """Collect the changes that happened or may have. The invocation names the keys."""
    moving = rows.is_f(invocation, *_LISTS, "seek", "crash") & (outcome != FAIL)
    changes = Changes(by_process={}, members=[])
    for row in invocation[moving].tolist():
        process, f = int(rows.process[row]), rows.fs[rows.f[row]]
        keys = rows.message_key[rows.starts[row] : rows.starts[row + 1]]
        change = Change(op=int(rows.index[row]), keeps=f != "seek", keys=keys)
        changes.by_process.setdefault(process, []).append(change)
        if f == "subscribe" and process not in changes.members:
            changes.members.append(process)
    return changes


def segments_of(changes: Changes, *, process: Ints, key: Codes, op: Ints, of: Flags) -> Codes:
    """Return for each entry in `of` how many changes of its key its process made before it."""
    segment = np.zeros(len(process), np.int32)
    readers = np.flatnonzero(of) if changes.by_process else np.zeros(0, np.int64)
    readers = readers[np.argsort(process[readers], kind="stable")]
    for name, mine in changes.by_process.items():
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
