"""The check of a consumer group: its deliveries, its committed offsets, its owners.

A key is a partition of one topic that one group reads; its log is dense (no transactions, no
compaction). Sends and final reads define the log; members poll (`group_poll`), `commit` and request
`committed`, as workloads.group_consume writes it. Rules, each for one key:

  delivered   each acknowledged record below a committed offset of the group was delivered by an
              `ok` poll of some member, with the value that was sent.
  committed   a committed offset in a response is at most the highest offset in any commit request
              before it, and at least the offset committed before the request. A replaced
              coordinator may respond until it notices, so a lower offset is lost only if no later
              one is as high again; else it is stale, which is legal. Successive successful commits
              do not go back: each member commits only the records delivered to it from the
              committed offset on.
  resumed     the first record after `assigned` is at a committed offset, by the same bounds; the
              following records leave none out and do not go back.
  generations one member owns a key in a generation; generations do not go back; after a newer
              generation was seen, a commit of an older one does not succeed. These rules hold until
              a member joins by the consumer protocol (KIP-848), which has no generations: a classic
              group that replaces an empty consumer group begins its generations anew, and clients
              do not see when a group is replaced.

An event of a rebalance lies between the end of the member's previous poll and the end of the poll
that reports it. Sources: KIP-62, KIP-345, KIP-429; Kafka's consumer protocol.
"""

from collections.abc import Iterator, Sequence
from operator import attrgetter, itemgetter
from typing import Final

import pyarrow as pa

from quorumlog.chaos.checkers.explode import OPERATIONS
from quorumlog.chaos.checkers.findings import (
    NEVER,
    Findings,
    Greatest,
    Row,
    count,
    entries_of,
    rows_checker,
    rows_of,
)
from quorumlog.chaos.checkers.verdict import Anomaly, Partial, Severity

ANOMALIES: Final = (
    Anomaly("lost-record", "An acknowledged record lies beyond the end of its log."),
    Anomaly(
        "other-record",
        "The group received another record than the one acknowledged at that offset.",
    ),
    Anomaly("committed-lost", "The group's committed offset is lower than an earlier commit."),
    Anomaly(
        "committed-stale",
        "For a while, an older committed offset was returned, by a replaced coordinator.",
        Severity.ALLOWED,
    ),
    Anomaly(
        "committed-ahead",
        "The group's committed offset is higher than every offset in a commit request.",
    ),
    Anomaly("split-ownership", "Two members owned one partition in the same generation."),
    Anomaly("generation-went-back", "The group's new generation is not above an earlier one."),
    Anomaly(
        "zombie-commit", "A member of an old generation committed after a newer generation existed."
    ),
    Anomaly(
        "committed-went-back",
        "A commit succeeded although the group had committed a higher offset before.",
    ),
    Anomaly(
        "resumed-ahead", "A new owner started above every committed offset: it skipped records."
    ),
    Anomaly("resumed-behind", "A new owner started below an earlier committed offset."),
    Anomaly("group-skip", "A member did not receive the record after its last record."),
    Anomaly(
        "undelivered",
        "The group has committed an offset above an acknowledged record that no member"
        " was delivered.",
    ),
)
_MODEL: Final = "group_log"
_OPERATIONS: Final = OPERATIONS | {"join", "group_poll", "commit", "committed"}
_POLLS: Final = frozenset({"group_poll", "join"})
_KINDS: Final = frozenset(
    {"send", "final_poll", "final_end", "group_poll", "assigned", "revoked", "lost"}
    | {"commit", "committed", "joined"}
)
_LIVED: Final = "lived"
_BEYOND: Final = "acknowledged records that the group has not committed past"
_NO_END: Final = "no final read has reached the end of a key"
_completed, _invoked, _offset, _value = map(attrgetter, ("completed", "invoked", "offset", "value"))
_EVIDENCE: Final = {
    "acknowledged": "no send was acknowledged",
    "polled": "the group received no record",
    "commits": "the group committed no offset",
}


