"""The check of a Kafka history, in two steps that any engine can run.

  check      all rules for some keys, from all entries of those keys;
  conclude   the verdict, from the partial results of all keys.

Anomalies of severity INVALID make the verdict False. Missing evidence (no acknowledged send, no
final reads, rows that do not fit the model) makes it "unknown", never True.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa

from quorumlog.chaos.checkers.checker import Checker, Facts, Ranges, Runs
from quorumlog.chaos.checkers.entries import (
    ASKED,
    COUNT,
    ENTRY_SCHEMA,
    ERROR,
    FAIL,
    FINAL_POLL,
    INFO,
    OK,
    READER,
    SEND,
    Entries,
    Flags,
)
from quorumlog.chaos.checkers.explode import OPERATIONS, explode_lives, explode_run, explode_table
from quorumlog.chaos.checkers.fault_bands import NODE_ENDED_ANOMALY
from quorumlog.chaos.checkers.final_reads import final_reads
from quorumlog.chaos.checkers.key_ranges import examine, positions
from quorumlog.chaos.checkers.linearizability import bounds_of, check_log
from quorumlog.chaos.checkers.log_anomalies import gaps_of, log_anomalies
from quorumlog.chaos.checkers.log_ends import end_anomalies
from quorumlog.chaos.checkers.log_transactions import join_keys, of_transactions
from quorumlog.chaos.checkers.order_anomalies import order_anomalies
from quorumlog.chaos.checkers.positions import context_of
from quorumlog.chaos.checkers.reader_lag import reader_lag, stopped_early
from quorumlog.chaos.checkers.reader_lives import CORRUPT
from quorumlog.chaos.checkers.stitched_keys import stitch
from quorumlog.chaos.checkers.texts import TEXTS
from quorumlog.chaos.checkers.verdict import (
    Anomaly,
    CheckResult,
    Gap,
    Partial,
    Severity,
    first_examples,
)
from quorumlog.chaos.checkers.version_order import (
    VersionOrder,
    acknowledged,
    messages_of,
    order_versions,
)
from quorumlog.chaos.checkers.witnesses import Told, invalid

ANOMALIES: Final = (
    NODE_ENDED_ANOMALY,
    Anomaly("phantom", "A poll returned a value that was never sent."),
    Anomaly("G1a", "A poll returned the value of a failed send (aborted read)."),
    Anomaly("G1b", "A poll returned a transaction's record before its commit was requested."),
    Anomaly("precommitted-read", "A transaction polled a record that it had sent itself."),
    Anomaly("G1c", "Transactions polled each other's records in a circle."),
    Anomaly("inconsistent-offsets", "Clients saw two different values at one offset."),
    Anomaly("duplicate", "Clients saw one value at more than one offset."),
    Anomaly(
        "altered-record", "A poll returned a value with another key, other headers or another time."
    ),
    Anomaly(
        "lost-write", "An acknowledged value is missing, although readers read past its offset."
    ),
    Anomaly("vanished-write", "A value was polled once, but is missing from the final reads."),
    Anomaly("consumed-twice", "Two committed transactions of a group consumed the same record."),
    Anomaly("unconsumed", "A group consumed past a record that no transaction consumed."),
    Anomaly("offset-ahead", "A group received an offset that no transaction committed."),
    Anomaly(
        "offset-lost", "A group received a lower offset than an earlier transaction committed."
    ),
    Anomaly("corrupt-read", "A reader received bytes that fail their checksum."),
    Anomaly(
        "truncated-read",
        "A reader's position was beyond the log's end: records that it read are gone.",
    ),
    Anomaly(
        "log-end-regression", "A log's end was reported below an earlier record or an earlier end."
    ),
    Anomaly("hole", "Offsets have no record, in a log without gaps by design."),
    Anomaly("nonlinearizable-log", "A record was in the log before a record below it was sent."),
    Anomaly("G1c-realtime", "A poll returned a transaction's record before it was sent."),
    Anomaly("nonmonotonic-send", "A process's later send went to a lower offset."),
    Anomaly(
        "int-nonmonotonic-send", "Within one operation, a later message went to a lower offset."
    ),
    Anomaly("int-poll-skip", "One poll left out records between two that it returned."),
    Anomaly(
        "int-nonmonotonic-poll", "One poll returned a record before a record with a lower offset."
    ),
    Anomaly("poll-skip", "A process's next poll left out records after its last one."),
    Anomaly("nonmonotonic-poll", "A process's next poll went back behind its last one."),
    Anomaly("G0", "Transactions wrote before each other in a circle.", Severity.ALLOWED),
    Anomaly(
        "G0-realtime",
        "A transaction's record was in the log before a record below it was sent.",
        Severity.ALLOWED,
    ),
    Anomaly(
        "int-send-skip",
        "Between two sends of one transaction lie records of others.",
        Severity.ALLOWED,
    ),
    Anomaly(
        "late-read",
        "A reader received a record long after its acknowledgement, or never.",
        Severity.ALLOWED,
    ),
    Anomaly(
        "unseen", "Acknowledged values were never polled: lost, or merely late.", Severity.UNKNOWN
    ),
)
_MODEL: Final = "kafka_log"
_MUST_SUCCEED: Final = ("poll", "assign", "subscribe", "final_poll", "final_end")


def check(table: pa.Table, facts: Facts) -> Partial:
    """Check all keys of a table of ENTRY_SCHEMA; each key's entries must be complete."""
    partial, entries = Partial(), Entries.from_arrow(table)
    _take_notes(entries, partial)
    lives = entries.take(np.flatnonzero(entries.kind == READER))
    partial.results += told_losses(entries.take(np.flatnonzero(entries.kind == ERROR)))
    notes = entries.take(np.flatnonzero(entries.kind >= ASKED))
    entries = entries.take(messages_of(entries))
    order = order_versions(entries)
    finals, bounds = final_reads(order), bounds_of(order)
    marked = facts.final_reads_marked
    ordered, figures = order_anomalies(order, marked=marked)
    partial.results += [
        *log_anomalies(order, finals, marked=marked),
        *end_anomalies(order, finals, dense=facts.dense),
        *check_log(order, bounds),
        *ordered,
    ]
    partial.results += of_transactions(order, finals, notes, marked=marked, across=partial.across)
    partial.counts |= figures | _figures(order)
    partial.peaks["worst_lag_ns"], late = reader_lag(order, bounds, lives)
    partial.results += late
    gaps = dict(gaps_of(order, finals, marked=marked))
    if marked:
        gaps["the readers of a key had stopped before most of it was acknowledged"] = stopped_early(
            order, lives
        )
    for reason, examples in gaps.items():
        if examples:
            partial.gaps[reason] = _gap(examples)
    return partial


