"""Operations on objects as columns: one row per operation, with the values it names.

Input of the checkers of banks, counters, sets and sequential models. The key of an operation is the
key of its first micro-operation, or "" if it has none.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.checkers.checker import Checker, Facts
from quorumlog.chaos.checkers.entries import FAIL, INFO, OK, Ints, sorted_codes
from quorumlog.chaos.checkers.fault_bands import NODE_ENDED_ANOMALY
from quorumlog.chaos.checkers.verdict import (
    WITNESSES_MAX,
    Anomaly,
    CheckResult,
    Gap,
    Partial,
    Severity,
)
from quorumlog.chaos.history.model import NEMESIS, NEVER_NS, OUTCOMES, HistoryError

NOTHING: Final = "null"  # the text of an absent value
CALLS: Final = pa.schema(
    [
        ("key", pa.string()),
        ("process", pa.int64()),
        ("f", pa.string()),
        ("outcome", pa.int8()),  # OK, INFO or FAIL of `entries`
        ("invoked", pa.int64()),  # event number of the invocation
        ("completed", pa.int64()),  # event number of the completion; -1: none
        ("invoked_ns", pa.int64()),
        ("completed_ns", pa.int64()),
        ("value", pa.int64()),  # the operation's first value ...
        ("text", pa.string()),  # ... or, if this is not "", its canonical JSON
        ("second", pa.int64()),
        ("second_text", pa.string()),  # "" and `second` 0 if there is only one value
        ("values", pa.int64()),  # number of values
    ]
)


def calls_checker(
    model: str,
    text: str,
    anomalies: Sequence[Anomaly],
    operations: frozenset[str],
    check: Callable[[pa.Table], Partial],
) -> Checker:
    """Return a checker that runs `check` on tables of CALLS; see Checker for the other fields."""
    ranked = (NODE_ENDED_ANOMALY, *anomalies)

    def explode(table: pa.Table) -> pa.Table:
        return explode_calls(table, model, operations)

    def check_keys(calls: pa.Table, facts: Facts) -> Partial:
        del facts  # no rule here needs facts about the whole history
        return check(calls.combine_chunks())

    return Checker(
        model=model,
        text=text,
        anomalies=ranked,
        operations=operations,
        entries=CALLS,
        explode=explode,
        check=check_keys,
        missing=nothing_done,
    )


def nothing_done(merged: Partial, _: Facts) -> list[str]:
    """Return the reasons why a history proves nothing; an empty list if it is conclusive."""
    if not merged.counts.get("operations"):
        return ["the history is empty"]
    return [] if merged.counts["ok"] else ["no operation succeeded"]


def by_key(calls: pa.Table) -> Iterator[tuple[str, Ints]]:
    """Yield each key and the rows of its operations in the order of their invocations."""
    if not calls.num_rows:
        return
    keys, key = sorted_codes(calls.column("key"))
    order = np.lexsort((calls.column("invoked").to_numpy(), key))
    ends = np.cumsum(np.bincount(key, minlength=len(keys)))
    yield from zip(keys, np.split(order, ends[:-1]), strict=True)


def explode_calls(table: pa.Table, model: str, operations: Collection[str]) -> pa.Table:
    """Return a table of CALLS from a table of history.schema.OPERATIONS, without nemesis rows.

    Raises HistoryError for an `f` outside `operations` of `model`, and for an operation with more
    than two values.
    """
    table = table.filter(pc.not_equal(table.column("process"), NEMESIS)).combine_chunks()
    refuse_others(table, model, operations)
    micro = _one_array(table.column("micro"))
    lengths = micro.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    if (lengths > 2).any():
        event = table.column("invoked")[int((lengths > 2).argmax())].as_py()
        raise HistoryError(
            f"event {event}: {model} judges operations of one or two values; this has more"
        )
    starts = np.cumsum(lengths) - lengths
    flat = micro.flatten()

    def named(place: int, column: str, absent: Any) -> Any:
        at = pa.array(starts + place, mask=lengths <= place)
        return pc.fill_null(flat.field(column).take(at), absent)

    outcome = np.select(
        [_is(table, "type", "ok"), _is(table, "type", "fail")], [OK, FAIL], default=INFO
    )
    columns = {name: table.column(name) for name in CALLS.names if name in table.column_names}
    columns |= {
        "key": named(0, "key", ""),
        "outcome": pa.array(outcome.astype(np.int8)),
        "value": named(0, "value", 0),
        "text": named(0, "text", NOTHING),
        "second": named(1, "value", 0),
        "second_text": named(1, "text", ""),
        "values": pa.array(lengths),
    }
    return pa.table([columns[name] for name in CALLS.names], schema=CALLS)


def refuse_others(table: pa.Table, model: str, operations: Collection[str]) -> None:
    """Raise HistoryError if an operation has an `f` outside `operations` of `model`."""
    known = pc.is_in(table.column("f"), value_set=pa.array(sorted(operations), pa.string()))
    place = pc.index(known, False).as_py()
    if place >= 0:
        raise HistoryError(
            f"event {table.column('invoked')[place]}: f = {table.column('f')[place].as_py()!r} is "
            f"no operation of the model {model}, which has {', '.join(sorted(operations))}"
        )


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    joined = column.combine_chunks()
    return pa.array([], column.type) if isinstance(joined, pa.ChunkedArray) else joined


def _is(table: pa.Table, column: str, text: str) -> Any:
    return pc.equal(table.column(column), text).to_numpy()


def value_of(value: int, text: str) -> Any:
    """Return a value as Python has it: lists as tuples, maps as sorted tuples of pairs."""
    return frozen(json.loads(text)) if text else value


def frozen(value: Any) -> Any:
    """Return the JSON value in a hashable form."""
    if isinstance(value, list):
        return tuple(frozen(one) for one in value)
    if isinstance(value, dict):
        return tuple(sorted((name, frozen(one)) for name, one in value.items()))
    return value


def count_calls(calls: pa.Table) -> dict[str, int]:
    """Return the number of operations, of operations with each outcome, and of keys."""
    outcome = calls.column("outcome").to_numpy()
    counts = {"operations": calls.num_rows, "keys": pc.count_distinct(calls.column("key")).as_py()}
    for code, name in enumerate(OUTCOMES):
        counts[name] = int(np.count_nonzero(outcome == code))
    return counts


def found(
    name: str,
    witnesses: Iterable[dict[str, Any]],
    count: int,
    severity: Severity = Severity.INVALID,
) -> CheckResult:
    """Return an anomaly with its first witnesses."""
    first = sorted(witnesses, key=lambda one: (one["ops"][0]["index"], one["key"]))
    return CheckResult(name=name, severity=severity, count=count, witnesses=first[:WITNESSES_MAX])


def witness(
    calls: pa.Table, key: str, note: str, told: Iterable[tuple[str, int]]
) -> dict[str, Any]:
    """Return a witness that consists of some rows of `calls`, each with its role."""
    return {"key": key, "note": note, "ops": [_told(calls, role, row) for role, row in told]}


def _told(calls: pa.Table, role: str, row: int) -> dict[str, Any]:
    one = calls.slice(row, 1).to_pylist()[0]
    values = [one["text"] or one["value"]]
    if one["values"] > 1:
        values.append(one["second_text"] or one["second"])
    value = values[0] if len(values) == 1 else " -> ".join(str(value) for value in values)
    return told_row(role, one, one["f"], value)


def told_row(role: str, row: Mapping[str, Any], f: str, value: Any) -> dict[str, Any]:
    """Return a row of CALLS or TRANSACTIONS as an operation of a witness."""
    is_open = row["completed"] < 0 or row["completed_ns"] >= NEVER_NS
    return {
        "role": role,
        "index": row["invoked"],
        "completion": None if row["completed"] < 0 else row["completed"],
        "process": row["process"],
        "f": f,
        "type": OUTCOMES[row["outcome"]],
        "invoked_ns": row["invoked_ns"],
        "completed_ns": None if is_open else row["completed_ns"],
        "value": value,
    }


def gap(examples: Iterable[str]) -> Gap:
    """Return a gap with its first examples."""
    known = list(examples)
    return Gap(len(known), sorted(known, key=lambda text: (len(text), text))[:WITNESSES_MAX])