def explode(table: pa.Table) -> pa.Table:
    """Return an entry for each micro-operation of the check, from whole processes.

    `extra`: for a rebalance event in a poll, the event number after which it happened. Each member
    with an assignment also has an entry `lived`: from its first event (`offset`) to its last one
    (`extra`).
    """
    ended: dict[int, int] = {}  # process -> the event that ended its last poll
    before: dict[int, int] = {}  # the invocation of a poll -> the end of the previous poll
    first: dict[int, int] = {}  # process -> its first event
    last: dict[int, int] = {}
    columns = (table.column(name).to_pylist() for name in ("process", "f", "invoked", "completed"))
    for process, f, invoked, completed in sorted(zip(*columns, strict=True), key=itemgetter(2)):
        first.setdefault(process, invoked)
        last[process] = max(invoked, completed)
        if f in _POLLS:
            before[invoked] = ended.get(process, invoked)
            if completed >= 0:
                ended[process] = completed
    rows = rows_of(table, _KINDS, _MODEL, _OPERATIONS)
    lives = [
        row._replace(kind=_LIVED, offset=first[row.process], extra=last[row.process])
        for row in rows
        if row.kind == "assigned"
    ]
    return entries_of([*(row._replace(extra=before.get(row.invoked, 0)) for row in rows), *lives])


