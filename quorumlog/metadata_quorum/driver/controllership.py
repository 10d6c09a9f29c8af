"""The node as the controller: it takes over, decides, and appends its decisions.

The log gets only records that fit the state before them: otherwise every replay, on every node,
would fail. A decision that does not fit, or that raises, is our bug, and makes the live state
useless: the caller gets UNKNOWN_SERVER_ERROR, and the node resigns.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from quorumlog.lasting_condition import LastingCondition
from quorumlog.metadata_quorum.controller.decision import Decision
from quorumlog.metadata_quorum.controller.refusals import failure_response
from quorumlog.metadata_quorum.controller_client import BrokerHeartbeat
from quorumlog.metadata_quorum.controller_requests import ControllerRequest
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import NOBODY
from quorumlog.metadata_quorum.driver.active_controller import (
    ActiveController,
    Claim,
    PendingDecision,
)
from quorumlog.metadata_quorum.driver.committed_image import CommittedImage
from quorumlog.metadata_quorum.driver.dependencies import (
    Ask,
    BrokerProcessDied,
    DriverDependencies,
    NotController,
    refuse,
)
from quorumlog.metadata_quorum.log.metadata_log import MetadataLog
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.storage.errors import DiskExhausted
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset

_logger: Final = logging.getLogger(__name__)


class Controllership:
    """Holds None, a `Claim` or an `ActiveController`, according to the quorum's effects.

    `feed_first` hands the core an event that comes before any other. `kraft_version`: the version
    in force in the quorum's log.
    """

    def __init__(
        self,
        *,
        node_id: BrokerId,
        log: MetadataLog,
        committed: CommittedImage,
        settings: ControllerSettings,
        dependencies: DriverDependencies,
        feed_first: Callable[[events.Event], None],
        kraft_version: Callable[[], int],
    ) -> None:
        self.leader_id = NOBODY
        self.high_watermark = Offset(-1)
        self._node_id: Final = node_id
        self._log: Final = log
        self._committed: Final = committed
        self._settings: Final = settings
        self._dependencies: Final = dependencies
        self._feed_first: Final = feed_first
        self._kraft_version: Final = kraft_version
        self._stage: Claim | ActiveController | None = None
        self._has_no_room: Final = LastingCondition(_logger)
        self._may_work = True  # one slice of a decision or a replay for each run of the driver

    @property
    def is_leading(self) -> bool:
        """Whether this node accepts requests to the controller."""
        return self._stage is not None

    @property
    def is_active(self) -> bool:
        """Whether this node's controller has taken over."""
        return isinstance(self._stage, ActiveController)

    def next_deadline_ms(self) -> int | None:
        """Return when the next action is due, such as the end of a session; None: never."""
        if self._committed.is_behind:
            return self._dependencies.clock.now_ms()
        match self._stage:
            case ActiveController() as active if active.under_way or active.waiting:
                return self._dependencies.clock.now_ms()
            case ActiveController() as active:
                return active.next_deadline_ms(self._committed.image.end_offset)
            case _:
                return None

    def begin_run(self) -> None:
        """Allow another slice of work: other tasks on this thread had their turn."""
        self._may_work = True
        if isinstance(self._stage, ActiveController):
            self._stage.note_time(self._dependencies.clock.now_ms())

    # --- effects of the quorum ---

    def change_leader(self, effect: effects.LeaderEffect) -> None:
        """Give up the former leadership; claim the new epoch if this node leads it."""
        self.stop()
        self.leader_id = NOBODY
        match effect:
            case effects.BecomeLeader(leader_epoch=epoch, epoch_start_offset=start_offset):
                self.leader_id = self._node_id
                self._stage = Claim(epoch, start_offset)
            case effects.FollowLeader(leader_id=leader_id):
                self.leader_id = leader_id
            case effects.ResignLeadership():
                pass
        self._committed.lead_by(self.leader_id, Epoch(effect.leader_epoch))
        self._dependencies.leader_listener.leader_changed(self.leader_id)

    def advance(self, high_watermark: Offset) -> None:
        """Set the high watermark: its records are published now, or slice by slice."""
        self.high_watermark = high_watermark
        self._committed.advance(high_watermark)
        self._may_work = self._may_work and not self._committed.is_behind
        self._maybe_answer()

    def _maybe_answer(self) -> None:
        """Answer the requests that waited for the records published now."""
        if isinstance(self._stage, ActiveController):
            self._stage.advance(self._committed.image.end_offset)

    def stop(self) -> None:
        """Refuse every waiting request."""
        if self._stage is not None:
            self._stage.resign()
            self._stage = None

    # --- decisions ---

    def maybe_act(self) -> bool:
        """Perform one due action: take over, decide a waiting request, or do a slice of due work.

        Replays a slice of the committed records first: then all requests have the same view. A
        decision that is under way comes before any other.
        """
        if self._committed.is_behind and self._may_work:
            self._may_work = False
            self._committed.replay_slice()
            self._maybe_answer()
            return True
        match self._stage:
            case Claim() as claim if self._committed.image.end_offset > claim.epoch_start_offset:
                self._take_over(claim)
                return True
            case ActiveController() as active if self._may_work:
                return self._maybe_work(active)
            case _:
                return False

    def _maybe_work(self, active: ActiveController) -> bool:
        """Continue the decision under way, decide a waiting request, or a slice of the due work.

        A waiting request may be the next slice of a request, as large as any.
        """
        if active.under_way is not None:
            self._may_work = False
            self._resume(active, active.under_way)
            return True
        if active.waiting:
            self._may_work = False
            fact = active.waiting.popleft()
            if isinstance(fact, Ask):
                self.decide(fact)
            else:
                self.decide_process_died(fact)
            return True
        due_ms = active.next_deadline_ms(self._committed.image.end_offset)
        now_ms = self._dependencies.clock.now_ms()
        if due_ms is None or due_ms > now_ms:
            return False
        self._may_work = False
        # A heartbeat that waits in the inbox has extended the session on arrival.
        self._enact(active, partial(active.decide_due, now_ms))
        return True

    def touch(self, request: ControllerRequest) -> None:
        """Extend a broker's session when its heartbeat arrives, before the answer (KAFKA-15019)."""
        if isinstance(self._stage, ActiveController) and isinstance(request, BrokerHeartbeat):
            self._stage.controller.touch(request, self._dependencies.clock.now_ms())

    def decide(self, ask: Ask) -> None:
        """Decide a request; the answer comes when all records that it is based on are committed.

        So a decision without records waits, too: it may have read uncommitted state. If a user may
        rely on the decision, it writes a record that changes nothing, and waits for that record's
        commit.
        """
        match self._stage:
            case None:
                refuse(ask.answer, NotController("this node does not lead the quorum"))
            case Claim() as claim:
                claim.wait(ask)
            case ActiveController(under_way=PendingDecision()) as active:
                active.wait(ask)
            case ActiveController() as active if active.maybe_answer_again(ask):
                self._maybe_answer()
            case ActiveController() as active:
                now_ms, end_offset = self._dependencies.clock.now_ms(), self._log.end_offset
                decide = partial(active.decide, ask, now_ms=now_ms, end_offset=end_offset)
                self._enact(active, decide, ask)

    def decide_process_died(self, died: BrokerProcessDied) -> None:
        """Fence a broker whose process is gone."""
        match self._stage:
            case ActiveController(under_way=PendingDecision()) as active:
                active.wait(died)
            case ActiveController(controller=controller) as active:
                decide = partial(
                    controller.decide_process_died,
                    died.broker_id,
                    broker_epoch=died.broker_epoch,
                    now_ms=self._dependencies.clock.now_ms(),
                )
                self._enact(active, decide)
            case _:
                pass

    def _take_over(self, claim: Claim) -> None:
        controller = self._dependencies.controller(
            self._committed.image,
            self._settings,
            random_bytes=self._dependencies.random_bytes,
            now_ms=self._dependencies.clock.now_ms(),
            kraft_version=self._kraft_version,
        )
        active = ActiveController(
            controller, leader_epoch=claim.leader_epoch, waiting=claim.waiting
        )
        self._stage = active
        if self._enact(active, controller.decide_activation):
            self._dependencies.leader_listener.controller_claimed()

    def _enact(
        self, active: ActiveController, decide: Callable[[], Decision[Any]], ask: Ask | None = None
    ) -> bool:
        """Decide, apply, append, in this order; False: a step failed, and the node resigns.

        A decision with many records is applied slice by slice: `maybe_act` continues it.
        """
        try:
            decision = decide()
            active.warn(decision)
        except Exception as error:  # noqa: BLE001 - any error is our bug: Kafka resigns as well
            self._give_up(error, ask)
            return False
        records = decision.records or active.confirming(ask)
        enactment = PendingDecision(
            active.controller, decision, records, base_offset=self._log.end_offset, ask=ask
        )
        return self._resume(active, enactment)

    def _resume(self, active: ActiveController, enactment: PendingDecision) -> bool:
        """Apply a slice; append after the last one. False: a step failed, and the node resigns."""
        active.under_way = None
        try:
            enactment.take_slice()
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error, enactment.ask)
            return False
        if enactment.is_whole:
            return self._append(active, enactment)
        active.under_way = enactment
        self._may_work = False
        return True

    def _append(self, active: ActiveController, enactment: PendingDecision) -> bool:
        ask = enactment.ask
        if enactment.values:
            wall_ms = self._dependencies.clock.wall_ms()
            try:
                self._log.append(enactment.values, active.leader_epoch, wall_ms=wall_ms)
            except DiskExhausted as refusal:
                self._give_way(refusal, ask)
                return False
            self._has_no_room.end(self._dependencies.clock.now_ms(), "decisions have room again")
            end_offset = self._log.end_offset
            self._feed_first(
                events.RecordsAppended(leader_epoch=active.leader_epoch, log_end_offset=end_offset)
            )
        self._maybe_order_upgrade(active)
        if ask is not None:
            active.answer_when_committed(self._log.end_offset, ask, enactment.decision)
        elif enactment.values:
            active.slice_end_offset = self._log.end_offset
        self._maybe_answer()
        return True

    def _maybe_order_upgrade(self, active: ActiveController) -> None:
        """Make the quorum raise kraft.version: once, because the core remembers the order."""
        if not active.has_ordered_upgrade and active.controller.is_upgrade_due:
            active.has_ordered_upgrade = True
            _logger.info("kraft.version rises once each configured voter has fetched from here")
            self._feed_first(events.UpgradeDecided())

    def _give_way(self, refusal: DiskExhausted, ask: Ask | None) -> None:
        """Refuse a request for lack of room, and resign: another voter may have room.

        The decision is in the live state, but not in the log.
        """
        text = f"the controller has no room for a decision, and resigns: {refusal}"
        self._has_no_room.note(self._dependencies.clock.now_ms(), text)
        if ask is not None:
            refuse(ask.answer, NotController("there is no room on the controller's disk"))
        self._feed_first(events.ResignRequested())

    def _give_up(self, error: Exception, ask: Ask | None) -> None:
        """Answer the request with an error, and resign: the log has no record of it."""
        asked = "by itself" if ask is None else type(ask.request).__name__
        _logger.error("the controller failed to decide %s, and resigns", asked, exc_info=error)
        if ask is not None and not ask.answer.done():
            ask.answer.set_result(failure_response(ask.request))
        self._feed_first(events.ResignRequested())
