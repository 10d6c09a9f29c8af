"""Histories: the operations of every client in Jepsen's model, as JSON lines and Parquet.

`model` defines an operation, `schema` its tables, `writer` writes a run's history, `files` reads
one; `operations_table` joins events to operations, and `validate` rejects invalid histories.
"""

from quorumlog.chaos.history.files import HistorySource, read_history
from quorumlog.chaos.history.meta import read_meta, write_meta
from quorumlog.chaos.history.model import (
    NEMESIS,
    UNKNOWN_OFFSET,
    HistoryError,
    Message,
    Operation,
    checksum_of,
)
from quorumlog.chaos.history.writer import HistoryWriter

__all__ = [
    "NEMESIS",
    "UNKNOWN_OFFSET",
    "HistoryError",
    "HistorySource",
    "HistoryWriter",
    "Message",
    "Operation",
    "checksum_of",
    "read_history",
    "read_meta",
    "write_meta",
]
