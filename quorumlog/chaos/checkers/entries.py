"""The entries of a history, as columns: one entry per message sent or polled.

The entries of one key can be checked without those of any other key, so Spark moves entries.
`explode` writes into each entry all facts about the process's other operations that a rule needs
(the outcome, the changes of its reading position).
"""

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
Kinds = npt.NDArray[np.int8]

# kind
SEND: Final = 0
POLL: Final = 1
FINAL_POLL: Final = 2
FINAL_END: Final = 3  # offset: the log end offset that a final reader reached
COUNT: Final = 4  # key: the name of a count; value: the number. No message
READER: Final = 5  # the life of a reader in a key: see reader_lives. No message
ERROR: Final = 6  # key: the code of an error that proves a loss. No message
ASKED: Final = 7  # invoked_ns: when the commit of the transaction with this micro was requested
OFFSETS: Final = 8  # offset: committed in a transaction for a group in this key. No message
COMMITTED: Final = 9  # offset: a group's committed offset in this key, from a response. No message

F_OF_KIND: Final = ("send", "poll", "final_poll", "final_end", *[""] * 4, "txn", "committed")

# outcome
OK: Final = 0
INFO: Final = 1
FAIL: Final = 2

# flags
REBALANCED_FLAG: Final = 1  # the group rebalanced during this poll
GROUP_FLAG: Final = 2  # the reader is a member of a group
SOUGHT_FLAG: Final = 4  # the reader has moved its position in this key by a seek
TXN_FLAG: Final = 8  # the operation was a transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """Columns of equal length.

    `key` is an index into `keys`, which is sorted. `op` and `completion` are the event numbers of
    the operation's invocation and completion (-1: no completion). `checksum`: of a message's key,
    headers and timestamp; 0: none. `ordinal` is the message's index
    in its operation. `segment` grows whenever the process's position in this key may have been
    changed by anything but a poll with a certain outcome.
    """

    keys: tuple[str, ...]
    key: Codes
    kind: Kinds
    outcome: Kinds
    flags: Kinds
    offset: Ints
    value: Ints
    checksum: Ints
    op: Ints
    completion: Ints
    process: Ints
    invoked_ns: Ints
    completed_ns: Ints
    ordinal: Codes
    segment: Codes

    def __len__(self) -> int:
        return len(self.key)

    def take(self, chosen: Any) -> "Entries":
        """Return the entries at `chosen`: indexes, or a mask."""
        columns = {name: getattr(self, name)[chosen] for name in COLUMNS}
        return Entries(keys=self.keys, **columns)

    def to_arrow(self) -> pa.Table:
        """Return a table of ENTRY_SCHEMA, keys as text."""
        names = pa.array(self.keys, pa.string())
        columns: list[Any] = [pa.DictionaryArray.from_arrays(self.key, names).cast(pa.string())]
        columns += [pa.array(getattr(self, name)) for name in ENTRY_SCHEMA.names[1:]]
        return pa.table(columns, schema=ENTRY_SCHEMA)

    @classmethod
    def from_arrow(cls, table: pa.Table) -> "Entries":
        """Return the entries of a table of `to_arrow`, in any order and any number of chunks."""
        keys, key = sorted_codes(table.column("key"))
        columns = {name: table.column(name).to_numpy() for name in ENTRY_SCHEMA.names[1:]}
        return cls(keys=keys, key=key, **columns)


COLUMNS: Final = tuple(field.name for field in fields(Entries) if field.name != "keys")
_ARROW_TYPES: Final[dict[Any, Any]] = {Ints: pa.int64(), Codes: pa.int32(), Kinds: pa.int8()}
ENTRY_SCHEMA: Final = pa.schema(
    [("key", pa.string()), *((one.name, _ARROW_TYPES[one.type]) for one in fields(Entries)[2:])]
)
"""The columns as a table: `key` as text in place of `keys` and codes, the others unchanged."""


_ORDINAL_BITS: Final = 24


def asked_ns(asked: Entries, of: Entries, rows: Ints) -> Ints:
    """Return when the commit of the transaction at each of `rows` of `of` was requested, in ns.

    -1: it was not recorded. `asked`: entries of kind `ASKED`.
    """
    if not len(asked):
        return np.full(len(rows), -1)
    moments = _moments(asked)
    by_moment = np.argsort(moments, kind="stable")
    moments, told_ns = moments[by_moment], asked.invoked_ns[by_moment]
    wanted = _moments(of)[rows]
    at = np.minimum(np.searchsorted(moments, wanted), len(moments) - 1)
    return np.where(moments[at] == wanted, told_ns[at], -1)


def _moments(entries: Entries) -> Ints:
    moments: Ints = (entries.op << _ORDINAL_BITS) | entries.ordinal
    return moments


def sorted_codes(texts: pa.ChunkedArray | pa.Array) -> tuple[tuple[str, ...], Codes]:
    """Return the distinct texts, sorted, and for each text its index among them."""
    encoded = texts.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):  # it had no chunk at all
        return (), np.zeros(0, np.int32)
    names = encoded.dictionary.to_pylist()
    order = sorted(range(len(names)), key=names.__getitem__)
    rank = np.zeros(len(names) + 1, np.int32)
    rank[order] = np.arange(len(names), dtype=np.int32)
    codes: Codes = rank[encoded.indices.to_numpy(zero_copy_only=False)]
    return tuple(names[place] for place in order), codes
