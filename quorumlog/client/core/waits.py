"""Decides when a client logs that a request has not succeeded yet.

One rule for every kind of request. A wait begins with the first attempt, lasts through failed
attempts, and ends with success or when the caller gives up. A wait of `absences.REPORT_AFTER_MS`
is reported once with its cause, again every REPORT_AGAIN_MS, and once when it succeeds. The cause
is the overdue attempt, else the error of the last attempt.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from quorumlog.client.core import absences
from quorumlog.client.core.absences import REPORT_AGAIN_MS, Notice

OVERDUE_AFTER_MS: Final = 1_000
"""An attempt is overdue when its response is this late, counted from its `expected_ms`."""
RECHECK_MS: Final = 500  # for a long wait that has no cause yet
ANSWERED: Final = "answered"

NEEDS_CONTROLLER: Final = frozenset(
    {
        "AddRaftVoter", "AlterClientQuotas", "AlterConfigs", "AlterPartitionReassignments",
        "AlterUserScramCredentials", "CreateAcls", "CreatePartitions", "CreateTopics", "DeleteAcls",
        "DeleteTopics", "DescribeQuorum", "ElectLeaders", "IncrementalAlterConfigs",
        "InitProducerId", "ListPartitionReassignments", "RemoveRaftVoter", "UnregisterBroker",
        "UpdateFeatures",
    }
)  # fmt: skip
"""Requests for which a broker needs the active controller (KIP-590; producer ids: KIP-730)."""


@dataclass(slots=True, kw_only=True, eq=False)
class Attempt:
    """One request on its way to one broker.

    expected_ms: how long the request allows the broker to wait before it responds.
    broker: "broker 3 at host:port"; None until a broker is chosen.
    is_sent: False while there is no connection.
    """

    api: str
    began_ms: float
    expected_ms: float = 0.0
    broker: str | None = None
    is_sent: bool = False

    @property
    def overdue_ms(self) -> float:
        """The time from which the attempt counts as overdue."""
        return self.began_ms + self.expected_ms + OVERDUE_AFTER_MS

    def lack(self) -> str:
        """Describe the missing broker, connection or response."""
        if self.broker is None:
            return f"no broker accepts a connection for {self.api}"
        if not self.is_sent:
            return f"{self.broker} does not answer a connection attempt"
        needs = ", for which it needs the active controller" * (self.api in NEEDS_CONTROLLER)
        return f"{self.broker} does not answer {self.api}{needs}"


class Wait:
    """A request, or a call that repeats requests, from its first attempt to its end."""

    def __init__(self, subject: str | None, now_ms: float, *, over: str = ANSWERED) -> None:
        """Begin a wait for `subject`; None: for the API of the latest attempt.

        `over`: the word that the last report uses for success.
        """
        self.since_ms: Final = now_ms
        self.over: Final = over
        self.reported_ms: float | None = None
        self._subject: Final = subject
        self._api = "a request"
        self._attempts: Final[list[Attempt]] = []
        self._error: str | None = None

    @property
    def subject(self) -> str:
        """The name of the awaited thing."""
        return self._api if self._subject is None else self._subject

    def begin(self, attempt: Attempt) -> None:
        """Add an attempt that begins."""
        self._attempts.append(attempt)
        self._api = attempt.api

    def end(self, attempt: Attempt) -> None:
        """Remove an attempt that has ended, with or without a response."""
        self._attempts.remove(attempt)

    def fail(self, error: object, *, about: str = "") -> None:
        """Record the last attempt's error; `about` names the attempt if it is not the subject."""
        text = str(error)
        self._error = text if not about or about == self._subject else f"{about}: {text}"

    def report(self, now_ms: float) -> str | None:
        """Return the subject and the cause of the wait; None if it has no cause yet."""
        overdue = [one for one in self._attempts if one.overdue_ms <= now_ms]
        cause = self._error
        if overdue:
            cause = min(overdue, key=lambda one: one.began_ms).lack()
            if self._subject is None:
                return cause  # it names the API
        return None if cause is None else f"{self.subject}: {cause}"


class Waits:
    """The open waits of one client. Bounded by its calls in progress."""

    def __init__(self) -> None:
        self._open: Final[dict[Wait, None]] = {}

    def begin(self, wait: Wait) -> None:
        """Add a wait that begins."""
        self._open[wait] = None

    def end(self, wait: Wait, *, is_answered: bool) -> list[Notice]:
        """Remove a wait; return the lines to log on success. On failure the caller has an error."""
        self._open.pop(wait, None)
        if not is_answered or wait.reported_ms is None or self._reported(wait.subject) is not None:
            return []
        return [Notice(f"{wait.subject}: {wait.over}", is_over=True)]

    def has(self, wait: Wait) -> bool:
        """Return whether the wait is open."""
        return wait in self._open

    def step(self, now_ms: float) -> list[Notice]:
        """Return the lines to log now; of several waits with the same subject, only the first."""
        notices = []
        for wait in self._open:
            report = wait.report(now_ms)
            if now_ms < self._due_ms(wait) or report is None:
                continue
            reported_ms = self._reported(wait.subject)
            if reported_ms is None or now_ms - reported_ms >= REPORT_AGAIN_MS:
                seconds = (now_ms - wait.since_ms) / 1000
                notices.append(Notice(f"{report} (for {seconds:.0f} s)", is_over=False))
                reported_ms = now_ms
            wait.reported_ms = reported_ms
        return notices

    def next_ms(self, now_ms: float) -> float:
        """Return when to step again; `inf` if there is no open wait."""
        due = min(map(self._due_ms, self._open), default=float("inf"))
        return due if due > now_ms else now_ms + RECHECK_MS

    def _due_ms(self, wait: Wait) -> float:
        if wait.reported_ms is None:
            return wait.since_ms + absences.REPORT_AFTER_MS
        return wait.reported_ms + REPORT_AGAIN_MS

    def _reported(self, subject: str) -> float | None:
        times: Iterable[float] = (
            wait.reported_ms
            for wait in self._open
            if wait.subject == subject and wait.reported_ms is not None
        )
        return max(times, default=None)
