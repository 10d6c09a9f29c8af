"""The check of rights and passwords while administrators change them, beside the rules of a log.

Every client acts as one user, which its history names (`open`). A change of a right or a password
is complete when all brokers have it in force: so between two changes the right of a user, and the
password of its logins, are certain. Each operation that lies in such a time as a whole is judged:

  right denied     no send is acknowledged, and no read returns a record;
  right allowed    no send and no read is refused for lack of a right;
  password n       no login with another password succeeds, and none with password n is refused;
  password gone    a client with a former password is served for the lifetime of its session, not
                   longer (KIP-368).

An operation that overlaps a change proves nothing. After a change of unknown outcome the right, or
the password, is never certain again. A record of a refused send that is read is G1a of the rules of
a log. A user may have several keys here: `user` for its passwords, `user@topic` for its rights.
Sources: KIP-11, KIP-84, KIP-368, KIP-554.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from quorumlog.chaos.checkers.explode import OPERATIONS
from quorumlog.chaos.checkers.findings import (
    NEVER,
    Findings,
    Row,
    count,
    entries_of,
    rows_checker,
    rows_of,
)
from quorumlog.chaos.checkers.verdict import Anomaly, Partial

ANOMALIES: Final = (
    Anomaly(
        "denied-write-accepted",
        "A send was acknowledged although its user was denied to write, on every broker, before it"
        " began and until it ended.",
    ),
    Anomaly("denied-read-answered", "Records were returned to a user who was denied to read them."),
    Anomaly(
        "permitted-refused",
        "A send or a read was refused for lack of a right that every broker granted meanwhile.",
    ),
    Anomaly(
        "old-password-accepted",
        "A login succeeded with a password that no broker accepts any more.",
    ),
    Anomaly("password-refused", "A login failed with the password in force on every broker."),
    Anomaly(
        "session-outlived",
        "A client with a former password was served after the end of its session.",
    ),
)
_MODEL: Final = "authorized"
_OWN: Final = frozenset({"access", "login", "open", "password", "read"})
_KINDS: Final = frozenset({"send", "read", "allow_read", "allow_write", "login", "open"}) | {
    "password",
    "session_ms",
}
_SERVED: Final = "served"  # a send or a read of a client that logged in, by its user
_USES: Final = {"send": "allow_write", "read": "allow_read"}
_REFUSED: Final = 1
_NO_RIGHT: Final = frozenset({"TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"})
_REFUSALS: Final = {
    "send": _NO_RIGHT,
    "read": _NO_RIGHT,
    "login": frozenset({"SASL_AUTHENTICATION_FAILED"}),
}
_SLACK_NS: Final = 1_000_000_000
_MS: Final = 1_000_000
_EVIDENCE: Final = {
    "judged_denied": "no operation was certainly denied",
    "judged_allowed": "no operation was certainly allowed",
}


def explode(table: pa.Table) -> pa.Table:
    """Return the entries of each user's rights and passwords.

    `extra`: of a send, a read or a login, _REFUSED or 0; of a change of a password, the lifetime of
    sessions in ms, 0 without a limit; of `served`, the number of the client's password.
    """
    rows = rows_of(table, _KINDS, _MODEL, OPERATIONS | _OWN)
    errors = table.column("error").to_pylist()
    codes = dict(zip(table.column("index").to_pylist(), errors, strict=True))
    lifetimes = {row.op: row.value for row in rows if row.kind == "session_ms"}
    clients = {row.process: row for row in rows if row.kind == "open"}
    entries: list[Row] = []
    for known in rows:
        is_refused = codes[known.op].partition(":")[0] in _REFUSALS.get(known.kind, ())
        row = known._replace(extra=_REFUSED if is_refused and known.outcome != "ok" else 0)
        if row.kind == "password":
            entries.append(row._replace(extra=lifetimes.get(row.op, 0)))
        elif row.kind in _USES and (client := clients.get(row.process)) is not None:
            topic = row.key.rpartition("-")[0]
            if _is_served(row):
                served = row._replace(key=client.key, kind=_SERVED, extra=client.value)
                entries.append(served._replace(place=row.place + 1))  # one operation, counted once
            entries.append(row._replace(key=f"{client.key}@{topic}"))
        elif row.kind == "login" or row.kind.startswith("allow_"):
            entries.append(row)
    return entries_of(entries)


def _is_served(row: Row) -> bool:
    """Whether a broker must have served it: a read without records proves nothing."""
    return row.outcome == "ok" and (row.kind == "send" or row.value > 0)


class _Changes:
    """The changes of one right or password; none begins before the one before it has ended."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows: Final = [row for row in rows if row.outcome != "fail"]
        self._invoked: Final = [row.invoked for row in self.rows]
        unsure = (place for place, row in enumerate(self.rows) if row.outcome != "ok")
        self._sure: Final = next(unsure, len(self.rows))  # the changes before the first uncertain

    def during(self, row: Row) -> Row | None:
        """Return the change in force for all of an operation; None: no change certainly is."""
        begun = bisect_left(self._invoked, row.completed)
        if not 0 < begun <= self._sure:
            return None
        last = self.rows[begun - 1]
        return last if last.completed < row.invoked else None


