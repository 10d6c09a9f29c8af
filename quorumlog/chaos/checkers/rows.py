"""A history's table as arrays, with the pairs of rows that are one operation."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from quorumlog.chaos.checkers.entries import Codes, Flags, Ints, sorted_codes
from quorumlog.chaos.history.model import REBALANCED, TYPES

_INVOKE: Final = TYPES.index("invoke")


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
