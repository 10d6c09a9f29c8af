"""The controller while this node leads the quorum: when it takes over, and when it answers.

Requests wait until the node, having won the election, has replayed all earlier records. When the
node loses its leadership, every waiting request is refused. If the request's records are in the
log, they may still be committed, so the caller gets an unknown outcome (KIP-631).
"""

import logging
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller.log_loss import unclean_elections
from quorumlog.metadata_quorum.controller.requests import Decision, UserChange
from quorumlog.metadata_quorum.controller_client import BrokerHeartbeat
from quorumlog.metadata_quorum.driver.dependencies import (
    Answer,
    Ask,
    BrokerProcessDied,
    ControllerDeposed,
    NotController,
    refuse,
)
from quorumlog.metadata_quorum.driver.pending_decision import PendingDecision
from quorumlog.metadata_quorum.driver.remembered_answers import Remembered, RememberedAnswers
from quorumlog.metadata_quorum.image.records import MetadataRecord, NoOp
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset

WAITING_MAX: Final = 10_000
# DEVIATION: Kafka fences a broker whose session is over, however late it checks.
# docs/decisions/0006-dead-and-silent-brokers.md
STALL_MS: Final = 1000  # the least pause, and overdue time, that renews sessions: see `note_time`

_logger: Final = logging.getLogger(__name__)


class Claim:
    """A leadership whose controller has yet to take over: requests wait, WAITING_MAX at most."""

    def __init__(self, leader_epoch: Epoch, epoch_start_offset: Offset) -> None:
        self.leader_epoch: Final = leader_epoch
        self.epoch_start_offset: Final = epoch_start_offset  # must be committed first
        self.waiting: Final = deque[Ask]()

    def wait(self, ask: Ask) -> None:
        """Keep a request until the controller has taken over, if there is room."""
        if len(self.waiting) < WAITING_MAX:
            self.waiting.append(ask)
        else:
            refuse(ask.answer, NotController("too many requests wait for the take-over"))

    def resign(self) -> None:
        """Refuse all waiting requests: they were not carried out."""
        _refuse_all(ask.answer for ask in self.waiting)


class _Uncommitted(NamedTuple):
    """A response that leaves when all records below `end_offset` are committed.

    `goes_on`: the records were a slice; instead of the response, the request is decided again.
    """

    end_offset: Offset
    ask: Ask
    response: object
    has_records: bool
    goes_on: bool = False


