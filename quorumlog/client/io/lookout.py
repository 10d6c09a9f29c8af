"""Logs missing brokers, topics, partitions and leaders, and requests without a response.

`core.absences` and `core.waits` decide when a line is logged, and its text. All requests except
Produce and Fetch run in `asking`, and loops that repeat requests in `waiting`. Produce and Fetch
are observed by the partitions that need them.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple

from quorumlog.client.core.absences import (
    CLUSTER,
    GAP_MS,
    Absences,
    Notice,
    Subject,
    is_missing,
    missing_partitions,
    missing_topics,
)
from quorumlog.client.core.metadata_cache import MetadataCache, Node
from quorumlog.client.core.waits import ANSWERED, Attempt, Wait, Waits
from quorumlog.wire.codec.identifiers import TopicPartition

_logger: Final = logging.getLogger(__name__)

FAILING_NAMED_MAX: Final = 3


class Failure(NamedTuple):
    """Why a broker does not respond, and since when; None: since it was first observed."""

    cause: str
    since_ms: float | None = None


WhyFailing = Callable[[Node], Failure | None]

_current: Final = ContextVar[Wait | None]("_current", default=None)
"""The wait of the running call; ignored after the wait has ended."""


class Lookout:
    """Compares the needed topics and partitions with the metadata, and observes open requests.

    The callables in the lists return the current needs and errors of the client's parts.
    """

    def __init__(
        self,
        client_id: str,
        metadata: MetadataCache,
        *,
        why_failing: WhyFailing,
        why_unheard: Callable[[Node], str | None],
    ) -> None:
        """`why_failing`: returns why a broker cannot be reached; None if no attempt has failed.

        `why_unheard`: returns why a broker's last, recent metadata request failed, if it did.
        """
        self.topics: Final[list[Callable[[], Iterable[str]]]] = []
        self.partitions: Final[list[Callable[[], Collection[TopicPartition]]]] = []
        self.refusals: Final[list[Callable[[], Mapping[TopicPartition, str]]]] = []
        self.silences: Final[list[Callable[[], Mapping[int, Failure]]]] = []
        """Leaders with overdue Produce or Fetch requests, by broker id."""
        self._client_id: Final = client_id
        self._metadata: Final = metadata
        self._why_failing: Final = why_failing
        self._why_unheard: Final = why_unheard
        self._why_silent: tuple[float, str | None] = (float("-inf"), None)  # when observed
        self._silence: Final = Absences()  # of all brokers
        self._absences: Final = Absences()
        self._waits: Final = Waits()
        self._loop: Final = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0.0  # of the timer
        self._soon: asyncio.Handle | None = None

    # --- requests ---

    @contextmanager
    def waiting(self, subject: str | None = None, *, over: str = ANSWERED) -> Iterator[Wait]:
        """Count all requests of the block, and their retries, as one wait.

        A nested block belongs to the outer block's wait.
        """
        outer = _current.get()
        if outer is not None and self._waits.has(outer):
            yield outer
            return
        wait, is_answered = self.begin(subject, over=over), False
        try:
            with self.within(wait):
                yield wait
            is_answered = True
        finally:
            self.end(wait, is_answered=is_answered)

    @contextmanager
    def within(self, wait: Wait) -> Iterator[None]:
        """Count the requests of the block as a part of `wait`, which outlasts the block."""
        token = _current.set(wait)
        try:
            yield
        finally:
            _current.reset(token)

    @contextmanager
    def asking(self, api: str, *, expected_ms: float = 0) -> Iterator[Attempt]:
        """Observe one request, from before its connection is made until its response.

        `expected_ms`: how long the request allows the broker to wait before it responds.
        """
        with self.waiting() as wait:
            attempt = Attempt(api=api, began_ms=self._now_ms(), expected_ms=expected_ms)
            wait.begin(attempt)
            try:
                yield attempt
            finally:
                wait.end(attempt)

    def begin(self, subject: str | None, *, over: str = ANSWERED) -> Wait:
        """Begin a wait that the caller ends."""
        wait = Wait(subject, self._now_ms(), over=over)
        self._waits.begin(wait)
        self._set_timer()
        return wait

    def end(self, wait: Wait, *, is_answered: bool) -> None:
        """End a wait; not `is_answered`: its caller gets an error or has given up."""
        self._log(self._waits.end(wait, is_answered=is_answered))
        self._set_timer()

    def _set_timer(self, now_ms: float | None = None) -> None:
        next_ms = self._waits.next_ms(self._now_ms() if now_ms is None else now_ms)
        next_s = next_ms / 1000
        if self._timer is not None:
            if self._timer.when() <= next_s < float("inf"):
                return  # earlier than needed does no harm
            self._timer.cancel()
            self._timer = None
        if next_s < float("inf"):
            self._due_ms = next_ms
            self._timer = self._loop.call_at(next_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        # In seconds and back, the due time may be rounded down: the timer would be set again, for
        # the same moment.
        self.observe_again(self._due_ms)

    def _now_ms(self) -> float:
        return self._loop.time() * 1000

    def close(self) -> None:
        """Stop logging about requests."""
        for handle in (self._timer, self._soon):
            if handle is not None:
                handle.cancel()

    # --- absences ---

    def observe(self, now_ms: float, why_silent: str | None, since_ms: float) -> None:
        """Handle the end of a metadata update; log the absences that are due.

        `why_silent`: why no broker responded; None for a response. `since_ms`: when the update
        began.
        """
        self._why_silent = now_ms, why_silent
        causes: dict[Subject, str] = {}
        if why_silent is not None:
            causes[CLUSTER] = f"no broker answers: {why_silent}"
        self._log(self._silence.step(now_ms, causes, {CLUSTER: since_ms}))
        self.observe_again()

    def observe_again(self, least_ms: float = 0.0) -> None:
        """Log the absences that are due, by the present metadata. It is at least `least_ms`."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        now_ms = max(self._now_ms(), least_ms)
        since_ms, why_silent = self._why_silent
        if why_silent is None or now_ms - since_ms > GAP_MS:  # else the metadata is stale
            notices = self._absences.step(now_ms, *self._absent())
            waits = self._waits.step(now_ms)
            self._log([*notices, *waits], more=self._unheard if waits else None)
        self._set_timer(now_ms)

    def observe_soon(self) -> None:
        """Observe again in the next turn of the event loop: an absence may have ended."""
        if self._soon is None:
            self._soon = self._loop.call_soon(self.observe_again)

    def _absent(self) -> tuple[dict[Subject, str], dict[Subject, float]]:
        """Return the cause of each absence, and its begin if the failure has one."""
        metadata, since_ms = self._metadata, dict[Subject, float]()
        absent = missing_topics(metadata, self.needed_topics())
        failing = self._failing()
        for needed in self.partitions:
            partitions = needed()
            absent |= missing_partitions(metadata, partitions)
            for name in partitions:
                leader = metadata.leader(name)
                why = failing.get(leader.broker_id) if leader is not None else None
                if leader is not None and why is not None and name not in absent:
                    absent[name] = f"its leader, broker {leader.broker_id}, {why.cause}"
                    if why.since_ms is not None:
                        since_ms[name] = why.since_ms
        for refused in self.refusals:
            for name, why_refused in refused().items():
                absent.setdefault(name, why_refused)
        return absent, since_ms

    def _failing(self) -> dict[int, Failure]:
        failing = {number: one for silent in self.silences for number, one in silent().items()}
        for broker_id, node in self._metadata.nodes.items():
            failure = self._why_failing(node)
            if failure is not None:
                failing[broker_id] = Failure(
                    f"cannot be reached: {failure.cause}", failure.since_ms
                )
        return failing

    def _unheard(self, text: str) -> str:
        """Return a suffix for `text`: the unreachable brokers whose cause is not in it."""
        found = []
        for broker_id, node in sorted(self._metadata.nodes.items()):
            failure = self._why_failing(node)
            cause = self._why_unheard(node) if failure is None else failure.cause
            if cause is not None and cause not in text:
                found.append(f"broker {broker_id} cannot be reached: {cause}")
        more = len(found) - FAILING_NAMED_MAX
        rest = [f"{more} brokers more"] if more > 0 else []
        return "".join(f"; {one}" for one in found[:FAILING_NAMED_MAX] + rest)

    def needed_topics(self) -> set[str]:
        """Return the topics that are needed now, apart from the needed partitions."""
        return {name for needed in self.topics for name in needed()}

    def needed_names(self) -> set[str]:
        """Return the topics that are needed now, also those of the needed partitions."""
        partitions = (name for needed in self.partitions for name in needed())
        return self.needed_topics() | {name.topic for name in partitions}

    def missing_since(self, now_ms: float, duration_ms: float) -> list[TopicPartition]:
        """List needed partitions that are missing for `duration_ms`; restart their durations."""
        missing = [
            name
            for name in self._absences.lasting(now_ms, duration_ms)
            if isinstance(name, TopicPartition) and is_missing(self._metadata, name)
        ]
        for name in missing:
            self._absences.restart(now_ms, name)
        return missing

    def _log(self, notices: Iterable[Notice], more: Callable[[str], str] | None = None) -> None:
        """Log all absences and waits in one WARNING, and all that have ended in one INFO."""
        absent = "; ".join(one.text for one in notices if not one.is_over)
        over = "; ".join(one.text for one in notices if one.is_over)
        if over:
            _logger.info("%s: %s", self._client_id, over)
        if absent:
            end = "" if more is None else more(absent)
            _logger.warning("%s: %s%s", self._client_id, absent, end)
