"""Histories: the operations of every client in Jepsen's model, as JSON lines and Parquet.

`model` says what an operation is, `schema` how it lies in a table, `writer` writes a run, `files`
reads one; `pairing` makes operations of events, and `validate` says what is no history.
"""

from quorumlog.chaos.history.files import read_history
from quorumlog.chaos.history.meta import read_meta, write_meta
from quorumlog.chaos.history.model import (
    NEMESIS,
    UNKNOWN_OFFSET,
    HistoryError,
    Message,
    Operation,
)
from quorumlog.chaos.history.writer import HistoryWriter

__all__ = [
    "NEMESIS",
    "UNKNOWN_OFFSET",
    "HistoryError",
    "HistoryWriter",
    "Message",
    "Operation",
    "read_history",
    "read_meta",
    "write_meta",
]
