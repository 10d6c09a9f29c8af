"""Histories put into one, and verdicts compared."""

from typing import Any

import pyarrow as pa

from quorumlog.chaos.checkers import Verdict
from quorumlog.chaos.history.schema import OPERATIONS, facts_of


def same(one: Verdict, other: Verdict) -> None:
    documents = [verdict.as_json() for verdict in (one, other)]
    for document in documents:
        del document["engine"], document["seconds"]
    assert documents[0] == documents[1]
    # The order of the anomalies is part of the answer.
    assert [*documents[0]["anomalies"]] == [*documents[1]["anomalies"]]


def apart(tables: list[pa.Table]) -> pa.Table:
    """Put histories into one, each with its own processes and keys, one after the other."""
    rows: list[dict[str, Any]] = []
    events = time_ns = 0
    for place, table in enumerate(tables):
        shifted = table.to_pylist()
        for row in shifted:
            row["process"] += 10_000 * place if row["process"] >= 0 else 0
            row["index"] += len(rows)
            row["invoked"] += events
            row["invoked_ns"] += time_ns
            if row["completed"] >= 0:
                row["completed"] += events
                row["completed_ns"] += time_ns
            for message in row["micro"]:
                message["key"] = f"h{place}-{message['key']}"
        rows += shifted
        last = [(row["invoked"], row["invoked_ns"]) for row in shifted]
        last += [
            (row["completed"], row["completed_ns"]) for row in shifted if row["completed"] >= 0
        ]
        events, time_ns = max(last)[0] + 1, max(last)[1]
    return pa.Table.from_pylist(rows, schema=OPERATIONS).replace_schema_metadata(facts_of())
