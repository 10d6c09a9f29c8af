"""Turns rows (an invocation, a completion) into entries (one per message): see `entries`.

It works on all rows of any set of processes, so a history may be cut between processes. It accepts
every row. A row that does not fit the model becomes a PROBLEM entry, and the verdict is not valid.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from quorumlog.chaos.checkers.entries import (
    COUNT,
    FINAL_END,
    FINAL_POLL,
    GROUP_FLAG,
    INFO,
    NEVER_NS,
    OUTCOMES,
    POLL,
    PROBLEM,
    REBALANCED_FLAG,
    SEND,
    SOUGHT_FLAG,
    Codes,
    Entries,
    Flags,
    Ints,
    Kinds,
    sorted_codes,
)
from quorumlog.chaos.checkers.positions import changes_before, position_changes
from quorumlog.chaos.checkers.rows import Pairs, Rows, pair_rows, rows_of
from quorumlog.chaos.history.model import UNKNOWN_OFFSET

_TXN: Final = "txn"
_KINDS: Final = {
    "send": SEND,
    "poll": POLL,
    "final_poll": FINAL_POLL,
    "final_end": FINAL_END,
    _TXN: SEND,  # not judged: its values may or may not have been sent
}
_POSITIONS: Final = ("assign", "subscribe", "seek", "crash")
_EXAMPLES_MAX: Final = 32  # of one kind of problem


def explode(table: pa.Table) -> Entries:
    """Return the entries of a table of history.schema.SCHEMA. The nemesis has none."""
    return Entries.from_arrow(explode_table(table))


def explode_table(table: pa.Table) -> pa.Table:
    """Return the same as a table of ENTRY_SCHEMA."""
    rows = rows_of(table)
    pairs, problems = pair_rows(rows)
    problems.update(_unjudged(rows, pairs))
    altered = _altered_sends(rows, pairs)
    if len(altered):
        reason = "a send that ended with other messages than it began with"
        problems[reason] = rows.index[pairs.completion[altered]]
    parts = [_messages(rows, pairs, altered), _notes(problems, _tally(rows, pairs))]
    return pa.concat_tables([part.to_arrow() for part in parts])


def _unjudged(rows: Rows, pairs: Pairs) -> dict[str, Ints]:
    """Find operations which hold messages that no checker looks at."""
    problems: dict[str, Ints] = {}
    held = np.maximum(rows.lengths(pairs.invocation), rows.lengths(pairs.completion))
    held[pairs.completion < 0] = rows.lengths(pairs.invocation[pairs.completion < 0])
    for name in rows.fs:
        mine = rows.is_f(pairs.invocation, name)
        if name != _TXN and (name in _KINDS or name in _POSITIONS):
            continue
        found = pairs.invocation[mine & ((held > 0) | (name == _TXN))]
        if len(found):
            problems[f"f = {name!r} is not judged"] = rows.index[found]
    return problems


def _tally(rows: Rows, pairs: Pairs) -> dict[str, int]:
    """Count operations by f and outcome: `operations`, and `send ok` and the like."""
    outcome = outcomes_of(rows, pairs)
    counts = {"operations": len(pairs.invocation)}
    for name in rows.fs:
        mine = rows.is_f(pairs.invocation, name)
        for code, text in enumerate(OUTCOMES):
            if count := int(np.count_nonzero(mine & (outcome == code))):
                counts[f"{name} {text}"] = count
    return counts


def outcomes_of(rows: Rows, pairs: Pairs) -> Codes:
    """Return OK, INFO or FAIL of each operation; one that never completed is INFO."""
    outcome = rows.type[pairs.completion] - 1  # TYPES is "invoke", then OUTCOMES
    unknown = (pairs.completion < 0) | rows.is_f(pairs.invocation, _TXN)
    return np.where(unknown, INFO, outcome).astype(np.int32)


def _altered_sends(rows: Rows, pairs: Pairs) -> Ints:
    """Return the places in `pairs` of sends whose two rows name different messages."""
    ended = pairs.completion >= 0
    named = (rows.lengths(pairs.invocation) > 0) & (rows.lengths(pairs.completion) > 0)
    sends = np.flatnonzero(rows.is_f(pairs.invocation, "send") & ended & named)
    first, last = pairs.invocation[sends], pairs.completion[sends]
    lengths = rows.lengths(first)
    is_altered: Flags = lengths != rows.lengths(last)
    alike = np.flatnonzero(~is_altered)  # at least in length
    send, ordinal = _spread(lengths[alike])
    meant, told = (rows.starts[row[alike]][send] + ordinal for row in (first, last))
    differ = rows.message_key[meant] != rows.message_key[told]
    differ |= rows.message_value[meant] != rows.message_value[told]
    is_altered[alike[send[differ]]] = True
    return sends[is_altered]


def _spread(lengths: Ints) -> tuple[Ints, Ints]:
    """Return for each element of runs of these lengths: its run, and its place in it."""
    run = np.repeat(np.arange(len(lengths)), lengths)
    return run, np.arange(len(run)) - np.repeat(np.cumsum(lengths) - lengths, lengths)


@dataclass(slots=True, kw_only=True)
class _Sources:
    """The rows that name messages; an operation has none, one or two of them.

    `operation` is a place in Pairs. `is_meant`: the row is the invocation of a send whose
    completion names other messages, so what it names may have been sent, too.
    """

    operation: Ints
    row: Ints
    is_meant: Flags


def _sources(rows: Rows, pairs: Pairs, kinds: Kinds, altered: Ints) -> _Sources:
    """Find the rows that name messages: completions, and invocations of sends without one."""
    is_named_at_end = (pairs.completion >= 0) & (rows.lengths(pairs.completion) > 0)
    named_at_start = np.where(kinds == SEND, pairs.invocation, -1)
    row = np.where(is_named_at_end, pairs.completion, named_at_start)
    operation = np.flatnonzero((kinds >= 0) & (row >= 0))
    return _Sources(
        operation=np.concatenate([operation, altered]),
        row=np.concatenate([row[operation], pairs.invocation[altered]]),
        is_meant=np.repeat([False, True], [len(operation), len(altered)]),
    )


def _kinds(rows: Rows, pairs: Pairs) -> Kinds:
    """Return the kind of entry that each operation gives; -1: none."""
    of_f = np.array([_KINDS.get(name, -1) for name in rows.fs], np.int8)
    kinds: Kinds = of_f[rows.f[pairs.invocation]]
    return kinds


def _messages(rows: Rows, pairs: Pairs, altered: Ints) -> Entries:
    """Return one entry per message.

    An operation of `altered` also gives what it meant to send, as sends that may have happened.
    """
    kinds, outcomes = _kinds(rows, pairs), outcomes_of(rows, pairs)
    sources = _sources(rows, pairs, kinds, altered)
    # From here on, every array has one element per message.
    source, ordinal = _spread(rows.lengths(sources.row))
    operation, is_meant = sources.operation[source], sources.is_meant[source]
    message = rows.starts[sources.row[source]] + ordinal
    invocation, completion = pairs.invocation[operation], pairs.completion[operation]
    is_completed = completion >= 0
    # An invocation has no true offsets, even if it holds some. Those of a txn are not judged.
    has_no_offset = (sources.row[source] == invocation) | rows.is_f(invocation, _TXN)
    kind, process, key = kinds[operation], rows.process[invocation], rows.message_key[message]
    is_poll = (kind == POLL) | (kind == FINAL_POLL)
    changes = position_changes(rows, pairs.invocation, outcomes)
    moves, seeks = (
        changes_before(made, process=process, key=key, op=rows.index[invocation], of=is_poll)
        for made in (changes.moves, changes.seeks)
    )
    flags = np.where(rows.rebalanced[completion] & is_completed, REBALANCED_FLAG, 0)
    flags |= np.where(np.isin(process, changes.members), GROUP_FLAG, 0)
    flags |= np.where(seeks > 0, SOUGHT_FLAG, 0)
    return Entries(
        keys=rows.keys,
        key=key,
        kind=kind,
        outcome=np.where(is_meant, INFO, outcomes[operation]).astype(np.int8),
        flags=np.where(is_poll, flags, 0).astype(np.int8),
        offset=np.where(has_no_offset, UNKNOWN_OFFSET, rows.message_offset[message]),
        value=rows.message_value[message],
        op=rows.index[invocation],
        completion=np.where(is_completed, rows.index[completion], -1),
        process=process,
        invoked_ns=rows.time_ns[invocation],
        completed_ns=np.where(is_completed, rows.time_ns[completion], NEVER_NS),
        # What was only meant comes after what the completion names.
        ordinal=(ordinal + np.where(is_meant, rows.lengths(completion), 0)).astype(np.int32),
        segment=moves,
    )


def _notes(problems: dict[str, Ints], tally: dict[str, int]) -> Entries:
    """Make entries of counts and problems, so that they travel with the messages."""
    notes: list[tuple[str, int, int, int]] = [(key, COUNT, n, -1) for key, n in tally.items()]
    for reason, found in problems.items():
        examples = np.sort(found)[:_EXAMPLES_MAX].tolist()
        rest = len(found) - len(examples)  # the last example stands for those left out
        notes += [(reason, PROBLEM, 1, op) for op in examples[:-1]]
        notes.append((reason, PROBLEM, 1 + rest, examples[-1]))
    keys, key = sorted_codes(pa.array([note[0] for note in notes], pa.string()))
    numbers = np.array([note[1:] for note in notes], np.int64).reshape(-1, 3)
    zeros = np.zeros(len(notes), np.int64)
    columns: dict[str, Any] = dict.fromkeys(
        ("offset", "completion", "process", "invoked_ns", "completed_ns"), zeros
    )
    columns |= dict.fromkeys(("outcome", "flags"), zeros.astype(np.int8))
    columns |= dict.fromkeys(("ordinal", "segment"), zeros.astype(np.int32))
    return Entries(
        keys=keys,
        key=key,
        kind=numbers[:, 0].astype(np.int8),
        value=numbers[:, 1],
        op=numbers[:, 2],
        **columns,
    )
