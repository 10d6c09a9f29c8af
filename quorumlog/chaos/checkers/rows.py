"""A table of operations as arrays."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.checkers.entries import Codes, Flags, Ints, sorted_codes
from quorumlog.chaos.history.model import IN_TXN, MEMBER, NEMESIS, OUTCOMES, REBALANCED


@dataclass(slots=True, kw_only=True)
class Rows:
    """The clients' operations, in order, and their micro-operations as one flat run per row.

    `invoked` and `completed` are event numbers; without a completion, `completed` is -1 and
    `completed_ns` is NEVER_NS. `outcome`: OK, INFO or FAIL of the row's own `type`.
    """

    process: Ints
    fs: tuple[str, ...]
    f: Codes
    outcome: Codes
    invoked: Ints
    completed: Ints
    invoked_ns: Ints
    completed_ns: Ints
    rebalanced: Flags
    of_member: Flags
    in_txn: Flags
    codes: tuple[str, ...]  # of errors: the text before the first colon
    code: Codes
    starts: Ints  # start of each row's part of the flat columns; one more than rows
    micro_fs: tuple[str, ...]
    micro_f: Codes
    keys: tuple[str, ...]
    key: Codes
    offset: Ints
    value: Ints
    checksum: Ints
    texts: bool  # some value is no integer

    def __len__(self) -> int:
        return len(self.f)

    def head(self, count: int) -> "Rows":
        """Return the first `count` rows."""
        end = int(self.starts[count])
        flat = ("micro_f", "key", "offset", "value", "checksum")
        told = ("fs", "codes", "micro_fs", "keys", "texts", "starts", *flat)
        columns: dict[str, Any] = {
            one.name: getattr(self, one.name)[:count]
            for one in fields(self)
            if one.name not in told
        }
        columns |= {name: getattr(self, name)[:end] for name in flat}
        return replace(self, **columns, starts=self.starts[: count + 1])

    def is_f(self, *names: str) -> Flags:
        """Return which rows have one of these `f`."""
        found: Flags = np.array([name in names for name in self.fs], np.bool_)[self.f]
        return found

    def lengths(self) -> Ints:
        """Return the number of micro-operations of each row."""
        lengths: Ints = np.diff(self.starts)
        return lengths


def rows_of(table: pa.Table) -> Rows:
    """Return the columns of a table of history.schema.OPERATIONS, in any number of chunks."""
    process = table.column("process").to_numpy()
    if (process == NEMESIS).any():
        table = table.filter(pa.array(process != NEMESIS))
    micro = table.column("micro").combine_chunks()
    flat = micro.flatten()
    keys, key = sorted_codes(flat.field("key"))
    micro_fs, micro_f = sorted_codes(flat.field("f"))
    fs, f = sorted_codes(table.column("f"))
    names, type_place = sorted_codes(table.column("type"))
    places = np.array([OUTCOMES.index(name) for name in names] or [0], np.int32)
    starts = np.zeros(len(micro) + 1, np.int64)
    np.cumsum(micro.value_lengths().to_numpy(zero_copy_only=False), out=starts[1:])
    details, detail = sorted_codes(table.column("details"))
    codes, code = _error_codes(table.column("error"))

    def has(text: str) -> Flags:
        found: Flags = detail == (details.index(text) if text in details else -1)
        return found

    numbers: dict[str, Any] = {
        name: table.column(name).to_numpy()
        for name in ("process", "invoked", "completed", "invoked_ns", "completed_ns")
    }
    return Rows(
        **numbers,
        fs=fs,
        f=f,
        outcome=places[type_place],
        rebalanced=has(REBALANCED),
        of_member=has(MEMBER),
        in_txn=has(IN_TXN),
        codes=codes,
        code=code,
        starts=starts,
        micro_fs=micro_fs,
        micro_f=micro_f,
        keys=keys,
        key=key,
        offset=flat.field("offset").to_numpy(zero_copy_only=False),
        value=flat.field("value").to_numpy(zero_copy_only=False),
        checksum=flat.field("checksum").to_numpy(zero_copy_only=False),
        texts=bool(pc.any(pc.not_equal(flat.field("text"), "")).as_py()),
    )


def _error_codes(errors: pa.ChunkedArray) -> tuple[tuple[str, ...], Codes]:
    """Return the distinct codes at the start of errors, and for each error its index there."""
    texts, text = sorted_codes(errors)
    codes = [name.partition(":")[0] for name in texts]
    distinct = sorted(set(codes))
    place = np.array([*(distinct.index(name) for name in codes), 0], np.int32)
    return tuple(distinct), place[text]
