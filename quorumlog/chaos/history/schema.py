"""The tables of a history: events, as they were written, and operations, as they are checked.

No column holds nulls: an absent text is "", absent micro-operations are an empty list.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from quorumlog.chaos.history.model import Operation

MICRO: Final = pa.list_(
    pa.struct(
        [
            ("f", pa.string()),  # the operation's own, except in transactions and the like
            ("key", pa.string()),
            ("offset", pa.int64()),  # model.UNKNOWN_OFFSET: none
            ("value", pa.int64()),
            ("text", pa.string()),  # canonical JSON of a value that is no integer, else ""
            ("checksum", pa.int64()),  # model.checksum_of; 0: none
        ]
    )
)
EVENTS: Final = pa.schema(
    [
        ("index", pa.int64()),
        ("time_ns", pa.int64()),
        ("process", pa.int64()),
        ("type", pa.string()),  # one of model.TYPES
        ("f", pa.string()),
        ("micro", MICRO),
        ("error", pa.string()),
        ("node", pa.string()),
        ("details", pa.string()),
    ]
)
"""One row per event: an invocation or a completion."""
OPERATIONS: Final = pa.schema(
    [
        ("index", pa.int64()),  # 0, 1, 2, ... in the order of invocation
        ("process", pa.int64()),
        ("f", pa.string()),
        ("type", pa.string()),  # one of model.OUTCOMES
        ("invoked_ns", pa.int64()),
        ("completed_ns", pa.int64()),  # model.NEVER_NS: it never completed
        ("invoked", pa.int64()),  # event number of the invocation
        ("completed", pa.int64()),  # event number of the completion; -1: it never completed
        ("micro", MICRO),  # of the completion, or of the invocation if that has none
        ("error", pa.string()),
        ("node", pa.string()),
        ("details", pa.string()),
    ]
)
"""One row per operation. `history.parquet` holds this."""

# Keys of the metadata of a table of OPERATIONS, and of a Parquet file.
FORMAT: Final = b"quorumlog.format"  # "2"
FINAL_READS: Final = b"quorumlog.final_reads"  # "marked": by f = final_poll; "unmarked": Jepsen's
CUT_OFF: Final = b"quorumlog.cut_off"  # present when the last line of the file was incomplete
ENDED: Final = b"quorumlog.ended"  # present with an end row, or if the format has none
MODEL: Final = b"quorumlog.model"  # from the header; absent if the header has none
WORKLOAD: Final = b"quorumlog.workload"
DENSE: Final = b"quorumlog.dense"  # present when the workload leaves no offset unused
LINES_DIGEST: Final = b"quorumlog.lines_sha256"  # of a Parquet file: the JSON lines it is made from
MESSAGES: Final = b"quorumlog.messages"  # number of messages in a Parquet file
FACTS: Final = (FORMAT, FINAL_READS, CUT_OFF, ENDED, DENSE, MODEL, WORKLOAD)


def facts_of(*, final_reads: str = "marked", cut_off: bool = False, ended: bool = True) -> Any:
    """Return the metadata of a table of operations."""
    facts = {FORMAT: b"2", FINAL_READS: final_reads.encode()}
    if cut_off:
        facts[CUT_OFF] = b"1"
    if ended:
        facts[ENDED] = b"1"
    return facts


def known_facts(metadata: Mapping[bytes, bytes] | None) -> dict[bytes, bytes]:
    """Return the part of a table's metadata that this version reads."""
    return {key: value for key, value in (metadata or {}).items() if key in FACTS}


def events_of(operations: Sequence[Operation]) -> pa.Table:
    """Return events as a table of EVENTS."""
    columns: dict[str, list[Any]] = {
        name: [getattr(operation, name) for operation in operations]
        for name in EVENTS.names
        if name != "micro"
    }
    columns["micro"] = [
        [{**message._asdict(), "f": message.f or operation.f} for message in operation.messages]
        for operation in operations
    ]
    return pa.table({name: columns[name] for name in EVENTS.names}, schema=EVENTS)
