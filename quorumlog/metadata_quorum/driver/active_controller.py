"""The controller while this node leads the quorum: when it takes over, and when it answers.

Requests wait until the node, having won the election, has replayed all earlier records. When the
node loses its leadership, every waiting request is refused. If the request's records are in the
log, they may still be committed, so the caller gets an unknown outcome (KIP-631).
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, ClassVar, Final, NamedTuple

from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller.decision import Decision
from quorumlog.metadata_quorum.controller.log_loss import unclean_elections
from quorumlog.metadata_quorum.controller_client import BrokerHeartbeat
from quorumlog.metadata_quorum.controller_requests import UserChange
from quorumlog.metadata_quorum.driver.dependencies import (
    Answer,
    Ask,
    BrokerProcessDied,
    ControllerDeposed,
    NotController,
    refuse,
)
from quorumlog.metadata_quorum.image.records import MetadataRecord, NoOp, encode_record
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset


class PendingDecision:
    """One decision, until it is in the log, as one batch. `ask`: its request, or None.

    So a controller that dies, or is deposed, leaves all of its records or none. Kafka writes
    transaction records before and after them instead (KIP-868).

    Between two slices the event loop continues, but no other decision is made: it would be based on
    half of this one. Only the controller that is to append the records has applied them meanwhile.
    """

    at_once: ClassVar[int] = 1000
    """The number of records in a slice.

    It exceeds the controller slice of a death, or of a registration, which contains its own offset:
    neither is split. Behind the first slice a record may get a later offset than the one at which
    it is applied, because the quorum may append a change of its voters meanwhile.
    """

    def __init__(
        self,
        controller: Controller,
        decision: Decision[object],
        records: Sequence[MetadataRecord],
        *,
        base_offset: Offset,
        ask: Ask | None,
    ) -> None:
        """Start with `records`: the decision's, or the record that confirms one without any."""
        self.decision: Final = decision
        self.ask: Final = ask
        self.values: Final[list[bytes]] = []  # of the records so far
        self._controller: Final = controller
        self._record_count: Final = len(records)
        self._left: Final = iter(records)
        self._base_offset: Final = base_offset

    @property
    def is_whole(self) -> bool:
        """Whether all records are encoded and applied: the values are to be appended now."""
        return len(self.values) == self._record_count

    def take_slice(self) -> None:
        """Encode and apply the next records. Raises any error of a record that does not fit."""
        for record in islice(self._left, self.at_once):
            value = encode_record(record)
            self._controller.apply(Offset(self._base_offset + len(self.values)), record)
            self.values.append(value)


# DEVIATION: Kafka's controller repeats no response: its brokers wait for one.
# docs/decisions/0007-controller-retries.md
ANSWERS_MAX: Final = 1000
ID_CHARS_MAX: Final = 100
RECORDS_MAX: Final = 100_000  # of all remembered decisions together: they bound the responses' size


class Remembered(NamedTuple):
    """A response that is valid once all records below `end_offset` are committed."""

    end_offset: Offset
    response: object
    records: int  # their number in the decision


class RememberedAnswers:
    """The responses of one leader epoch: the newest, up to ANSWERS_MAX and RECORDS_MAX records.

    A client repeats a request when the response is late; the first may still wait for its commit.
    If both were decided, a repeated creation would fail because its own topic exists, and a
    repeated deletion could delete a topic that was created in between.
    """

    def __init__(self) -> None:
        self._answers: Final[OrderedDict[str, Remembered]] = OrderedDict()
        self._records = 0

    def get(self, request_id: str | None) -> Remembered | None:
        """Return the response to the request of this id, if it is remembered."""
        return None if request_id is None else self._answers.get(request_id)

    def add(self, request_id: str, answer: Remembered) -> None:
        """Remember a response, and drop the oldest if there are too many."""
        if len(request_id) > ID_CHARS_MAX:
            return  # a client of this project sends short ids
        self._answers[request_id] = answer
        self._records += answer.records
        while len(self._answers) > ANSWERS_MAX or self._records > RECORDS_MAX:
            _, oldest = self._answers.popitem(last=False)
            self._records -= oldest.records


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
        self.slice_end_offset = Offset(-1)  # of the last slice without a request
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
        if high_watermark < self.slice_end_offset:
            return None
        if self.controller.has_elections:
            return 0
        due_ms = (self.controller.next_expiry_ms(), self.controller.next_balance_ms())
        return min((one for one in due_ms if one is not None), default=None)

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
