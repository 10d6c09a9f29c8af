"""Turns operations into entries (one per message): see `entries`.

`explode` takes all operations of any set of processes. `explode_run` takes any run of operations
and the context of all others (see `context`), so a history may be split between any operations;
`explode_lives` adds the entries that span runs. The sends and polls of a transaction become entries
as well, each with TXN_FLAG.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.checkers.entries import (
    ASKED,
    COMMITTED,
    COUNT,
    FINAL_END,
    FINAL_POLL,
    GROUP_FLAG,
    OFFSETS,
    OK,
    POLL,
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
from quorumlog.chaos.history.model import NEMESIS, OUTCOMES, UNKNOWN_OFFSET, HistoryError

_TXN: Final = "txn"
_KINDS: Final = {"send": SEND, "poll": POLL, "final_poll": FINAL_POLL, "final_end": FINAL_END}
IN_TXN: Final = ("send", "poll", "offsets", "commit")
_OTHERS: Final = ("assign", "subscribe", "seek", "crash", "committed", "debug-topic-partitions")
OPERATIONS: Final = frozenset({*_KINDS, *_OTHERS, _TXN})


def explode(table: pa.Table) -> Entries:
    """Return the entries of a table of history.schema.OPERATIONS, without the nemesis."""
    return Entries.from_arrow(explode_table(table))


def explode_table(table: pa.Table) -> pa.Table:
    """Return the same entries as a table of ENTRY_SCHEMA.

    Raises HistoryError for an operation outside the model.
    """
    rows = rows_of(table)
    changes = position_changes(rows)
    lives = reader_lives(rows, changes).to_arrow()
    return pa.concat_tables([_explode(rows, changes), lives])


def explode_run(table: pa.Table, context: pa.Table) -> pa.Table:
    """Return the entries of a run of operations, without the lives of readers.

    `context`: of the whole history, with or without this run. Raises HistoryError for an operation
    outside the model.
    """
    processes = pc.unique(table.column("process"))
    elsewhere = pc.is_in(context.column("process"), processes)
    told = pc.is_in(context.column("index"), table.column("index").combine_chunks())
    others = context.filter(pc.and_not(elsewhere, told)).select(table.column_names)
    rows = rows_of(pa.concat_tables([table, others]))
    own = table.num_rows - int(pc.sum(pc.equal(table.column("process"), NEMESIS)).as_py() or 0)
    return _explode(rows.head(own), position_changes(rows))


def explode_lives(context: pa.Table) -> pa.Table:
    """Return the lives of the readers. `context`: of the whole history."""
    rows = rows_of(context)
    return reader_lives(rows, position_changes(rows)).to_arrow()


def _explode(rows: Rows, changes: Changes) -> pa.Table:
    _refuse_others(rows)
    parts = [
        _messages(rows, changes),
        _counts(_tally(rows)),
        loss_errors(rows, changes),
        _transaction_notes(rows),
    ]
    return pa.concat_tables([part.to_arrow() for part in parts])


def _refuse_others(rows: Rows) -> None:
    """Raise HistoryError for an operation outside the model of a Kafka log."""
    other = ~rows.is_f(*OPERATIONS)
    if other.any():
        row = int(other.argmax())
        raise HistoryError(
            f"event {rows.invoked[row]}: f = {rows.fs[rows.f[row]]!r} is no operation of the "
            f"model kafka_log, which has {', '.join((*_KINDS, *_OTHERS, _TXN))}"
        )
    of_txn = np.repeat(rows.is_f(_TXN), rows.lengths())
    known = [code for code, name in enumerate(rows.micro_fs) if name in IN_TXN]
    alien = of_txn & ~np.isin(rows.micro_f, known)
    if alien.any():
        name = rows.micro_fs[rows.micro_f[int(alien.argmax())]]
        raise HistoryError(f"{name!r} is no micro-operation of the model kafka_log")
    if rows.texts:
        raise HistoryError("a value is no integer: the model kafka_log has only integers")


def _tally(rows: Rows) -> dict[str, int]:
    """Count operations by f and outcome, with keys `operations`, `send ok` and so on."""
    counts = {"operations": len(rows)}
    for name in rows.fs:
        mine = rows.is_f(name)
        for code, text in enumerate(OUTCOMES):
            if count := int(np.count_nonzero(mine & (rows.outcome == code))):
                counts[f"{name} {text}"] = count
    return counts


def _messages(rows: Rows, changes: Changes) -> Entries:
    """Return one entry per message."""
    lengths = rows.lengths()
    row = np.repeat(np.arange(len(rows)), lengths)
    ordinal = np.arange(len(row)) - np.repeat(rows.starts[:-1], lengths)
    kinds = np.array([_KINDS.get(name, -1) for name in rows.fs], np.int8)
    micro_kinds = np.array([_KINDS.get(name, -1) for name in rows.micro_fs], np.int8)
    of_txn = rows.is_f(_TXN)[row]
    kind = kinds[rows.f[row]] if len(kinds) else np.zeros(0, np.int8)
    if of_txn.any():
        kind = np.where(of_txn, micro_kinds[rows.micro_f], kind)
    # A request for an end offset without a response names its keys, but has no offset.
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
    of_any_txn = np.where(rows.in_txn[row] | of_txn, TXN_FLAG, 0)
    return Entries(
        keys=rows.keys,
        key=key,
        kind=kind,
        outcome=rows.outcome[row].astype(np.int8),
        flags=(np.where(is_read, flags, 0) | of_any_txn).astype(np.int8),
        offset=rows.offset[kept],
        value=rows.value[kept],
        checksum=rows.checksum[kept],
        op=op,
        completion=rows.completed[row],
        process=process,
        invoked_ns=rows.invoked_ns[row],
        completed_ns=rows.completed_ns[row],
        ordinal=ordinal.astype(np.int32),
        segment=moves,
    )


def _counts(tally: dict[str, int]) -> Entries:
    """Make entries of counts, so that they travel with the messages."""
    keys, key = sorted_codes(pa.array([*tally], pa.string()))
    zeros = np.zeros(len(tally), np.int64)
    columns: dict[str, Any] = dict.fromkeys(
        ("offset", "checksum", "op", "completion", "process", "invoked_ns", "completed_ns"), zeros
    )
    columns |= dict.fromkeys(("outcome", "flags"), zeros.astype(np.int8))
    columns |= dict.fromkeys(("ordinal", "segment"), zeros.astype(np.int32))
    return Entries(
        keys=keys,
        key=key,
        kind=np.full(len(tally), COUNT, np.int8),
        value=np.array([*tally.values()], np.int64),
        **columns,
    )


def _transaction_notes(rows: Rows) -> Entries:
    """Return the entries of all transactions and `committed` requests, besides their messages.

    ASKED, for each send and each offset of a transaction that recorded when its commit was
    requested, with the operation and the ordinal of the send or the offset; OFFSETS, for each
    offset of a group that a transaction commits; COMMITTED, for each response with
    a committed offset of a group.
    """
    lengths = rows.lengths()
    row = np.repeat(np.arange(len(rows)), lengths)
    of_txn = rows.is_f(_TXN)[row]
    micro_fs = np.array([*rows.micro_fs, ""])[rows.micro_f]
    commits = np.flatnonzero(of_txn & (micro_fs == "commit"))
    asked_ns = np.full(len(rows) + 1, -1)
    asked_ns[row[commits]] = rows.value[commits]
    pending = np.flatnonzero(of_txn & np.isin(micro_fs, ["send", "offsets"]) & (asked_ns[row] >= 0))
    offsets = np.flatnonzero(of_txn & (micro_fs == "offsets"))
    answers = np.flatnonzero(rows.is_f("committed")[row] & (rows.outcome[row] == OK))
    places = np.concatenate([pending, offsets, answers])
    kind = np.repeat([ASKED, OFFSETS, COMMITTED], [len(pending), len(offsets), len(answers)])
    of = row[places]
    ordinal: Ints = places - rows.starts[:-1][of]
    return Entries(
        keys=rows.keys,
        key=rows.key[places],
        kind=kind.astype(np.int8),
        outcome=rows.outcome[of].astype(np.int8),
        flags=np.zeros(len(places), np.int8),
        offset=rows.offset[places],
        value=rows.value[places],
        checksum=np.zeros(len(places), np.int64),
        op=rows.invoked[of],
        completion=rows.completed[of],
        process=rows.process[of],
        invoked_ns=np.where(kind == ASKED, asked_ns[of], rows.invoked_ns[of]),
        completed_ns=rows.completed_ns[of],
        ordinal=ordinal.astype(np.int32),
        segment=np.zeros(len(places), np.int32),
    )
