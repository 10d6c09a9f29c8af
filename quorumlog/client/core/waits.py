"""Decides when a client logs that a request has no good answer yet.

One rule for every kind of request. A wait begins with the first attempt, outlasts the attempts that
fail and are repeated, and ends with the answer or with the caller that gives up. A wait of
`absences.REPORT_AFTER_MS` is reported once with its cause, again every REPORT_AGAIN_MS, and once
when it is answered. The cause is the attempt that is overdue, else the error of the last one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from quorumlog.client.core import absences
from quorumlog.client.core.absences import REPORT_AGAIN_MS, Notice

OVERDUE_AFTER_MS: Final = 1_000
"""An attempt without an answer for so long, beyond its own time, is the cause of a wait."""
RECHECK_MS: Final = 500  # of a wait that lasts and has no cause yet
ANSWERED: Final = "answered"

NEEDS_CONTROLLER: Final = frozenset(
    {
        "AddRaftVoter",
        "AlterClientQuotas",
        "AlterConfigs",
        "AlterPartitionReassignments",
        "AlterUserScramCredentials",
        "CreateAcls",
        "CreatePartitions",
        "CreateTopics",
        "DeleteAcls",
        "DeleteTopics",
        "DescribeQuorum",
        "ElectLeaders",
        "IncrementalAlterConfigs",
        "InitProducerId",
        "ListPartitionReassignments",
        "RemoveRaftVoter",
        "UnregisterBroker",
        "UpdateFeatures",
    }
)
"""What a broker answers only with the help of the active controller (KIP-590; ids: KIP-730)."""


@dataclass(slots=True, kw_only=True, eq=False)
class Attempt:
    """One request on its way to one broker.

    expected_ms: how long the request lets the broker wait before it answers.
    broker: "broker 3 at host:port"; None while no broker is chosen.
    is_sent: False while there is no connection.
    """

    api: str
    began_ms: float
    expected_ms: float = 0.0
    broker: str | None = None
    is_sent: bool = False

    @property
    def overdue_ms(self) -> float:
        """When it counts as overdue."""
        return self.began_ms + self.expected_ms + OVERDUE_AFTER_MS

    def lack(self) -> str:
        """Describe what is missing."""
        if self.broker is None:
            return f"no broker accepts a connection for {self.api}"
        if not self.is_sent:
            return f"{self.broker} does not answer a connection attempt"
        needs = ", for which it needs the active controller" * (self.api in NEEDS_CONTROLLER)
        return f"{self.broker} does not answer {self.api}{needs}"


class Wait:
    """A request, or a call that repeats requests, from its first attempt to its end."""

    def __init__(self, subject: str | None, now_ms: float, *, over: str = ANSWERED) -> None:
        """`subject`: what is waited for; None: the API of the latest attempt names it.

        `over`: what the report of the end says of it.
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
        """What is waited for."""
        return self._api if self._subject is None else self._subject

    def begin(self, attempt: Attempt) -> None:
        """Note an attempt on its way."""
        self._attempts.append(attempt)
        self._api = attempt.api

    def end(self, attempt: Attempt) -> None:
        """Note that the attempt is over, answered or not."""
        self._attempts.remove(attempt)

    def fail(self, error: object, *, about: str = "") -> None:
        """Note why the last attempt failed, `about` what it was if the subject is another."""
        text = str(error)
        self._error = text if not about or about == self._subject else f"{about}: {text}"

    def report(self, now_ms: float) -> str | None:
        """Return what is waited for, and why; None if no cause is known yet."""
        overdue = [one for one in self._attempts if one.overdue_ms <= now_ms]
        cause = self._error
        if overdue:
            cause = min(overdue, key=lambda one: one.began_ms).lack()
            if self._subject is None:
                return cause  # it names the API
        return None if cause is None else f"{self.subject}: {cause}"


class Waits:
    """The open waits of one client. Bounded by the calls that are under way."""

    def __init__(self) -> None:
        self._open: Final[dict[Wait, None]] = {}

    def begin(self, wait: Wait) -> None:
        """Add a wait that begins."""
        self._open[wait] = None

    def end(self, wait: Wait, *, is_answered: bool) -> list[Notice]:
        """Remove a wait; return what to log. Without an answer the caller gets an error instead."""
        self._open.pop(wait, None)
        if not is_answered or wait.reported_ms is None or self._reported(wait.subject) is not None:
            return []
        return [Notice(f"{wait.subject}: {wait.over}", is_over=True)]

    def has(self, wait: Wait) -> bool:
        """Tell whether the wait is an open one of this client."""
        return wait in self._open

    def step(self, now_ms: float) -> list[Notice]:
        """Return what to log now: of waits with one subject, the first."""
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
        """Return when to step again; inf: not before another wait begins."""
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
