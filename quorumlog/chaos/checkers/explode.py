"""From rows (an invocation, a completion) to entries (one per message): see `entries`.

Works on all rows of any set of processes, so a history may be cut between processes. It never
refuses: what does not fit the model becomes a PROBLEM entry, and the verdict is not valid then.
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
    sorted_codes,
)
from quorumlog.chaos.checkers.positions import changes_before, position_changes
from quorumlog.chaos.history.model import REBALANCED, TYPES, UNKNOWN_OFFSET

_TXN: Final = "txn"
_KINDS: Final = {
    "send": SEND,
    "poll": POLL,
    "final_poll": FINAL_POLL,
    "final_end": FINAL_END,
    _TXN: SEND,  # not judged: its values are taken for sends that may or may not have happened
}
_POSITIONS: Final = ("assign", "subscribe", "seek", "crash")
_INVOKE: Final = TYPES.index("invoke")
_EXAMPLES_MAX: Final = 32  # of one kind of problem


@dataclass(slots=True, kw_only=True)
class Rows:
    """The table's columns as arrays, and its messages as one flat run per row."""

    index: Ints
    time_ns: Ints
    process: Ints
    type: Codes  # a place in TYPES
    fs: tuple[str, ...]
    f: Codes
    rebalanced: Flags
    starts: Ints  # of each row's messages in the flat columns; one more than there are rows
    keys: tuple[str, ...]
    message_key: Codes
    message_offset: Ints
    message_value: Ints

    def is_f(self, rows: Ints, *names: str) -> Flags:
        """Tell which of `rows` have one of these `f`."""
        wanted = [code for code, name in enumerate(self.fs) if name in names]
        found: Flags = np.isin(self.f[rows], wanted)
        return found

    def lengths(self, rows: Ints) -> Ints:
        """Return how many messages each of `rows` holds."""
        return self.starts[rows + 1] - self.starts[rows]


@dataclass(slots=True, kw_only=True)
class Pairs:
    """Operations: places of the two rows of each; `completion` is -1 if there is none."""

    invocation: Ints
    completion: Ints


def explode(table: pa.Table) -> Entries:
    """Return the entries of a table of history.schema.SCHEMA. The nemesis has none."""
    rows = rows_of(table)
    pairs, problems = pair_rows(rows)
    problems.update(_unjudged(rows, pairs))
    altered = _altered_sends(rows, pairs)
    if len(altered):
        reason = "a send that ended with other messages than it began with"
        problems[reason] = rows.index[pairs.completion[altered]]
    parts = [_messages(rows, pairs, altered), _notes(problems, _tally(rows, pairs))]
    return Entries.from_arrow(pa.concat_tables([part.to_arrow() for part in parts]))


def rows_of(table: pa.Table) -> Rows:
    """Return the columns of a table of history.schema.SCHEMA, in any number of chunks."""
    messages = table.column("messages").combine_chunks()
    if isinstance(messages, pa.ChunkedArray):  # it had no chunk at all
        messages = pa.array([], messages.type)
    flat = messages.flatten()
    keys, message_key = sorted_codes(flat.field("key"))
    fs, f = sorted_codes(table.column("f"))
    names, type_place = sorted_codes(table.column("type"))
    places = np.array([TYPES.index(name) for name in names] or [0], np.int32)
    starts = np.zeros(len(messages) + 1, np.int64)
    np.cumsum(messages.value_lengths().to_numpy(zero_copy_only=False), out=starts[1:])
    details, detail = sorted_codes(table.column("details"))
    marked = details.index(REBALANCED) if REBALANCED in details else -1
    return Rows(
        index=table.column("index").to_numpy(),
        time_ns=table.column("time_ns").to_numpy(),
        process=table.column("process").to_numpy(),
        type=places[type_place],
        fs=fs,
        f=f,
        rebalanced=detail == marked,
        starts=starts,
        keys=keys,
        message_key=message_key,
        message_offset=flat.field("offset").to_numpy(zero_copy_only=False),
        message_value=flat.field("value").to_numpy(zero_copy_only=False),
    )


