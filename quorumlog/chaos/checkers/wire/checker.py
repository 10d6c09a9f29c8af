"""The check of the protocol: the responses of brokers to raw clients, against its rules.

A key is a partition. The rules are in `appends`, `ends`, `reads` and `sessions`; they use the
protocol alone, and no code of a server. A response that a rule does not cover proves nothing, so
the verdict needs a number of judged responses of the main rules.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.checkers.calls import refuse_others
from quorumlog.chaos.checkers.checker import Checker, Facts
from quorumlog.chaos.checkers.explode import OPERATIONS as OF_LOGS
from quorumlog.chaos.checkers.fault_bands import NODE_ENDED_ANOMALY
from quorumlog.chaos.checkers.findings import ENTRIES, Findings, Row, count, rows_of
from quorumlog.chaos.checkers.texts import TEXTS
from quorumlog.chaos.checkers.verdict import Anomaly, Partial
from quorumlog.chaos.checkers.wire.appends import check_appends
from quorumlog.chaos.checkers.wire.ends import KnownEnds, check_ends, ends_of
from quorumlog.chaos.checkers.wire.facts import read_facts
from quorumlog.chaos.checkers.wire.final_log import final_log, sent_records
from quorumlog.chaos.checkers.wire.group_offsets import check_group_offsets
from quorumlog.chaos.checkers.wire.reads import check_complete, check_reads
from quorumlog.chaos.checkers.wire.sessions import check_session_errors, check_sessions
from quorumlog.chaos.history import exchanges
from quorumlog.chaos.history.model import NEMESIS

ANOMALIES: Final = (
    Anomaly("malformed-response", "A broker sent bytes that are no response of the protocol."),
    Anomaly("no-answer", "A response leaves out a partition of its request."),
    Anomaly("corrupt-batch", "A fetch returned a batch that fails its checksum or its form."),
    Anomaly(
        "acknowledged-early", "acks=all was answered, and the same node's end was below the batch."
    ),
    Anomaly("gap-accepted", "A batch was appended although its producer's sequence has a gap."),
    Anomaly("stale-producer-accepted", "A batch of an old producer epoch was appended."),
    Anomaly("end-went-back", "A node named an end below the one that it had named before."),
    Anomaly("end-too-high", "A node named an end above the end of the final log."),
    Anomaly("lost-append", "An acknowledged batch is not in the log."),
    Anomaly("repeat-elsewhere", "A repeated batch was answered with another offset."),
    Anomaly("sequence-refused", "A batch with the next sequence was refused as out of order."),
    Anomaly("refused-in-log", "The log has a record that was refused."),
    Anomaly("record-twice", "A record is in the log twice."),
    Anomaly("never-sent", "A read returned a record that nobody sent."),
    Anomaly("changed-record", "A record came back with another key, header, timestamp or value."),
    Anomaly("forgotten-partition", "A fetch session left out a partition that has records."),
    Anomaly("not-asked-for", "A fetch response has a partition that the session does not have."),
    Anomaly("uncommitted-read", "A fetch returned records at or above its high watermark."),
    Anomaly("read-vanished", "A fetch returned a record that the final log does not have there."),
    Anomaly("fetch-skips", "The records of a fetch leave out offsets."),
    Anomaly("stale-epoch-accepted", "A leader accepted a leader epoch older than its own."),
    Anomaly("unknown-epoch-accepted", "A leader accepted a leader epoch that does not exist."),
    Anomaly("out-of-range-accepted", "A fetch far behind the end of the log got no error."),
    Anomaly("committed-offset-lost", "A group's offset was not the one just committed."),
    Anomaly("ghost-commit-accepted", "A member that does not exist committed an offset."),
    Anomaly("versions-differ", "Two versions of a request got different answers."),
    Anomaly("wrong-error", "A request was refused with an error that accuses it wrongly."),
)
MODEL: Final = "wire_rules"
OPERATIONS: Final = OF_LOGS | exchanges.OPERATIONS
ENTRIES_WITH_TEXT: Final = ENTRIES.append(pa.field("text", pa.string()))
_EVIDENCE: Final = {
    "acks_all": "no acks=all was answered",
    "fetch": "no fetch was answered",
    "end": "no end was compared with an earlier one",
}
_RULES: Final = (
    "acks_all", "acks_1", "acks_0", "sequence", "gap", "repeat", "stale_producer", "end", "fetch",
    "session", "session_error", "old_epoch", "unknown_epoch", "versions", "group_offset",
    "ghost_commit",
)  # fmt: skip
_UNREAD: Final = "final reads did not read a log from 0 to its end"


def explode(table: pa.Table) -> pa.Table:
    """Return an entry for each partition of each request, with its text."""
    clients = table.filter(pc.not_equal(table.column("process"), NEMESIS))
    refuse_others(clients, MODEL, OPERATIONS)
    wired = clients.filter(pc.is_in(clients.column("f"), pa.array(sorted(exchanges.OPERATIONS))))
    rows = rows_of(wired, exchanges.KINDS, MODEL, OPERATIONS)
    texts = {
        (index, place): one["text"]
        for index, micro in zip(
            wired.column("index").to_pylist(), wired.column("micro").to_pylist(), strict=True
        )
        for place, one in enumerate(micro)
    }
    told = [(*row, texts[row.op, row.place]) for row in rows]
    columns: list[Sequence[Any]] = [*zip(*told, strict=True)] if told else []
    columns = columns or [()] * len(ENTRIES_WITH_TEXT)
    return pa.table([pa.array(one) for one in columns], schema=ENTRIES_WITH_TEXT)


def _by_key(entries: pa.Table) -> Iterator[list[tuple[Row, str]]]:
    rows = [
        (Row(*row[:-1]), row[-1])
        for row in zip(*(column.to_pylist() for column in entries), strict=True)
    ]
    rows.sort(key=lambda one: (one[0].key, one[0].op, one[0].place))
    for _, of_key in groupby(rows, key=lambda one: one[0].key):
        yield [*of_key]


def check(entries: pa.Table, facts: Facts) -> Partial:
    """Check the entries of some keys."""
    del facts  # no rule here needs facts about the whole history
    partial = Partial()
    for rows in _by_key(entries):
        count(partial, operations=sum(row.place == 0 for row, _ in rows))
        judged = check_key(rows, Findings(partial, rows[0][0].key, ANOMALIES))
        count(partial, **judged)
    return partial


def check_key(rows: Sequence[tuple[Row, str]], findings: Findings) -> dict[str, int]:
    """Check one partition; return how many responses each rule has judged."""
    facts = read_facts(rows)
    add = findings.add
    for one in facts.malformed:
        add("malformed-response", one.reason, ("received", one.row))
    check_complete(facts, add)
    sent, log = sent_records(facts.batches), final_log(facts)
    if facts.batches and not log.is_whole:
        findings.gap(_UNREAD, [rows[0][0].key])
    ends = ends_of(facts)
    known = KnownEnds(ends)
    judged = Counter(
        name.replace("-", "_")
        for rule in (
            check_appends(facts.batches, sent, log, add),
            check_ends(ends, known, log, add),
            check_reads(facts, sent, log, add),
            check_sessions(facts.fetches, known, add),
            check_session_errors(facts.fetches, add),
            check_group_offsets(facts, add),
        )
        for name in rule
    )
    return {name: judged[name] for name in _RULES}


def _missing(merged: Partial, _: Facts) -> list[str]:
    return [reason for name, reason in _EVIDENCE.items() if not merged.counts.get(name)]


CHECKER: Final = Checker(
    model=MODEL,
    text=TEXTS[MODEL],
    anomalies=(NODE_ENDED_ANOMALY, *ANOMALIES),
    operations=OPERATIONS,
    entries=ENTRIES_WITH_TEXT,
    explode=explode,
    check=check,
    missing=_missing,
)
