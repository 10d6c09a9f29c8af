"""The controller while this node leads the quorum: when it takes over, and when it answers.

Requests wait until the node, having won the election, has replayed all earlier records. When the
node loses its leadership, every waiting request is refused. If it wrote records, they may still be
committed, so the caller is told that the outcome is unknown (KIP-631).
"""

import logging
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller.log_loss import unclean_elections
from quorumlog.metadata_quorum.controller.requests import Decision, UserChange
from quorumlog.metadata_quorum.controller_client import BrokerHeartbeat
from quorumlog.metadata_quorum.driver.enactment import Enactment
from quorumlog.metadata_quorum.driver.remembered_answers import Remembered, RememberedAnswers
from quorumlog.metadata_quorum.driver.seams import (
    Answer,
    Ask,
    BrokerProcessDied,
    ControllerDeposed,
    NotController,
    refuse,
)
from quorumlog.metadata_quorum.image.records import MetadataRecord, NoOp
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset

WAITING_MAX: Final = 10_000
# DEVIATION: Kafka fences a broker whose session is over, however late it looks.
# docs/decisions/0007-a-session-found-long-overdue-is-renewed.md
STALL_MS: Final = 1000  # a session that is overdue by more, after a pause of more: see `note_time`

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
        """Refuse every waiting request: nothing was done."""
        _refuse_all(ask.answer for ask in self.waiting)


class _Uncommitted(NamedTuple):
    """A response that leaves when all below `end_offset` is committed.

    `goes_on`: this was a slice, and the request is decided again instead.
    """

    end_offset: Offset
    ask: Ask
    response: object
    has_records: bool
    goes_on: bool = False


class ActiveController:
    """The controller of one leader epoch. It never reads the log.

    `waiting`: what is to be decided, the oldest first: it came before the take-over or while a
    decision was `under_way`, or its last slice is committed now.
    """

    def __init__(
        self, controller: Controller, *, leader_epoch: Epoch, waiting: Iterable[Ask] = ()
    ) -> None:
        self.controller: Final = controller
        self.leader_epoch: Final = leader_epoch
        self.waiting: Final[deque[Ask | BrokerProcessDied]] = deque(waiting)
        self.under_way: Enactment | None = None  # not in the log yet
        self.has_ordered_upgrade = False  # of kraft.version
        self._remembered: Final = RememberedAnswers()
        self._uncommitted: Final = deque[_Uncommitted]()
        self._slice_end_offset = Offset(-1)  # of the slice that it decided by itself
        self._noted_ms: int | None = None
        self._was_paused = True  # since it last looked for silent brokers, for all it knows

    def wait(self, fact: Ask | BrokerProcessDied) -> None:
        """Let it be decided behind the decision that is under way, if there is room."""
        if len(self.waiting) < WAITING_MAX:
            self.waiting.append(fact)
        elif isinstance(fact, Ask):
            refuse(fact.answer, NotController("too many requests wait for a large one"))

    def note_time(self, now_ms: int) -> None:
        """Note that this process runs: it has heard nothing between two notes far apart."""
        if self._noted_ms is not None and now_ms - self._noted_ms > STALL_MS:
            self._was_paused = True
        self._noted_ms = now_ms

    def next_deadline_ms(self, high_watermark: Offset) -> int | None:
        """Return when `decide_due` may have something to do; None: nothing, or not yet.

        Before the next slice the last one is committed. So a decision about many partitions never
        has more than one slice that followers have yet to fetch.
        """
        if high_watermark < self._slice_end_offset:
            return None
        if self.controller.has_elections:
            return 0
        due_ms = (self.controller.next_expiry_ms(), self.controller.next_balance_ms())
        return min((one for one in due_ms if one is not None), default=None)

    def note_slice(self, end_offset: Offset) -> None:
        """Let `decide_due` wait until the log is committed to its end."""
        self._slice_end_offset = end_offset

    def decide(self, ask: Ask, *, now_ms: int, end_offset: Offset) -> Decision[object]:
        """Decide a request. The log ends at `end_offset`."""
        if isinstance(ask.request, BrokerHeartbeat):
            now_ms = ask.received_ms  # it says that the broker lived then: KAFKA-15019
        return self.controller.decide(ask.request, now_ms=now_ms, base_offset=end_offset)

    def warn(self, decision: Decision[Any]) -> None:
        """Log what an operator must know of a decision."""
        if decision.remark is not None:
            _logger.warning(decision.remark)
        for remark in unclean_elections(self.controller.cluster, decision.records):
            _logger.warning(remark)

    def decide_expiry(self, now_ms: int) -> Decision[BrokerId | None]:
        """Fence the broker that was silent for longest, if that was too long."""
        was_paused, self._was_paused = self._was_paused, False
        due_ms = self.controller.next_expiry_ms()
        if was_paused and due_ms is not None and now_ms - due_ms > STALL_MS:
            # Not if the slices before took long: the broker was silent all the same.
            self.controller.renew_all(now_ms)
        return self.controller.decide_expiry(now_ms)

    def decide_due(self, now_ms: int) -> Decision[BrokerId | None] | Decision[None]:
        """Do what is due, a slice of it: elect, fence a silent broker, balance leaders."""
        if self.controller.has_elections:
            return self.controller.decide_elections()
        expiry_ms, balance_ms = self.controller.next_expiry_ms(), self.controller.next_balance_ms()
        if (expiry_ms is not None and expiry_ms <= now_ms) or balance_ms is None:
            return self.decide_expiry(now_ms)
        return self.controller.decide_balance(now_ms)

    def confirming(self, ask: Ask | None) -> tuple[MetadataRecord, ...]:
        """Return what is written for a decision without records: its commit proves that we lead.

        A user may build on a refusal. A leader that was replaced, and has not heard of it, would
        refuse by what it knew before.
        """
        # DEVIATION: Kafka answers at once; a replaced controller may say what is not true any more.
        # docs/decisions/0076-a-refusal-is-confirmed-by-a-majority.md
        asks_for_change = ask is not None and isinstance(ask.request, UserChange)
        return (NoOp(),) if asks_for_change else ()

    def answer_when_committed(self, end_offset: Offset, ask: Ask, decision: Decision[Any]) -> None:
        """Answer once all below `end_offset` is committed: what was decided on, too.

        Remembers the answer for a repeated request, if deciding it again would not be the same.
        """
        has_records = bool(decision.records)
        self._uncommitted.append(
            _Uncommitted(end_offset, ask, decision.response, has_records, decision.goes_on)
        )
        if ask.request_id is not None and has_records and not decision.goes_on:
            answer = Remembered(end_offset, decision.response, len(decision.records))
            self._remembered.add(ask.request_id, answer)

    def maybe_answer_again(self, ask: Ask) -> bool:
        """Give a repeated request the first one's answer, when that is committed."""
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
        """Refuse every waiting request: nothing was done, or with records ControllerDeposed."""
        for one in self._uncommitted:
            if one.has_records:
                refuse(one.ask.answer, ControllerDeposed("deposed before the change was committed"))
        _refuse_all(one.ask.answer for one in self._uncommitted)
        if self.under_way is not None and self.under_way.ask is not None:
            refuse(self.under_way.ask.answer, NotController("nothing of it is in the log"))
        _refuse_all(one.answer for one in self.waiting if isinstance(one, Ask))


def _refuse_all(answers: Iterable[Answer]) -> None:
    for answer in answers:
        refuse(answer, NotController("this node leads the quorum no more"))