class _Key:
    """The check of one user, or of its rights to a topic."""

    def __init__(self, rows: Sequence[Row], partial: Partial) -> None:
        self._rows: Final = rows
        self._partial: Final = partial
        self._findings: Final = Findings(partial, rows[0].key, ANOMALIES)

    def _changes(self, kind: str) -> _Changes:
        return _Changes(row for row in self._rows if row.kind == kind)

    def check(self) -> None:
        rights = {kind: self._changes(change) for kind, change in _USES.items()}
        passwords = self._changes("password")
        for row in self._rows:
            if row.completed == NEVER:
                continue
            if row.kind in _USES and (right := rights[row.kind].during(row)) is not None:
                self._check_use(row, right)
            elif row.kind == "login" and (password := passwords.during(row)) is not None:
                self._check_login(row, password)
            elif row.kind == _SERVED:
                self._check_session(row, passwords.rows)

    def _check_use(self, row: Row, right: Row) -> None:
        if right.value:
            count(self._partial, judged_allowed=1)
            if row.extra == _REFUSED:
                self._findings.add("permitted-refused", row.kind, ("granted", right), ("op", row))
            return
        count(self._partial, judged_denied=1)
        if _is_served(row):
            name = "denied-write-accepted" if row.kind == "send" else "denied-read-answered"
            self._findings.add(name, f"{row.kind} {row.value}", ("denied", right), ("op", row))

    def _check_login(self, row: Row, password: Row) -> None:
        count(self._partial, judged_logins=1)
        note = f"password {row.value} while password {password.value} was in force"
        if row.outcome == "ok" and row.value != password.value:
            self._findings.add("old-password-accepted", note, ("changed", password), ("login", row))
        elif row.extra == _REFUSED and row.value == password.value:
            self._findings.add("password-refused", note, ("changed", password), ("login", row))

    def _check_session(self, row: Row, passwords: Sequence[Row]) -> None:
        """Check the time since the password of a served client was replaced or deleted."""
        own = next((at for at, one in enumerate(passwords) if one.value == row.extra), None)
        if own is None or own + 1 >= len(passwords) or passwords[own].outcome != "ok":
            return
        replaced = passwords[own + 1]
        if replaced.outcome != "ok" or not replaced.extra:
            return
        late_ns = row.invoked_ns - replaced.completed_ns - replaced.extra * _MS
        count(self._partial, judged_sessions=1)
        if late_ns > _SLACK_NS:
            note = f"{late_ns / 1e9:.1f} s after the end of every session with password {row.extra}"
            self._findings.add("session-outlived", note, ("changed", replaced), ("served", row))


CHECKER: Final = rows_checker(
    ANOMALIES,
    model=_MODEL,
    operations=OPERATIONS | _OWN,
    explode=explode,
    check_key=lambda rows, partial: _Key(rows, partial).check(),
    evidence=_EVIDENCE,
)
