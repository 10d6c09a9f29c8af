"""Reads Jepsen's Kafka-workload operations, as JSON (one per line, or one array), into our table.

`value` is a list of micro-operations: ["send", k, v], ["send", k, [offset, v]], ["poll"],
["poll", {k: [[offset, v], ...]}]; of an assign or a subscribe, the list of keys.
A definite transaction that only sends is a send, one that only polls a poll: cycles through those
are legal in Kafka. Others keep f = "txn" and what they sent, which no checker of this version
judges: the verdict is then `unknown` at best. Jepsen marks no final reads: schema.FINAL_READS.
Source: jepsen.tests.kafka, the namespace's docstring.
"""

import json
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from quorumlog.chaos.history import schema
from quorumlog.chaos.history.model import (
    NEMESIS,
    REBALANCED,
    TYPES,
    UNKNOWN_OFFSET,
    HistoryError,
    Message,
    Operation,
)

_KEY_LISTS: Final = ("assign", "subscribe")
_HEAD_BYTES: Final = 1 << 16  # an operation that opens a history is far shorter
_TXN: Final = "txn"  # in `details`, while a history is read, it marks one of a single kind


def looks_like_jepsen(text: bytes) -> bool:
    """Tell Jepsen's JSON from our JSON lines by the first operation."""
    first_line = text[:_HEAD_BYTES].lstrip().partition(b"\n")[0]
    if first_line.startswith(b"["):
        return True
    try:
        first = json.loads(first_line)
    except ValueError:
        return False
    return isinstance(first, dict) and "time" in first and "time_ns" not in first


def read_jepsen(name: str, text: bytes) -> pa.Table:
    """Return the table. Raises HistoryError with `name` and the operation's place (from 1)."""
    try:
        whole = text.lstrip().startswith(b"[")
        rows = json.loads(text) if whole else [json.loads(line) for line in _lines(text)]
    except ValueError as error:
        raise HistoryError(f"{name}: {error}") from error
    operations = []
    for number, row in enumerate(rows, start=1):
        try:
            operations.append(_operation(row))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise HistoryError(f"{name}:{number}: not a Jepsen operation: {error}") from error
    return schema.table_of(_plain(operations), final_reads="unmarked")


def _lines(text: bytes) -> list[bytes]:
    return [line for line in text.splitlines() if line.strip()]


def _operation(row: dict[str, Any]) -> Operation:
    process = row["process"] if isinstance(row["process"], int) else NEMESIS
    f, value = str(row["f"]), row.get("value")
    if row["type"] not in TYPES:
        raise ValueError(f"type {row['type']!r}")
    messages: list[Message] = []
    details = REBALANCED if row.get("rebalance-log") else ""
    if process == NEMESIS:
        details = "" if value is None else json.dumps(value)
    elif f in _KEY_LISTS:
        messages = [Message(str(key), UNKNOWN_OFFSET, 0) for key in value or []]
    elif f in ("send", "poll", _TXN):
        kinds = {micro[0] for micro in value or []}
        kept = ["send"] if len(kinds) > 1 else kinds
        messages = [sent for micro in value or [] if micro[0] in kept for sent in _messages(micro)]
        if f == _TXN and len(kinds) == 1:
            details, f = _TXN, kinds.pop()
    return Operation(
        index=int(row["index"]),
        time_ns=int(row["time"]),
        process=process,
        type=row["type"],
        f=f,
        messages=tuple(messages),
        error=json.dumps(row["error"]) if row.get("error") else "",
        details=details,
    )


def _plain(operations: list[Operation]) -> list[Operation]:
    """Turn what `_operation` marked back into transactions where the outcome is not definite."""
    plain: list[Operation] = []
    invoked: dict[int, int] = {}  # process -> place of its open transaction
    for operation in operations:
        if operation.details != _TXN:
            plain.append(operation)
        elif operation.type == "invoke":
            invoked[operation.process] = len(plain)
            plain.append(replace(operation, f=_TXN, details=""))
        elif operation.type != "info" and operation.process in invoked:
            place = invoked.pop(operation.process)
            plain[place] = replace(plain[place], f=operation.f)
            plain.append(replace(operation, details=""))
        else:
            plain.append(replace(operation, f=_TXN, details=""))
    return plain


def _messages(micro: list[Any]) -> list[Message]:
    match micro:
        case ["send", key, [offset, value]]:
            known = UNKNOWN_OFFSET if offset is None else int(offset)
            return [Message(str(key), known, int(value))]
        case ["send", key, value]:
            return [Message(str(key), UNKNOWN_OFFSET, int(value))]
        case ["poll"]:
            return []
        case ["poll", dict(polled)]:
            return [
                Message(str(key), int(offset), int(value))
                for key, pairs in polled.items()
                for offset, value in pairs
            ]
        case _:
            raise ValueError(f"micro-operation {micro!r}")
