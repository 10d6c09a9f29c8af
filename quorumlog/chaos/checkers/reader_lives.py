"""The lives and the errors of readers, as entries.

A life is an entry of kind READER per process and key, for ordinary readers that only their polls
move (no members of a group): from `invoked_ns` (its assignment) to `completed_ns` (its last event,
or the moment from which its position is uncertain). `value` is the time of its last successful
poll. An error is an entry of kind ERROR per failed read whose code proves a loss.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from quorumlog.chaos.checkers.entries import (
    ERROR,
    FINAL_POLL,
    INFO,
    OK,
    POLL,
    READER,
    Codes,
    Entries,
    Flags,
    Ints,
    sorted_codes,
)
from quorumlog.chaos.checkers.positions import Changes
from quorumlog.chaos.checkers.rows import Rows
from quorumlog.chaos.checkers.version_order import distinct
from quorumlog.chaos.history.model import NEVER_NS

CORRUPT: Final = ("CORRUPT_MESSAGE", "_BAD_MSG")
"""The bytes that a reader received do not match their checksum."""
TRUNCATED: Final = ("OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET", "LOG_TRUNCATED")
"""A reader's position is outside the log. Legal for a reader that sought there itself."""
_READS: Final = ("poll", "final_poll")


def reader_lives(rows: Rows, changes: Changes) -> Entries:
    """Return one READER entry per ordinary reader and key."""
    polls = rows.is_f("poll")
    row = np.repeat(np.arange(len(rows)), rows.lengths())
    names_key = (rows.is_f("assign") & (rows.outcome == OK)) | polls
    ordinary = np.setdiff1d(np.unique(rows.process[polls]), changes.members)
    named = np.flatnonzero(names_key[row] & np.isin(rows.process[row], ordinary))
    row, key = row[named], rows.key[named]
    number, samples = distinct(rows.process[row], key.astype(np.int64))
    process, key = rows.process[row[samples]], key[samples]
    begun = np.where(polls[row], rows.invoked_ns[row], rows.completed_ns[row])
    start, first_op = np.full(len(samples), NEVER_NS), np.full(len(samples), NEVER_NS)
    np.minimum.at(start, number, begun)
    np.minimum.at(first_op, number, rows.invoked[row])
    last_event = np.where(rows.completed >= 0, rows.completed_ns, rows.invoked_ns)
    end = np.minimum(
        _latest(rows.process, last_event, process),
        _first_change(rows, changes, process=process, key=key, after=first_op),
    )
    succeeded = polls & (rows.outcome == OK)
    polled = _latest(rows.process[succeeded], rows.completed_ns[succeeded], process)
    return _entries(
        rows.keys,
        key,
        kind=READER,
        value=polled,
        process=process,
        invoked_ns=np.minimum(start, end),
        completed_ns=end,
    )


def _latest(process: Ints, moment: Ints, wanted: Ints) -> Ints:
    """Return the latest moment of each given process; 0 if it has none."""
    names, number = np.unique(process, return_inverse=True)
    latest = np.zeros(len(names) + 1, np.int64)
    np.maximum.at(latest, number, moment)
    at = np.searchsorted(names, wanted)
    known = at < len(names)
    known[known] = names[at[known]] == wanted[known]
    return np.where(known, latest[at], 0)


def _first_change(rows: Rows, changes: Changes, *, process: Ints, key: Codes, after: Ints) -> Ints:
    """Return when an operation other than a poll first moved each reader, or NEVER_NS."""
    found = np.full(len(process), NEVER_NS)
    order = np.argsort(rows.invoked)  # the rows of a part come in any order
    for name, mine in changes.moves.items():
        readers = np.flatnonzero(process == name)
        for change in reversed(mine):
            at = order[np.searchsorted(rows.invoked, change.op, sorter=order)]
            named = np.isin(key[readers], change.keys)
            moved = readers[(~named if change.keeps else named) & (after[readers] < change.op)]
            found[moved] = rows.invoked_ns[at]
    return found


def loss_errors(rows: Rows, changes: Changes) -> Entries:
    """Return one ERROR entry per read that failed with a code that proves a loss."""
    told = [code in CORRUPT or code in TRUNCATED for code in rows.codes]
    is_told: Flags = np.array([*told, False])[rows.code] & rows.is_f(*_READS)
    found = np.flatnonzero(is_told)
    of_position = np.array([*(code in TRUNCATED for code in rows.codes), False])[rows.code[found]]
    moved = np.isin(rows.process[found], [*changes.seeks, *changes.members])
    found = found[~(of_position & moved)]
    names = pa.array([rows.codes[code] for code in rows.code[found].tolist()], pa.string())
    keys, key = sorted_codes(names)
    return _entries(
        keys,
        key,
        kind=ERROR,
        value=np.zeros(len(found), np.int64),
        process=rows.process[found],
        invoked_ns=rows.invoked_ns[found],
        completed_ns=rows.completed_ns[found],
        op=rows.invoked[found],
        completion=rows.completed[found],
        outcome=rows.outcome[found].astype(np.int64),
        ordinal=np.where(rows.is_f("final_poll")[found], FINAL_POLL, POLL),
    )


def _entries(keys: tuple[str, ...], key: Codes, *, kind: int, **columns: Ints) -> Entries:
    count = len(key)
    long = {
        name: columns.get(name, np.full(count, -1, np.int64))
        for name in ("offset", "value", "op", "completion", "process", "invoked_ns", "completed_ns")
    }
    return Entries(
        keys=keys,
        key=key.astype(np.int32),
        kind=np.full(count, kind, np.int8),
        outcome=columns.get("outcome", np.full(count, INFO)).astype(np.int8),
        flags=np.zeros(count, np.int8),
        checksum=np.zeros(count, np.int64),
        ordinal=columns.get("ordinal", np.zeros(count)).astype(np.int32),
        segment=np.zeros(count, np.int32),
        **long,
    )
