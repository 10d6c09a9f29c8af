"""The check of a topic that is deleted and created again: each reader reads each of its lives.

A key is a partition in one life of the topic. The log of a key consists of the records acknowledged
in it, by offset. Readers are compared by kind: the members of a group are one reader. The rule: a
kind that was delivered a record was also delivered, at any time, every acknowledged record below
it. A position or a committed offset that is used in a later life breaks it, because each life
begins at offset 0. Besides, a record is delivered with the key, the headers and the timestamp with
which it was sent.

The other rules of a log do not hold here: a record may be in another life than its key names.

A leader that has not yet applied the deletion may acknowledge a record in the former topic. If two
records are acknowledged at one offset (`elsewhere`), readers need not have them.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from quorumlog.chaos.checkers.findings import (
    Findings,
    Row,
    count,
    entries_of,
    rows_checker,
    rows_of,
)
from quorumlog.chaos.checkers.verdict import Anomaly, Partial, Severity

ANOMALIES: Final = (
    Anomaly(
        "skipped-record",
        "Readers received a record, but never an acknowledged record below it in the same"
        " life of the topic.",
    ),
    Anomaly(
        "altered-record",
        "A reader received a value with another key, other headers or another time.",
    ),
    Anomaly(
        "elsewhere",
        "Two records were acknowledged at one offset: a leader without the deletion in"
        " its metadata wrote one to the former topic.",
        Severity.ALLOWED,
    ),
)
_MODEL: Final = "topic_lives"
_READERS: Final = ("alone", "classic", "consumer")
_OPERATIONS: Final = frozenset({"send", "poll", "recreate"})
_KINDS: Final = frozenset({"send", "recreate", *_READERS})
_EVIDENCE: Final = {
    "acknowledged": "no send was acknowledged",
    "recreated": "the topic was never created again",
    **{kind: f"no reader of the kind {kind!r} received a record" for kind in _READERS},
}


def explode(table: pa.Table) -> pa.Table:
    """Return an entry for each micro-operation; `extra` is 0."""
    return entries_of(rows_of(table, _KINDS, _MODEL, _OPERATIONS))


def _check_key(rows: Sequence[Row], partial: Partial) -> None:
    known = [row for row in rows if row.outcome == "ok"]
    findings = Findings(partial, rows[0].key, ANOMALIES)
    log: dict[int, Row] = {}
    doubled = set()
    for row in (row for row in known if row.kind == "send"):
        other = log.setdefault(row.offset, row)
        if other is not row:
            findings.add("elsewhere", f"offset {row.offset}", ("one", other), ("other", row))
            doubled.add(row.offset)
    log = {offset: row for offset, row in log.items() if offset not in doubled}
    delivered = {kind: [row for row in known if row.kind == kind] for kind in _READERS}
    for kind in _READERS:
        got = {row.offset: row for row in delivered[kind] if _is_in(log, row)}
        top = max(got, default=0)
        for offset in sorted(log.keys() - got.keys()):
            if offset < top:
                note = f"{kind}: offset {offset}"
                findings.add("skipped-record", note, ("sent", log[offset]), ("later", got[top]))
    sent = {row.value: row for row in rows if row.kind == "send"}
    for row in (row for row in known if row.kind in _READERS and row.checksum):
        meant = sent.get(row.value)
        if meant is not None and meant.checksum not in (0, row.checksum):
            findings.add("altered-record", f"offset {row.offset}", ("sent", meant), ("read", row))
    count(
        partial,
        acknowledged=len(log),
        polled=sum(map(len, delivered.values())),
        recreated=sum(row.kind == "recreate" for row in known),
        **{kind: len(delivered[kind]) for kind in _READERS},
    )


def _is_in(log: Mapping[int, Row], row: Row) -> bool:
    """Return whether the record is acknowledged there: else a retry may have put it elsewhere."""
    sent = log.get(row.offset)
    return sent is not None and sent.value == row.value


CHECKER: Final = rows_checker(
    ANOMALIES,
    model=_MODEL,
    operations=_OPERATIONS,
    explode=explode,
    check_key=_check_key,
    evidence=_EVIDENCE,
)
