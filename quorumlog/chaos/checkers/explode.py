"""Turns operations into entries (one per message): see `entries`.

It works on all operations of any set of processes, so a history may be cut between processes. A
transaction, which no rule judges, becomes a PROBLEM entry, and the verdict is not valid.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa

from quorumlog.chaos.checkers.entries import (
    COUNT,
    FINAL_END,
    FINAL_POLL,
    GROUP_FLAG,
    POLL,
    PROBLEM,
    REBALANCED_FLAG,
    SEND,
    SOUGHT_FLAG,
    TXN_FLAG,
    Entries,
    Ints,
    sorted_codes,
)
from quorumlog.chaos.checkers.positions import Changes, changes_before, position_changes
from quorumlog.chaos.checkers.reader_lives import loss_errors, reader_lives
from quorumlog.chaos.checkers.rows import Rows, rows_of
from quorumlog.chaos.history.model import OUTCOMES, UNKNOWN_OFFSET, HistoryError

_TXN: Final = "txn"
_KINDS: Final = {"send": SEND, "poll": POLL, "final_poll": FINAL_POLL, "final_end": FINAL_END}
_OTHERS: Final = ("assign", "subscribe", "seek", "crash", "debug-topic-partitions")
OPERATIONS: Final = frozenset({*_KINDS, *_OTHERS})
_EXAMPLES_MAX: Final = 32  # of one kind of problem


def explode(table: pa.Table) -> Entries:
    """Return the entries of a table of history.schema.OPERATIONS. The nemesis has none."""
    return Entries.from_arrow(explode_table(table))


def explode_table(table: pa.Table) -> pa.Table:
    """Return the same as a table of ENTRY_SCHEMA. Raises HistoryError for what is of no log."""
    rows = rows_of(table)
    _refuse_others(rows)
    changes = position_changes(rows)
    parts = [
        _messages(rows, changes),
        _notes(_unjudged(rows), _tally(rows)),
        reader_lives(rows, changes),
        loss_errors(rows, changes),
    ]
    return pa.concat_tables([part.to_arrow() for part in parts])


def _refuse_others(rows: Rows) -> None:
    """Raise HistoryError for what is no operation of a Kafka log."""
    other = ~rows.is_f(*OPERATIONS, _TXN)
    if other.any():
        row = int(other.argmax())
        raise HistoryError(
            f"event {rows.invoked[row]}: f = {rows.fs[rows.f[row]]!r} is no operation of the "
            f"model kafka_log, which has {', '.join((*_KINDS, *_OTHERS))}"
        )
    if rows.texts:
        raise HistoryError("a value is no integer: the model kafka_log has only integers")


def _unjudged(rows: Rows) -> dict[str, Ints]:
    """Find operations that no rule looks at."""
    found = rows.is_f(_TXN)
    return {f"f = {_TXN!r} is not judged": rows.invoked[found]} if found.any() else {}


def _tally(rows: Rows) -> dict[str, int]:
    """Count operations by f and outcome: `operations`, and `send ok` and the like."""
    outcome = rows.judged()
    counts = {"operations": len(rows)}
    for name in rows.fs:
        mine = rows.is_f(name)
        for code, text in enumerate(OUTCOMES):
            if count := int(np.count_nonzero(mine & (outcome == code))):
                counts[f"{name} {text}"] = count
    return counts


def _messages(rows: Rows, changes: Changes) -> Entries:
    """Return one entry per message.

    Of a transaction, only what it sends: that may or may not be there, and has no true offset.
    """
    lengths = rows.lengths()
    row = np.repeat(np.arange(len(rows)), lengths)
    ordinal = np.arange(len(row)) - np.repeat(rows.starts[:-1], lengths)
    kinds = np.array([_KINDS.get(name, -1) for name in rows.fs], np.int8)
    micro_kinds = np.array([SEND if name == "send" else -1 for name in rows.micro_fs], np.int8)
    of_txn = rows.is_f(_TXN)[row]
    kind = kinds[rows.f[row]] if len(kinds) else np.zeros(0, np.int8)
    if of_txn.any():
        kind = np.where(of_txn, micro_kinds[rows.micro_f], kind)
    # A question for an end that was not answered names its keys, and no end.
    kept = np.flatnonzero((kind >= 0) & ((kind != FINAL_END) | (rows.offset != UNKNOWN_OFFSET)))
    row, ordinal, kind, of_txn = row[kept], ordinal[kept], kind[kept], of_txn[kept]
    process, key, op = rows.process[row], rows.key[kept], rows.invoked[row]
    is_read = (kind == POLL) | (kind == FINAL_POLL) | (kind == FINAL_END)
    moves, seeks = (
        changes_before(made, process=process, key=key, op=op, of=is_read)
        for made in (changes.moves, changes.seeks)
    )
    flags = np.where(rows.rebalanced[row], REBALANCED_FLAG, 0)
    flags |= np.where(np.isin(process, changes.members), GROUP_FLAG, 0)
    flags |= np.where(seeks > 0, SOUGHT_FLAG, 0)
    of_whole_txn = np.where(rows.in_txn[row], TXN_FLAG, 0)
    return Entries(
        keys=rows.keys,
        key=key,
        kind=kind,
        outcome=rows.judged()[row].astype(np.int8),
        flags=(np.where(is_read, flags, 0) | of_whole_txn).astype(np.int8),
        offset=np.where(of_txn, UNKNOWN_OFFSET, rows.offset[kept]),
        value=rows.value[kept],
        op=op,
        completion=rows.completed[row],
        process=process,
        invoked_ns=rows.invoked_ns[row],
        completed_ns=rows.completed_ns[row],
        ordinal=ordinal.astype(np.int32),
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
