"""Histories: the operations of every client in Jepsen's model, as JSON lines and Parquet.

`model` says what an operation is, `schema` how it lies in a table, `files` reads and writes runs.
"""

from quorumlog.chaos.history.files import HistoryWriter, read_history
from quorumlog.chaos.history.meta import read_meta, write_meta
from quorumlog.chaos.history.model import (
    NEMESIS,
    UNKNOWN_OFFSET,
    HistoryError,
    Message,
    Operation,
)

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