class ActiveController:
    """The controller of one leader epoch. It never reads the log.

    `waiting`: the requests and process deaths to decide, the oldest first. They came before the
    take-over or while a decision was `under_way`, or their last slice is committed now.
    """

    def __init__(
        self, controller: Controller, *, leader_epoch: Epoch, waiting: Iterable[Ask] = ()
    ) -> None:
        self.controller: Final = controller
        self.leader_epoch: Final = leader_epoch
        self.waiting: Final[deque[Ask | BrokerProcessDied]] = deque(waiting)
        self.under_way: PendingDecision | None = None  # not in the log yet
        self.has_ordered_upgrade = False  # of kraft.version
        self._remembered: Final = RememberedAnswers()
        self._uncommitted: Final = deque[_Uncommitted]()
        self._slice_end_offset = Offset(-1)  # of the last slice without a request
        self._noted_ms: int | None = None
        self._was_paused = True  # since the last check for silent brokers; assumed at first

    def wait(self, fact: Ask | BrokerProcessDied) -> None:
        """Queue a request or a death behind the decision that is under way, if there is room."""
        if len(self.waiting) < WAITING_MAX:
            self.waiting.append(fact)
        elif isinstance(fact, Ask):
            refuse(fact.answer, NotController("too many requests wait for a large one"))

    def note_time(self, now_ms: int) -> None:
        """Record that this process runs: between two calls far apart, it received no heartbeats."""
        if self._noted_ms is not None and now_ms - self._noted_ms > STALL_MS:
            self._was_paused = True
        self._noted_ms = now_ms

    def next_deadline_ms(self, high_watermark: Offset) -> int | None:
        """Return when to call `decide_due`; None: nothing is due, or a slice is uncommitted.

        The last slice is committed before the next one is decided. So a decision about many
        partitions never has more than one slice that followers have yet to fetch.
        """
        if high_watermark < self._slice_end_offset:
            return None
        if self.controller.has_elections:
            return 0
        due_ms = (self.controller.next_expiry_ms(), self.controller.next_balance_ms())
        return min((one for one in due_ms if one is not None), default=None)

    def note_slice(self, end_offset: Offset) -> None:
        """Make `decide_due` wait until all records below `end_offset` are committed."""
        self._slice_end_offset = end_offset

    def decide(self, ask: Ask, *, now_ms: int, end_offset: Offset) -> Decision[object]:
        """Decide a request. The log ends at `end_offset`."""
        if isinstance(ask.request, BrokerHeartbeat):
            now_ms = ask.received_ms  # the broker lived at that time: KAFKA-15019
        return self.controller.decide(ask.request, now_ms=now_ms, base_offset=end_offset)

    def warn(self, decision: Decision[Any]) -> None:
        """Log the warnings of a decision for operators."""
        if decision.remark is not None:
            _logger.warning(decision.remark)
        for remark in unclean_elections(self.controller.cluster, decision.records):
            _logger.warning(remark)

    def decide_expiry(self, now_ms: int) -> Decision[BrokerId | None]:
        """Fence the broker that was silent for longest, if its session is over."""
        was_paused, self._was_paused = self._was_paused, False
        due_ms = self.controller.next_expiry_ms()
        if was_paused and due_ms is not None and now_ms - due_ms > STALL_MS:
            # Only after a pause: if earlier slices took long, the broker was silent all the same.
            self.controller.renew_all(now_ms)
        return self.controller.decide_expiry(now_ms)

    def decide_due(self, now_ms: int) -> Decision[BrokerId | None] | Decision[None]:
        """Decide a slice of the due work: elect leaders, fence a silent broker, balance leaders."""
        if self.controller.has_elections:
            return self.controller.decide_elections()
        expiry_ms, balance_ms = self.controller.next_expiry_ms(), self.controller.next_balance_ms()
        if (expiry_ms is not None and expiry_ms <= now_ms) or balance_ms is None:
            return self.decide_expiry(now_ms)
        return self.controller.decide_balance(now_ms)

    def confirming(self, ask: Ask | None) -> tuple[MetadataRecord, ...]:
        """Return a NoOp for a user's decision without records: its commit proves that we lead.

        A user may rely on a refusal. A leader that was replaced, and has not yet noticed, would
        base its refusal on outdated metadata.
        """
        # DEVIATION: Kafka answers at once; the answer of a replaced controller may be outdated.
        # docs/decisions/0007-controller-retries.md
        asks_for_change = ask is not None and isinstance(ask.request, UserChange)
        return (NoOp(),) if asks_for_change else ()

    def answer_when_committed(self, end_offset: Offset, ask: Ask, decision: Decision[Any]) -> None:
        """Answer once all records below `end_offset` are committed, including those it is based on.

        Remembers the response for a repeated request, if a second decision would differ.
        """
        has_records = bool(decision.records)
        self._uncommitted.append(
            _Uncommitted(end_offset, ask, decision.response, has_records, decision.goes_on)
        )
        if ask.request_id is not None and has_records and not decision.goes_on:
            answer = Remembered(end_offset, decision.response, len(decision.records))
            self._remembered.add(ask.request_id, answer)

    def maybe_answer_again(self, ask: Ask) -> bool:
        """Answer a repeated request with the first response, once that is committed."""
        before = self._remembered.get(ask.request_id)
        if before is not None:
            self._uncommitted.append(
                _Uncommitted(before.end_offset, ask, before.response, has_records=True)
            )
        return before is not None

    def advance(self, high_watermark: Offset) -> None:
        """Answer the requests whose decisions are committed now."""
        waiting = self._uncommitted
        while waiting and waiting[0].end_offset <= high_watermark:
            done = waiting.popleft()
            if done.goes_on:
                self.waiting.append(done.ask)
            elif not done.ask.answer.done():
                done.ask.answer.set_result(done.response)

    def resign(self) -> None:
        """Refuse every waiting request: ControllerDeposed with records, else NotController."""
        for one in self._uncommitted:
            if one.has_records:
                refuse(one.ask.answer, ControllerDeposed("deposed before the change was committed"))
        _refuse_all(one.ask.answer for one in self._uncommitted)
        if self.under_way is not None and self.under_way.ask is not None:
            refuse(self.under_way.ask.answer, NotController("the log has no record of it"))
        _refuse_all(one.answer for one in self.waiting if isinstance(one, Ask))


def _refuse_all(answers: Iterable[Answer]) -> None:
    for answer in answers:
        refuse(answer, NotController("this node leads the quorum no more"))
