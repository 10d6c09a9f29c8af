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
from quorumlog.metadata_quorum.controller.requests import Decision
from quorumlog.metadata_quorum.controller_client import BrokerHeartbeat
from quorumlog.metadata_quorum.driver.remembered_answers import Remembered, RememberedAnswers
from quorumlog.metadata_quorum.driver.seams import (
    Answer,
    Ask,
    ControllerDeposed,
    NotController,
    refuse,
)
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset

WAITING_MAX: Final = 10_000
# DEVIATION: Kafka fences a broker whose session is over, however late it looks.
# docs/decisions/0007-a-session-found-long-overdue-is-renewed.md
STALL_MS: Final = 1000  # a session that is found overdue by more: we were not running

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
    """A response that leaves when all below `end_offset` is committed."""

    end_offset: Offset
    answer: Answer
    response: object
    has_records: bool


class ActiveController:
    """The controller of one leader epoch. It never reads the log.

    `waiting`: the requests that came before it took over, the oldest first.
    """

    def __init__(
        self, controller: Controller, *, leader_epoch: Epoch, waiting: Iterable[Ask] = ()
    ) -> None:
        self.controller: Final = controller
        self.leader_epoch: Final = leader_epoch
        self.waiting: Final = deque(waiting)
        self._remembered: Final = RememberedAnswers()
        self._uncommitted: Final = deque[_Uncommitted]()

    def decide(self, ask: Ask, *, now_ms: int, end_offset: Offset) -> Decision[object]:
        """Decide a request. The log ends at `end_offset`."""
        if isinstance(ask.request, BrokerHeartbeat):
            now_ms = ask.received_ms  # it says that the broker lived then: KAFKA-15019
        decision = self.controller.decide(ask.request, now_ms=now_ms, base_offset=end_offset)
        if decision.remark is not None:
            _logger.warning(decision.remark)
        return decision

    def decide_expiry(self, now_ms: int) -> Decision[BrokerId | None]:
        """Fence the broker that was silent for longest, if that was too long."""
        due_ms = self.controller.next_expiry_ms()
        if due_ms is not None and now_ms - due_ms > STALL_MS:
            self.controller.renew_all(now_ms)  # a process that was paused has not listened either
        return self.controller.decide_expiry(now_ms)

    def answer_when_committed(self, end_offset: Offset, ask: Ask, decision: Decision[Any]) -> None:
        """Answer once all below `end_offset` is committed: what was decided on, too.

        Remembers the answer for a repeated request, if deciding it again would not be the same.
        """
        has_records = bool(decision.records)
        self._uncommitted.append(
            _Uncommitted(end_offset, ask.answer, decision.response, has_records)
        )
        if ask.request_id is not None and has_records:
            answer = Remembered(end_offset, decision.response, len(decision.records))
            self._remembered.add(ask.request_id, answer)

    def maybe_answer_again(self, ask: Ask) -> bool:
        """Give a repeated request the first one's answer, when that is committed."""
        before = self._remembered.get(ask.request_id)
        if before is not None:
            self._uncommitted.append(
                _Uncommitted(before.end_offset, ask.answer, before.response, has_records=True)
            )
        return before is not None

    def advance(self, high_watermark: Offset) -> None:
        """Answer the requests whose decisions are committed now."""
        waiting = self._uncommitted
        while waiting and waiting[0].end_offset <= high_watermark:
            done = waiting.popleft()
            if not done.answer.done():
                done.answer.set_result(done.response)

    def resign(self) -> None:
        """Refuse every waiting request: nothing was done, or with records ControllerDeposed."""
        for one in self._uncommitted:
            if one.has_records:
                refuse(one.answer, ControllerDeposed("deposed before the change was committed"))
        _refuse_all(one.answer for one in self._uncommitted)
        _refuse_all(ask.answer for ask in self.waiting)


def _refuse_all(answers: Iterable[Answer]) -> None:
    for answer in answers:
        refuse(answer, NotController("this node leads the quorum no more"))
