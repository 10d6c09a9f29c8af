"""Facts about transactions besides their messages, as entries that travel with the messages.

ASKED, for each send of a transaction that recorded when its commit was requested; OFFSETS, for each
offset of a group that a transaction commits; COMMITTED, for each response with a committed offset
of a group. An ASKED entry has the operation and the ordinal of its send.
"""

from typing import Final

import numpy as np

from quorumlog.chaos.checkers.entries import ASKED, COMMITTED, OFFSETS, OK, Entries, Ints
from quorumlog.chaos.checkers.rows import Rows

_TXN: Final = "txn"


def transaction_notes(rows: Rows) -> Entries:
    """Return the entries of all transactions and `committed` requests, without their messages."""
    lengths = rows.lengths()
    row = np.repeat(np.arange(len(rows)), lengths)
    of_txn = rows.is_f(_TXN)[row]
    micro_fs = np.array([*rows.micro_fs, ""])[rows.micro_f]
    commits = np.flatnonzero(of_txn & (micro_fs == "commit"))
    asked_ns = np.full(len(rows) + 1, -1)
    asked_ns[row[commits]] = rows.value[commits]
    sends = np.flatnonzero(of_txn & (micro_fs == "send") & (asked_ns[row] >= 0))
    offsets = np.flatnonzero(of_txn & (micro_fs == "offsets"))
    answers = np.flatnonzero(rows.is_f("committed")[row] & (rows.outcome[row] == OK))
    places = np.concatenate([sends, offsets, answers])
    kind = np.repeat([ASKED, OFFSETS, COMMITTED], [len(sends), len(offsets), len(answers)])
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
        op=rows.invoked[of],
        completion=rows.completed[of],
        process=rows.process[of],
        invoked_ns=np.where(kind == ASKED, asked_ns[of], rows.invoked_ns[of]),
        completed_ns=rows.completed_ns[of],
        ordinal=ordinal.astype(np.int32),
        segment=np.zeros(len(places), np.int32),
    )
