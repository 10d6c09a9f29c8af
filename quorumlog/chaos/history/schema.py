"""The schema of a history as an Arrow table and in `history.parquet`: one row per Operation.

The same names and types in JSON lines, so pandas, DuckDB and Spark read either without help.
No column holds nulls: an absent text is "", absent messages are an empty list.
"""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from quorumlog.chaos.history.model import Operation

MESSAGES: Final = pa.list_(
    pa.struct([("key", pa.string()), ("offset", pa.int64()), ("value", pa.int64())])
)
SCHEMA: Final = pa.schema(
    [
        ("index", pa.int64()),
        ("time_ns", pa.int64()),
        ("process", pa.int64()),
        ("type", pa.string()),
        ("f", pa.string()),
        ("messages", MESSAGES),
        ("error", pa.string()),
        ("node", pa.string()),
        ("details", pa.string()),
    ]
)
# Keys of the table's metadata.
FINAL_READS: Final = b"quorumlog.final_reads"  # "marked": by f = final_poll; "unmarked": Jepsen's
CUT_OFF: Final = b"quorumlog.cut_off"  # present when the last line of the file was incomplete
LINES_DIGEST: Final = b"quorumlog.lines_sha256"  # of a Parquet file: the JSON lines it is made from


def table_of(operations: Sequence[Operation], *, final_reads: str = "marked") -> pa.Table:
    """Return operations as a table; `final_reads` as in FINAL_READS."""
    columns: dict[str, list[Any]] = {
        name: [getattr(operation, name) for operation in operations]
        for name in SCHEMA.names
        if name != "messages"
    }
    columns["messages"] = [
        [message._asdict() for message in operation.messages] for operation in operations
    ]
    table = pa.table({name: columns[name] for name in SCHEMA.names}, schema=SCHEMA)
    return table.replace_schema_metadata({FINAL_READS: final_reads.encode()})