class _Key:
    """The check of one key."""

    def __init__(self, entries: Sequence[Row], partial: Partial) -> None:
        self._entries: Final = entries
        self._partial: Final = partial
        self._key: Final = entries[0].key
        self._findings: Final = Findings(partial, self._key, ANOMALIES)
        self._acknowledged: Final = {
            one.offset: one for one in self._of("send") if one.outcome != "fail" and one.offset >= 0
        }
        self._delivered: Final = {
            one.offset: one for one in self._of("group_poll") if one.outcome == "ok"
        }
        self._commits: Final = [one for one in self._of("commit") if one.outcome != "fail"]
        self._kept: Final = [one for one in self._commits if one.outcome == "ok"]
        self._answers: Final = [one for one in self._of("committed") if one.outcome == "ok"]
        self._assigned: Final = [one for one in self._of("assigned") if one.value >= 0]
        self._classic_until: Final = min(
            (one.invoked for one in self._of("joined")), default=NEVER
        )  # the first join by the consumer protocol
        seen = [one for one in (*self._kept, *self._answers) if one.offset >= 0]
        self._committed: Final = Greatest(seen, event=_completed, rank=_offset)
        self._tried: Final = Greatest(self._commits, event=_invoked, rank=_offset)
        self._committed_by_commits: Final = Greatest(self._kept, event=_completed, rank=_offset)
        self._newest: Final = Greatest(self._assigned, event=_completed, rank=_value)
        # Backwards in time: the highest committed offset seen after an event.
        self._later: Final = Greatest(seen, event=lambda one: -one.invoked, rank=_offset)

    def _of(self, kind: str) -> Iterator[Row]:
        return (entry for entry in self._entries if entry.kind == kind)

    def check(self) -> None:
        count(
            self._partial,
            acknowledged=len(self._acknowledged),
            polled=sum(one.outcome == "ok" for one in self._of("group_poll")),
            commits=len(self._kept),
            assignments=sum(1 for _ in self._of("assigned")),
        )
        self._check_records()
        self._check_answers()
        self._check_commits()
        self._check_generations()
        self._check_members()

    # --- records ---

    def _check_records(self) -> None:
        ends = [one for one in self._of("final_end") if one.outcome == "ok"]
        if not ends:
            self._findings.gap(_NO_END, [self._key])
        passed = max((one.offset for one in (*self._kept, *self._answers)), default=0)
        beyond = []
        for offset, sent in sorted(self._acknowledged.items()):
            end = next((e for e in ends if e.offset <= offset and sent.completed < e.invoked), None)
            got = self._delivered.get(offset)
            if end is not None:
                self._findings.add("lost-record", f"offset {offset}", ("sent", sent), ("end", end))
            elif got is not None and got.value != sent.value:
                self._findings.add(
                    "other-record", f"offset {offset}", ("sent", sent), ("delivered", got)
                )
            elif got is None and offset < passed:
                by = max((*self._kept, *self._answers), key=lambda one: one.offset)
                self._findings.add(
                    "undelivered", f"offset {offset}", ("sent", sent), ("committed", by)
                )
            elif offset >= passed:
                beyond.append(f"{self._key} offset {offset}")
        self._findings.gap(_BEYOND, beyond)

    # --- committed offsets ---

    def _check_answers(self) -> None:
        for answer in self._answers:
            before = self._committed.before(answer.invoked)
            if before is not None and answer.offset < before.offset:
                note = f"{answer.offset} after {before.offset}"
                later = self._later.before(-answer.completed)
                is_lost = later is None or later.offset < before.offset
                name = "committed-lost" if is_lost else "committed-stale"
                self._findings.add(name, note, ("committed", before), ("answer", answer))
            if answer.offset > self._ceiling(answer.completed):
                note = f"{answer.offset} was never committed"
                self._findings.add("committed-ahead", note, ("answer", answer))

    def _check_commits(self) -> None:
        for commit in self._kept:
            before = self._committed_by_commits.before(commit.invoked)
            if before is not None and commit.offset < before.offset:
                note = f"{commit.offset} after {before.offset}"
                self._findings.add(
                    "committed-went-back", note, ("before", before), ("after", commit)
                )

    def _ceiling(self, event: int) -> int:
        """Return the highest offset that may be committed by `event`; 0: no commit."""
        tried = self._tried.before(event)
        return 0 if tried is None else tried.offset

    # --- generations ---

    def _check_generations(self) -> None:
        lives = {one.process: one for one in self._of(_LIVED)}
        owners: dict[int, Row] = {}
        for one in self._assigned:
            if one.completed > self._classic_until:
                continue
            owner = owners.setdefault(one.value, one)
            # A static member replaces one that has left (KIP-345); they never run together.
            if lives[owner.process].extra < lives[one.process].offset:
                owner = owners[one.value] = one
            if owner.process != one.process:
                note = f"generation {one.value}"
                self._findings.add("split-ownership", note, ("one", owner), ("another", one))
            newer = self._newest.before(one.extra)
            if newer is not None and newer.value > one.value:
                note = f"generation {one.value} after {newer.value}"
                self._findings.add("generation-went-back", note, ("before", newer), ("after", one))
        for commit in self._kept:
            newer = self._newest.before(commit.invoked)
            if commit.completed > self._classic_until or newer is None:
                continue
            if newer.value > commit.value >= 0:
                note = f"generation {commit.value} after {newer.value}"
                self._findings.add("zombie-commit", note, ("newer", newer), ("commit", commit))

    # --- positions ---

    def _check_members(self) -> None:
        by_process: dict[int, list[Row]] = {}
        for entry in self._entries:
            if entry.kind in {"assigned", "revoked", "lost", "group_poll"}:
                by_process.setdefault(entry.process, []).append(entry)
        for entries in by_process.values():
            self._check_positions(entries)

    def _check_positions(self, entries: Sequence[Row]) -> None:
        """Follow the position of one member."""
        assigned: Row | None = None  # set until the first delivery after the assignment
        last: Row | None = None
        for entry in entries:
            if entry.kind == "assigned":
                assigned, last = entry, None
            elif entry.kind != "group_poll":
                assigned, last = None, None
            elif entry.outcome != "ok":
                continue
            elif assigned is not None:
                self._check_resumed(assigned, entry)
                assigned, last = None, entry
            else:
                if last is not None and entry.offset != last.offset + 1:
                    note = f"{entry.offset} after {last.offset}"
                    self._findings.add("group-skip", note, ("last", last), ("next", entry))
                last = entry

    def _check_resumed(self, assigned: Row, first: Row) -> None:
        before = self._committed.before(assigned.extra)
        if before is not None and first.offset < before.offset:
            note = f"{first.offset}, and {before.offset} was committed"
            self._findings.add("resumed-behind", note, ("committed", before), ("first", first))
        ceiling = self._ceiling(first.completed)
        if first.offset > ceiling:
            note = f"{first.offset}, and {ceiling} at most was committed"
            self._findings.add("resumed-ahead", note, ("assigned", assigned), ("first", first))


CHECKER: Final = rows_checker(
    ANOMALIES,
    model=_MODEL,
    operations=_OPERATIONS,
    explode=explode,
    check_key=lambda rows, partial: _Key(rows, partial).check(),
    evidence=_EVIDENCE,
)
