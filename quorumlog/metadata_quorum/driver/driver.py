"""The driver of one node's quorum: it feeds events to the core and performs its effects, in order.

It performs all effects of one step before the next event. The executor performs the writes that
must be durable, and the driver waits for each; flushes and messages run in the background. A write
for which the disk has no room is repeated: until it succeeds, the node is silent, as if paused.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from typing import Any, ClassVar, Final, assert_never

from quorumlog.invariants import some
from quorumlog.lasting_condition import LastingCondition
from quorumlog.metadata_quorum.controller_requests import ControllerRequest
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import FetchSnapshotResponse, Request
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.driver.committed_image import CommittedImage
from quorumlog.metadata_quorum.driver.controllership import Controllership
from quorumlog.metadata_quorum.driver.dependencies import (
    Answer,
    Ask,
    BrokerProcessDied,
    Clock,
    Deadline,
    DriverDependencies,
    Fact,
    NotController,
    Responded,
    Stopped,
    TurnDue,
    refuse,
)
from quorumlog.metadata_quorum.driver.patience import FIRST_WAIT_MS, PatientExecutor
from quorumlog.metadata_quorum.driver.snapshot_schedule import SnapshotSchedule
from quorumlog.metadata_quorum.driver.snapshot_transfer import SnapshotTransfer
from quorumlog.metadata_quorum.image.details import same_fields
from quorumlog.metadata_quorum.log.election_store import Election, ElectionStore
from quorumlog.metadata_quorum.log.metadata_log import MetadataLog, describe
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.storage.errors import DiskExhausted
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import BrokerId, Offset

_logger: Final = logging.getLogger(__name__)


class PeerAnswers:
    """Converts responses to facts; logs once for each node that its records are corrupt."""

    def __init__(self) -> None:
        self._corrupt_peers: Final[set[BrokerId]] = set()

    def read(self, sent: effects.SendRequest, answer: tuple[Any, bytes | None] | None) -> Fact:
        """Check the records beside a response; with corrupt records, return a failed request."""
        failed = events.RequestFailed(request_id=sent.request_id)
        if answer is None:
            return failed
        response, content = answer
        if isinstance(response, FetchSnapshotResponse):
            content = content or b""
            received = events.ResponseReceived(
                request_id=sent.request_id,
                source=sent.destination,
                response=response,
                snapshot_bytes=len(content),
            )
            return Responded(received, content)
        try:
            records, fetched = describe(content) if content else (b"", None)
        except CorruptBatch as error:
            if sent.destination not in self._corrupt_peers:
                self._corrupt_peers.add(sent.destination)  # log it once
                _logger.warning("node %d sends corrupt records: %s", sent.destination, error)
            return failed
        if fetched is not None:
            self._corrupt_peers.discard(sent.destination)
        received = events.ResponseReceived(
            request_id=sent.request_id, source=sent.destination, response=response, records=fetched
        )
        return Responded(received, records)


STALL_MS: Final = 1000  # a wait of this length is logged
QUIET_MS: Final = 10_000  # between two lines


class Stalls:
    """The waits of one driver. It logs long ones, with one line in QUIET_MS at most."""

    def __init__(self, clock: Clock, node_id: BrokerId) -> None:
        self._clock: Final = clock
        self._node_id: Final = node_id
        self._quiet_until_ms = 0
        self._left_out = 0

    def ended(self, began_ms: int, reason: str) -> int:
        """Handle the end of a wait; return how long it took, in ms."""
        now_ms = self._clock.now_ms()
        took_ms = max(now_ms - began_ms, 0)
        if took_ms < STALL_MS:
            return took_ms
        if now_ms < self._quiet_until_ms:
            self._left_out += 1
            return took_ms
        others = f", and {self._left_out} more times since the last line" * (self._left_out > 0)
        _logger.warning(
            "node %d waited %.1f s for %s%s", self._node_id, took_ms / 1000, reason, others
        )
        self._quiet_until_ms, self._left_out = now_ms + QUIET_MS, 0
        return took_ms


INBOX_FACTS_MAX: Final = 10_000  # then requests are refused
CHECKPOINT_MS: Final = 5000  # Kafka: replica.high.watermark.checkpoint.interval.ms


class Driver:
    """The driver of one quorum node. It needs no lock: one thread calls it and each `done`.

    1. While a write is in progress, the driver does no other work: facts wait in the inbox.
    2. A turn handles the first of these: an effect; an urgent event, such as the end of a write; an
       action of the controller; the oldest fact of the inbox.
    3. After `stop`, or an error, the driver does no work, and every answer that is due is an error.
    4. While a write waits for room, every request is refused. The node gives no vote, appends no
       record, and sends no answer that claims either.
    """

    patience: ClassVar[type[PatientExecutor]] = PatientExecutor  # a seam for mutants

    def __init__(
        self,
        *,
        quorum: Quorum,
        log: MetadataLog,
        elections: ElectionStore,
        committed: CommittedImage,
        settings: ControllerSettings,
        dependencies: DriverDependencies,
    ) -> None:
        self._quorum: Final = quorum
        self._log: Final = log
        self._elections: Final = elections
        self._dependencies: Final = dependencies
        self._executor: Final = self.patience(
            dependencies.executor, dependencies.clock, self._lacks_room
        )
        self._orders: Final = deque[effects.Effect]()
        self._urgent: Final = deque[events.Event]()
        self._inbox: Final = deque[Fact]()
        self._restored_id: Final = committed.restored_id
        self._restored_voter_sets: Final = committed.restored_voter_sets
        self._fetched: Responded | None = None  # for the effects of the current step
        self._has_started = self._has_ended = False
        self._is_running = self._is_writing = False
        self._stalls: Final = Stalls(dependencies.clock, quorum.node_id)
        self._deadline: Final = Deadline(dependencies.clock, self._tick)
        self._checkpoint_due: Final = Deadline(dependencies.clock, self._checkpoint)
        self._resume_due: Final = Deadline(
            dependencies.clock, self._resume
        )  # a read found no file handle
        self._unread: Final = LastingCondition(_logger)
        self._request_ids: Final = count(1)
        self._requests: Final[dict[int, Answer]] = {}  # of peers, not yet answered
        self._resignations: Final[list[Answer]] = []
        self._answers: Final = PeerAnswers()
        self._controllership: Final = Controllership(
            log=log, committed=committed, settings=settings, dependencies=dependencies,
            node_id=quorum.node_id, feed_first=self._urgent.append,
            kraft_version=lambda: quorum.state.kraft_version,
        )  # fmt: skip
        self._snapshotting: Final = SnapshotSchedule(
            log=log, committed=committed, settings=settings,
            dependencies=replace(dependencies, executor=self._executor), feed=self.feed,
            flushes_log=lambda: quorum.state.members.flushes_log, voters_at=quorum.voters_at,
        )  # fmt: skip
        self._transfer: Final = SnapshotTransfer(log, committed, self._executor, self.feed)

    # --- from outside ---

    @property
    def leader_id(self) -> BrokerId:
        """The leader of the quorum, or NOBODY."""
        return self._controllership.leader_id

    @property
    def is_active_controller(self) -> bool:
        """Whether this node's controller has taken over."""
        return self._controllership.is_active

    def start(self, election: Election) -> None:
        """Start with the state on the disk."""
        started = events.Started(
            **same_fields(election, events.Started),
            log_end_offset=self._log.end_offset,
            flushed_offset=self._log.flushed_offset,
            epoch_starts=self._log.epoch_starts(),
            log_start=self._log.start,
            snapshot_id=self._restored_id,
            voter_sets=self._restored_voter_sets,
        )
        self._has_started = True
        self._inbox.appendleft(started)  # the listener may have received requests before
        self._run()

    def stop(self) -> None:
        """Stop for good. A write that is in progress continues in its executor."""
        self._has_ended = True
        self._deadline.set(None)
        self._checkpoint_due.set(None)
        self._resume_due.set(None)
        self._executor.stop()
        self._controllership.stop()
        self._snapshotting.stop()
        self._refuse_waiting("this node stops")
        for answer in self._resignations:
            refuse(answer, Stopped())

    def _refuse_waiting(self, why: str) -> None:
        """Refuse the requests of peers, and requests to the controller that are in the inbox."""
        for answer in self._requests.values():
            refuse(answer, Stopped())
        asks = [fact for fact in self._inbox if isinstance(fact, Ask)]
        rest = [fact for fact in self._inbox if not isinstance(fact, Ask)]
        self._inbox.clear()
        self._inbox.extend(rest)
        for ask in asks:
            refuse(ask.answer, NotController(why))

    def feed(self, fact: Fact) -> None:
        """Handle an event, or queue it behind the write in progress."""
        if not self._has_ended:
            self._inbox.append(fact)
            self._run()

    @property
    def has_no_room(self) -> bool:
        """Whether a write waits for room on the disk, and all other work for that write."""
        return self._is_writing and self._executor.is_waiting

    @property
    def lacks_room(self) -> bool:
        """Whether any work waits for room, or for a file handle: a flush in the background, too."""
        return self._executor.is_waiting

    def request(self, request: Request, answer: Answer) -> None:
        """Handle a peer's request: the answer is a pair of response and records, or Stopped."""
        if self._has_ended or self.has_no_room or len(self._inbox) >= INBOX_FACTS_MAX:
            refuse(answer, Stopped())
            return
        request_id = next(self._request_ids)
        self._requests[request_id] = answer
        self.feed(events.RequestReceived(request_id=request_id, request=request))

    def ask(
        self, request: ControllerRequest, answer: Answer, request_id: str | None = None
    ) -> None:
        """Send a request to the active controller: the answer comes at commit, or is NotController.

        A request that is repeated under the same id takes effect once.
        """
        if self._has_ended or not self._controllership.is_leading:
            refuse(answer, NotController("this node does not lead the quorum"))
            return
        if self.has_no_room:
            refuse(answer, NotController("there is no room on the controller's disk"))
            return
        self._controllership.touch(request)
        if len(self._inbox) >= INBOX_FACTS_MAX:
            refuse(answer, NotController("too many requests wait"))
            return
        self.feed(Ask(request, answer, self._dependencies.clock.now_ms(), request_id))

    def resign(self, answer: Answer) -> None:
        """Resign, if this node leads; answer None when the other voters have confirmed it."""
        if self._has_ended or self.has_no_room:
            refuse(answer, Stopped())
            return
        self._resignations.append(answer)
        self.feed(events.ResignRequested())

    # --- turns ---

    def _tick(self, due_ms: int) -> None:
        self._stalls.ended(due_ms, "its turn: the process stood still, or had no CPU")
        self.feed(events.Ticked())

    def _run(self) -> None:
        if self._is_running or not self._has_started:
            return  # called from within a turn, or before `start`
        self._is_running = True
        self._controllership.begin_run()
        try:
            while not (self._is_writing or self._has_ended) and self._take_turn():
                pass
            if not (self._is_writing or self._has_ended):
                due_ms = self._quorum.next_deadline_ms(), self._controllership.next_deadline_ms()
                self._deadline.set(min((ms for ms in due_ms if ms is not None), default=None))
                self._maybe_answer_resignations()
        except DiskExhausted as refusal:  # of a read: a later turn repeats it
            now_ms = self._dependencies.clock.now_ms()
            self._unread.note(now_ms, f"the metadata log cannot be read for now: {refusal}")
            self._resume_due.set(now_ms + FIRST_WAIT_MS)
        except Exception as error:  # noqa: BLE001 - the outermost frame: the node ends
            self.stop()
            self._dependencies.failed(error)
        finally:
            self._is_running = False

    def _resume(self, _: int) -> None:
        self._run()
        if not self._resume_due.is_set:
            now_ms = self._dependencies.clock.now_ms()
            self._unread.end(now_ms, "the metadata log can be read again")

    def _take_turn(self) -> bool:
        """Handle the most urgent effect, event or fact; False: there is none."""
        if self._orders:
            self._perform(self._orders.popleft())
        elif self._urgent:
            self._step(self._urgent.popleft())
        elif self._controllership.maybe_act():
            self._snapshotting.note_commit()  # `maybe_act` may have published committed records
        elif self._inbox:
            self._take_in(self._inbox.popleft())
        else:
            return False
        return True

    def _take_in(self, fact: Fact) -> None:
        match fact:
            case Ask():
                self._controllership.decide(fact)
            case BrokerProcessDied():
                self._controllership.decide_process_died(fact)
            case Responded(event=event):
                self._step(event, fact)
            case TurnDue(act=act):
                act()
            case events.LogStartMoved(log_start=log_start):
                self._snapshotting.move_start(log_start)
                self._step(fact)
            case _:
                self._step(fact)

    def _step(self, event: events.Event, fetched: Responded | None = None) -> None:
        self._fetched = fetched
        self._orders.extend(self._quorum.step(self._dependencies.clock.now_ms(), event))

    def _maybe_answer_resignations(self) -> None:
        while self._resignations and not self._quorum.resignation_pending:
            answer = self._resignations.pop()
            if not answer.done():
                answer.set_result(None)

    # --- effects ---

    def _perform(self, effect: effects.Effect) -> None:
        match effect:
            case effects.SendRequest(destination=destination, request=request):
                done = partial(self._received, effect)
                self._dependencies.transport.send(
                    destination, request, timeout_ms=effect.timeout_ms, done=done
                )
            case effects.SendResponse(request_id=request_id, response=response):
                self._respond(request_id, response, None)
            case effects.AnswerFetch():
                self._answer_fetch(effect)
            case effects.AnswerFetchSnapshot():
                self._transfer.answer(effect, self._respond)
            case effects.CheckSnapshot():
                self._transfer.check(effect)
            case effects.FlushLog():
                flushed = partial(self._flushed, self._dependencies.clock.now_ms())
                self._executor.run(self._log.flush, flushed)
            case effects.AdvanceHighWatermark(high_watermark=high_watermark):
                self._advance(high_watermark)
            case effects.BecomeLeader() | effects.ResignLeadership() | effects.FollowLeader():
                self._controllership.change_leader(effect)
            case effects.VotersChanged(voters=voters):
                self._dependencies.voters_changed(voters)
            case _:
                self._perform_write(effect)

    def _answer_fetch(self, effect: effects.AnswerFetch) -> None:
        records = None
        if effect.records_to > effect.records_from:
            try:
                count = self._log.fetch_bytes_max
                records = self._log.read(effect.records_from, effect.records_to, count)
            except DiskExhausted:
                refuse(self._requests.pop(effect.request_id), Stopped())
                return
        self._respond(effect.request_id, effect.response, records)

    def _perform_write(self, effect: effects.DiskWrite) -> None:
        match effect:
            case effects.PersistElection():
                election = Election(**asdict(effect))
                self._write(partial(self._elections.save, election), "election state")
            case effects.AppendLeaderChange():
                wall_ms = self._dependencies.clock.wall_ms()
                append = partial(self._log.append_leader_change, effect, wall_ms=wall_ms)
                self._write(append, "start of its epoch")
            case effects.AppendVoters():
                wall_ms = self._dependencies.clock.wall_ms()
                append = partial(self._log.append_voters, effect, wall_ms=wall_ms)
                self._write(append, "voters")
            case effects.AppendFetched():
                self._append_fetched()
            case effects.TruncateLog(end_offset=end_offset):
                self._write(partial(self._log.truncate_to, end_offset), "cut of the log")
            case effects.AppendSnapshot():
                self._write(self._transfer.append_work(effect, self._fetched), "fetched snapshot")
            case effects.InstallSnapshot():
                self._write(self._transfer.install_work(effect), "fetched snapshot")
            case _:
                assert_never(effect)

    def _advance(self, high_watermark: Offset) -> None:
        self._controllership.advance(high_watermark)
        self._snapshotting.note_commit()
        if not self._checkpoint_due.is_set:
            self._checkpoint_due.set(self._dependencies.clock.now_ms() + CHECKPOINT_MS)

    def _append_fetched(self) -> None:
        fetched = some(self._fetched, "fetched records come beside a response")
        append = partial(self._log.append_fetched, fetched.records)
        if self._log.starts_epoch(fetched.event.records):
            self._write(append, "start of an epoch")  # fsynced before the core relies on it
            return
        began_ms = self._dependencies.clock.now_ms()
        try:
            append()  # a flush follows
        except DiskExhausted as refusal:
            self._is_writing = True
            written = partial(self._written, began_ms, "fetched records")
            self._executor.run_again(refusal, append, written)

    def _write(self, work: Callable[[], object], name: str) -> None:
        """Run `work` in the executor; the driver waits until it is done."""
        self._is_writing = True
        written = partial(self._written, self._dependencies.clock.now_ms(), name)
        self._executor.run(work, written)

    def _written(self, began_ms: int, name: str, _: object) -> None:
        self._is_writing = False
        took_ms = self._stalls.ended(began_ms, f"its disk: {name}")
        was_repeated = self._executor.was_repeated
        ended = events.WriteEnded(took_ms=took_ms, was_repeated=was_repeated)
        self._urgent.appendleft(ended)  # first, subtract the wait from the core's time
        self._run()

    def _lacks_room(self) -> None:
        if self._is_writing:
            self._refuse_waiting("there is no room on the controller's disk")

    def _flushed(self, began_ms: int, flushed_offset: Offset) -> None:
        took_ms = self._stalls.ended(began_ms, "its disk: flush of the metadata log")
        was_repeated = self._executor.was_repeated
        self.feed(
            events.LogFlushed(
                flushed_offset=flushed_offset, took_ms=took_ms, was_repeated=was_repeated
            )
        )

    def _checkpoint(self, _: int) -> None:
        checkpoint = partial(self._log.checkpoint, self._controllership.high_watermark)
        self._executor.run(checkpoint, lambda _: None)

    def _respond(self, request_id: int, response: object, records: bytes | None) -> None:
        answer = self._requests.pop(request_id)
        if not answer.done():
            answer.set_result((response, records))

    def _received(self, sent: effects.SendRequest, answer: tuple[Any, bytes | None] | None) -> None:
        self.feed(self._answers.read(sent, answer))