def _missing(merged: Partial, facts: Facts) -> list[str]:
    """Return the reasons why the verdict cannot be True, in plain words."""
    counts, reasons = merged.counts, []
    if not counts.get("operations"):
        reasons.append("the history is empty")
    elif not counts.get("acknowledged"):
        reasons.append("no send was acknowledged")
    elif not counts.get("polled"):
        reasons.append("no poll returned a record")
    elif facts.final_reads_marked and not counts.get("finally_polled"):
        reasons.append("there are no final reads")
    if any(r.severity == Severity.UNKNOWN and r.explained < r.count for r in merged.results):
        reasons.append("acknowledged values were not read, and no read got past them")
    has_polled = facts.final_reads_marked and counts.get("poll ok")
    if has_polled and counts.get("polled") == counts.get("finally_polled"):
        reasons.append("no poll before the final reads returned anything")
    reasons += [
        f"no {f} certainly succeeded"
        for f in _MUST_SUCCEED
        if not counts.get(f"{f} ok") and (counts.get(f"{f} fail") or counts.get(f"{f} info"))
    ]
    return reasons


def _take_notes(entries: Entries, partial: Partial) -> None:
    """Collect the counts of `explode`."""
    notes = entries.take(np.flatnonzero(entries.kind == COUNT))
    for key, value in zip(notes.key.tolist(), notes.value.tolist(), strict=True):
        name = entries.keys[key]
        partial.counts[name] = partial.counts.get(name, 0) + value


def _gap(examples: Iterable[str]) -> Gap:
    known = list(examples)
    return Gap(len(known), first_examples(known))


def _figures(order: VersionOrder) -> dict[str, int]:
    entries = order.entries
    sent, polled = entries.kind == SEND, order.is_poll & (entries.outcome == OK)

    def count(chosen: Flags) -> int:
        return int(np.count_nonzero(chosen))

    return {
        "keys": len(np.unique(entries.key)),
        "acknowledged": count(acknowledged(entries)),
        "indeterminate": count(sent & (entries.outcome == INFO) & (entries.offset < 0)),
        "refused": count(sent & (entries.outcome == FAIL)),
        "polled": count(polled),
        "finally_polled": count((entries.kind == FINAL_POLL) & (entries.outcome == OK)),
    }


_NOTES = {
    "corrupt-read": "the received bytes fail their checksum",
    "truncated-read": "the log ends below this reader's position",
}


def told_losses(errors: Entries) -> list[CheckResult]:
    """Return `corrupt-read` and `truncated-read`: losses that only the error of a read proves.

    `errors`: entries of kind ERROR, see `reader_lives.loss_errors`.
    """
    is_corrupt = np.array([*(name in CORRUPT for name in errors.keys), False])[errors.key]
    results = []
    for name, chosen in (("corrupt-read", is_corrupt), ("truncated-read", ~is_corrupt)):
        found = np.flatnonzero(chosen)

        def tell(n: int, name: str = name, found: np.ndarray = found) -> Told:
            return _NOTES[name], [("failed read", int(found[n]))]

        if len(found):
            results.append(invalid(errors, name, found, tell))
    return results


CHECKER: Final = Checker(
    model=_MODEL,
    text=TEXTS[_MODEL],
    anomalies=ANOMALIES,
    operations=OPERATIONS,
    entries=ENTRY_SCHEMA,
    explode=explode_table,
    check=check,
    missing=_missing,
    join=join_keys,
    runs=Runs(context=context_of, explode=explode_run, explode_context=explode_lives),
    ranges=Ranges(positions=positions, examine=examine, stitch=stitch),
)