def pair_rows(rows: Rows) -> tuple[Pairs, dict[str, Ints]]:
    """Match each invocation with the next row of its process, if that is a completion of it."""
    clients = np.flatnonzero(rows.process >= 0)
    order = clients[np.lexsort((rows.index[clients], rows.process[clients]))]
    invokes = rows.type[order] == _INVOKE
    same_next = np.zeros(len(order), np.bool_)
    same_next[:-1] = rows.process[order][1:] == rows.process[order][:-1]
    after = np.append(order[1:], order[:1]) if len(order) else order
    completes = np.zeros(len(order), np.bool_)  # the row after this one completes this one
    completes[:-1] = invokes[:-1] & same_next[:-1] & ~invokes[1:]
    at = np.flatnonzero(invokes)
    completion = np.where(completes[at], after[at], -1)
    orphan = ~invokes
    orphan[1:] &= ~completes[:-1]
    pairs = Pairs(invocation=order[at], completion=completion)
    both = np.flatnonzero(completes)
    first, second = order[both], after[both]
    problems = {
        "a completion without an invocation": order[orphan],
        "an invocation while the process's last operation was open": after[
            invokes & same_next & ~completes
        ],
        "a completion of another f than its invocation": second[rows.f[first] != rows.f[second]],
        "a completion before its invocation": second[rows.time_ns[second] < rows.time_ns[first]],
    }
    return pairs, {reason: rows.index[found] for reason, found in problems.items() if len(found)}


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
    """Return OK, INFO or FAIL of each operation; what never completed is INFO."""
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
    altered: Flags = lengths != rows.lengths(last)
    same = np.flatnonzero(~altered)
    of, ordinal = _spread(lengths[same])
    one, other = (rows.starts[source[same]][of] + ordinal for source in (first, last))
    differ = rows.message_key[one] != rows.message_key[other]
    differ |= rows.message_value[one] != rows.message_value[other]
    altered[same[of[differ]]] = True
    return sends[altered]


def _spread(lengths: Ints) -> tuple[Ints, Ints]:
    """Return for each message of runs of these lengths: its run, and its place in it."""
    of = np.repeat(np.arange(len(lengths)), lengths)
    return of, np.arange(len(of)) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _messages(rows: Rows, pairs: Pairs, altered: Ints) -> Entries:
    """Return one entry per message.

    What an operation of `altered` meant to send is there too, as sends that may have happened.
    """
    kind = np.full(len(rows.fs), -1, np.int8)
    for name, code in _KINDS.items():
        if name in rows.fs:
            kind[rows.fs.index(name)] = code
    kinds = kind[rows.f[pairs.invocation]] if len(rows.fs) else np.zeros(0, np.int8)
    completed = pairs.completion >= 0
    told = completed & (rows.lengths(pairs.completion) > 0)
    # Of a send that did not say in the end what it was about, the invocation did.
    source = np.where(told, pairs.completion, np.where(kinds == SEND, pairs.invocation, -1))
    chosen = np.flatnonzero((kinds >= 0) & (source >= 0))
    source = np.concatenate([source[chosen], pairs.invocation[altered]])
    is_meant = np.arange(len(source)) >= len(chosen)
    chosen = np.concatenate([chosen, altered])
    of, ordinal = _spread(rows.lengths(source))
    flat = rows.starts[source][of] + ordinal
    op = chosen[of]
    first, last = pairs.invocation[op], pairs.completion[op]
    ended, outcome = last >= 0, outcomes_of(rows, pairs)
    # An invocation knows of no offsets, whatever it holds.
    unplaced = (source == pairs.invocation[chosen])[of] | rows.is_f(first, _TXN)
    ordinal = ordinal + np.where(is_meant[of], rows.lengths(last), 0)
    changes = position_changes(rows, pairs.invocation, outcome)
    process, key = rows.process[first], rows.message_key[flat]
    is_poll = (kinds[op] == POLL) | (kinds[op] == FINAL_POLL)
    flags = np.where(rows.rebalanced[last] & ended, REBALANCED_FLAG, 0)
    flags = flags | np.where(np.isin(process, changes.members), GROUP_FLAG, 0)
    moves, seeks = (
        changes_before(made, process=process, key=key, op=rows.index[first], of=is_poll)
        for made in (changes.moves, changes.seeks)
    )
    flags = flags | np.where(seeks > 0, SOUGHT_FLAG, 0)
    return Entries(
        keys=rows.keys,
        key=key,
        kind=kinds[op],
        outcome=np.where(is_meant[of], INFO, outcome[op]).astype(np.int8),
        flags=np.where(is_poll, flags, 0).astype(np.int8),
        offset=np.where(unplaced, UNKNOWN_OFFSET, rows.message_offset[flat]),
        value=rows.message_value[flat],
        op=rows.index[first],
        completion=np.where(ended, rows.index[last], -1),
        process=process,
        invoked_ns=rows.time_ns[first],
        completed_ns=np.where(ended, rows.time_ns[last], NEVER_NS),
        ordinal=ordinal.astype(np.int32),
        segment=moves,
    )


def _notes(problems: dict[str, Ints], tally: dict[str, int]) -> Entries:
    """Make entries of what is no message, so that it travels with the others."""
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
