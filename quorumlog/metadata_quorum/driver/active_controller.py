"""The controller while this node leads the quorum: it applies, appends, and answers at commit.

Between winning the election and having replayed all that went before, requests wait. When the
node leads no more, whoever waits is told NOT_CONTROLLER: what was appended may still be committed,
so the outcome is unknown to them (KIP-631).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller.requests import ControllerRequest, Decision
from quorumlog.metadata_quorum.controller_client import BrokerHeartbeat
from quorumlog.metadata_quorum.driver.remembered_answers import Remembered, RememberedAnswers
from quorumlog.metadata_quorum.image.model import ClusterImage
from quorumlog.metadata_quorum.image.records import MetadataRecord
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset

WAITING_MAX: Final = 10_000
# DEVIATION: Kafka fences a broker whose session is over, however late it looks.
# docs/decisions/0007-a-session-found-long-overdue-is-renewed.md
STALL_MS: Final = 1000  # a session that is found overdue by more: we were not running

_logger: Final = logging.getLogger(__name__)


class NotController(Exception):
    """Another node is the active controller, or became it before the answer."""


class Ask(NamedTuple):
    """A request, where its answer goes, when it came, and what names it if it is repeated."""

    request: ControllerRequest
    answer: "asyncio.Future[object]"
    heard_ms: int
    request_id: str | None = None


class ActiveController:
    """One leader epoch of this node. It never reads the log; `append` puts records at its end."""

    def __init__(
        self,
        settings: ControllerSettings,
        *,
        leader_epoch: Epoch,
        epoch_start_offset: Offset,
        draw: Callable[[int], bytes],
    ) -> None:
        self.leader_epoch: Final = leader_epoch
        self.epoch_start_offset: Final = epoch_start_offset
        self._settings: Final = settings
        self._draw: Final = draw
        self._controller: Controller | None = None
        self._early: list[Ask] = []
        self._remembered: Final = RememberedAnswers()
        self._uncommitted: deque[tuple[Offset, asyncio.Future[object], object]] = deque()

    @property
    def is_claimed(self) -> bool:
        """Whether it has taken over: all before its epoch is committed and replayed."""
        return self._controller is not None

    def claim(self, image: ClusterImage, now_ms: int) -> list[Ask]:
        """Take over at `image`; return the requests that waited. `decide_activation` comes next."""
        self._controller = Controller(image, self._settings, draw=self._draw, now_ms=now_ms)
        early, self._early = self._early, []
        return early

    def decide_activation(self) -> Decision[None] | None:
        """Mend what the last controller has left half done."""
        return None if self._controller is None else self._controller.decide_activation()

    def wait_for_claim(self, ask: Ask) -> None:
        """Keep a request that came before the take-over, if there is room."""
        if len(self._early) < WAITING_MAX:
            self._early.append(ask)
        elif not ask.answer.done():  # the caller may have given up
            ask.answer.set_exception(NotController("too many requests wait for the take-over"))

    def hear(self, heartbeat: BrokerHeartbeat, now_ms: int) -> None:
        """Note a heartbeat when it arrives; its answer may take longer (KAFKA-15019)."""
        if self._controller is not None:
            self._controller.hear(heartbeat, now_ms)

    def decide(self, ask: Ask, *, now_ms: int, end_offset: Offset) -> Decision[Any] | None:
        """Decide a request, after the claim. The log ends at `end_offset`."""
        if self._controller is None:
            return None
        if isinstance(ask.request, BrokerHeartbeat):
            now_ms = ask.heard_ms  # it says that the broker lived then: KAFKA-15019
        decision = self._controller.decide(ask.request, now_ms=now_ms, base_offset=end_offset)
        if decision.remark is not None:
            _logger.warning(decision.remark)
        return decision

    def decide_expiry(self, now_ms: int) -> Decision[BrokerId | None] | None:
        """Fence the broker that was silent for longest, if it was for too long."""
        due_ms = self.next_expiry_ms()
        if self._controller is None or due_ms is None:
            return None
        if now_ms - due_ms > STALL_MS:  # a process that was paused has not listened either
            self._controller.excuse_all(now_ms)
        return self._controller.decide_expiry(now_ms)

    def decide_process_died(
        self, broker_id: BrokerId, broker_epoch: int, now_ms: int
    ) -> Decision[BrokerId | None] | None:
        """Fence a broker whose process is gone."""
        if self._controller is None:
            return None
        return self._controller.decide_process_died(
            broker_id, broker_epoch=broker_epoch, now_ms=now_ms
        )

    def next_expiry_ms(self) -> int | None:
        """Return when `decide_expiry` has something to do."""
        return None if self._controller is None else self._controller.next_expiry_ms()

    def apply(self, base_offset: Offset, records: Sequence[MetadataRecord]) -> None:
        """Take in records of ours that are about to be appended at `base_offset`.

        Raises InvariantViolation if one does not fit: this object is then of no more use.
        """
        if self._controller is not None:
            for offset, record in enumerate(records, start=base_offset):
                self._controller.apply(Offset(offset), record)

    def answer_when_committed(
        self, end_offset: Offset, answer: "asyncio.Future[object]", response: object
    ) -> None:
        """Answer once all below `end_offset` is committed: what was decided on, too."""
        self._uncommitted.append((end_offset, answer, response))

    def remember(self, ask: Ask, end_offset: Offset, decision: Decision[Any]) -> None:
        """Keep the answer for a repeated request, if deciding it again would not be the same."""
        if ask.request_id is not None and decision.records:
            answer = Remembered(end_offset, decision.response, len(decision.records))
            self._remembered.add(ask.request_id, answer)

    def maybe_answer_again(self, ask: Ask) -> bool:
        """Give a repeated request the first one's answer, when that is committed."""
        before = self._remembered.get(ask.request_id)
        if before is not None:
            self.answer_when_committed(before.end_offset, ask.answer, before.response)
        return before is not None

    def advance(self, high_watermark: Offset) -> None:
        """Answer whoever waited for what is committed now."""
        waiting = self._uncommitted
        while waiting and waiting[0][0] <= high_watermark:
            _, answer, response = waiting.popleft()
            if not answer.done():
                answer.set_result(response)

    def stand_down(self) -> None:
        """Fail everybody who waits: the outcome is unknown, or nothing was done."""
        answers = [answer for _, answer, _ in self._uncommitted]
        for answer in [*answers, *(ask.answer for ask in self._early)]:
            if not answer.done():
                answer.set_exception(NotController("this node leads the quorum no more"))
        self._uncommitted.clear()
        self._early.clear()
        self._controller = None
