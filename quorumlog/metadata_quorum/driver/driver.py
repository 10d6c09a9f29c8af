"""The one task that owns the quorum's core, its log and the controller: facts in, orders out.

It decides nothing. Effects are performed in order, all of one step before the next event; only
flushes and messages go on in the background. What must be durable first runs in a thread, and the
task waits for it; so the rest of the process goes on. An error ends the task, and with it the node.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count
from typing import Any, Final, assert_never

from quorumlog.metadata_quorum.controller.failures import failure_response
from quorumlog.metadata_quorum.controller.requests import ControllerRequest, Decision
from quorumlog.metadata_quorum.controller_client import BrokerHeartbeat
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import NOBODY, Request
from quorumlog.metadata_quorum.driver.active_controller import ActiveController, Ask, NotController
from quorumlog.metadata_quorum.driver.disk_work import DiskWork
from quorumlog.metadata_quorum.driver.seams import (
    BrokerProcessDied,
    Input,
    Parts,
    Responded,
    Stopped,
)
from quorumlog.metadata_quorum.io.rpc import RpcFailed
from quorumlog.metadata_quorum.log.election_store import Election
from quorumlog.metadata_quorum.log.metadata_log import MetadataLog, describe
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset

INBOX_EVENTS_MAX: Final = 10_000
CHECKPOINT_S: Final = 5.0  # Kafka: replica.high.watermark.checkpoint.interval.ms
_logger: Final = logging.getLogger(__name__)


class Driver:
    """Needs no lock: `step` never awaits, and one task calls it."""

    def __init__(self, parts: Parts) -> None:
        self._parts: Final = parts
        self._quorum: Final = parts.quorum
        self._log: Final = parts.log
        self._inbox: Final = asyncio.Queue[Input](INBOX_EVENTS_MAX)  # `put` waits while full
        self._disk: Final = DiskWork(parts.log, parts.elections, parts.threads)
        self._request_ids: Final = count(1)
        self._asked: dict[int, asyncio.Future[tuple[object, bytes | None]]] = {}
        self._fetched: bytes = b""
        self._brings_epoch = False  # whether they would change the epoch checkpoint
        self._background: set[asyncio.Task[None]] = set()
        self._background_error: BaseException | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._active: ActiveController | None = None
        self._is_resigning = self._has_ended = self._has_checkpoint_due = False
        self._sends_corrupt: set[BrokerId] = set()
        self._resigned: Final = asyncio.Event()
        self.high_watermark = Offset(-1)
        self.leader_id = NOBODY

    @staticmethod
    def now_ms() -> int:
        """Return the monotonic time that the core lives in."""
        return int(asyncio.get_running_loop().time() * 1000)

    @property
    def is_active_controller(self) -> bool:
        """Whether this node's controller has taken over."""
        return self._active is not None and self._active.is_claimed

    async def request(self, request: Request) -> tuple[object, bytes | None]:
        """Feed a peer's request; return the answer and the records beside it. Raises Stopped."""
        if self._has_ended:
            raise Stopped
        request_id = next(self._request_ids)
        answer = asyncio.get_running_loop().create_future()
        self._asked[request_id] = answer
        await self._inbox.put(events.RequestReceived(request_id=request_id, request=request))
        reply: tuple[object, bytes | None] = await answer
        return reply

    async def ask(self, request: ControllerRequest, request_id: str | None = None) -> object:
        """Ask the active controller; answered at commit. Raises NotController.

        A request that is repeated under the same id takes effect once.
        """
        if self._active is None:
            raise NotController("this node does not lead the quorum")
        if isinstance(request, BrokerHeartbeat):
            self._active.hear(request, self.now_ms())
        answer = asyncio.get_running_loop().create_future()
        ask = Ask(request, answer, self.now_ms(), request_id)
        await self._inbox.put(ask)
        if self._has_ended:  # while it waited for room
            raise NotController("this node stops")
        return await ask.answer

    async def tell(self, fact: events.PeerProcessDied | BrokerProcessDied) -> None:
        """Feed what was noticed outside."""
        await self._inbox.put(fact)

    async def resign(self) -> None:
        """Lead no more, if this node does; return when the others know it, or are silent."""
        await self._inbox.put(events.ResignRequested())
        await self._resigned.wait()

    async def run(self, election: Election) -> None:
        """Run until cancelled. An exception is our bug or the disk's: the node ends."""
        try:
            await self._take(
                events.Started(
                    leader_epoch=election.leader_epoch,
                    leader_id=election.leader_id,
                    voted_id=election.voted_id,
                    is_new=election.is_new,
                    log_end_offset=self._log.end_offset,
                    flushed_offset=self._log.flushed_offset,
                    epoch_starts=self._log.epoch_starts(),
                )
            )
            while True:
                self._set_timer()
                fact = await self._inbox.get()
                if self._background_error is not None:
                    raise self._background_error
                await self._take(fact)
        finally:
            await self._end()

    async def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._active is not None:
            self._active.stand_down()
            self._active = None
        self._fail_asks()
        self._has_ended = True
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(Stopped())
        tasks = list(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _fail_asks(self) -> None:
        """Answer those whose turn did not come."""
        while not self._inbox.empty():
            fact = self._inbox.get_nowait()
            if isinstance(fact, Ask) and not fact.answer.done():
                fact.answer.set_exception(NotController("this node stops"))

    # --- time ---

    def _set_timer(self) -> None:
        due = [self._quorum.next_deadline_ms()]
        if self._active is not None:
            due.append(self._active.next_expiry_ms())
        deadline = min((time_ms for time_ms in due if time_ms is not None), default=None)
        if deadline == self._timer_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ms = deadline
        if deadline is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(deadline / 1000 + 0.001, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._inbox.full():
            self._timer_ms = None  # whatever is taken next sets it anew
        else:
            self._inbox.put_nowait(events.Ticked())

    # --- events ---

    async def _take(self, fact: Input) -> None:
        match fact:
            case Ask():
                await self._decide(fact)
            case BrokerProcessDied(broker_id=broker_id, broker_epoch=broker_epoch):
                now_ms = self.now_ms()
                await self._enact(
                    lambda active: active.decide_process_died(broker_id, broker_epoch, now_ms)
                )
            case Responded(event=event, records=records):
                self._fetched = records
                self._brings_epoch = self._log.has_news(event.records)
                await self._step(event)
                self._fetched = b""
            case events.ResignRequested():
                self._is_resigning = True
                await self._step(fact)
            case _:
                if isinstance(fact, events.Ticked):
                    self._timer_ms = None
                await self._step(fact)
        await self._expire_sessions()
        if self._is_resigning and not self._quorum.resignation_pending:
            self._resigned.set()

    async def _step(self, event: events.Event) -> None:
        for effect in self._quorum.step(self.now_ms(), event):
            await self._perform(effect)
        await self._maybe_claim()

    async def _perform(self, effect: effects.Effect) -> None:
        match effect:
            case effects.SendRequest():
                self._spawn(self._send(effect))
            case effects.SendResponse(request_id=request_id, response=response):
                self._reply(request_id, response, None)
            case effects.AnswerFetch():
                records = b""
                if effect.records_to > effect.records_from:
                    records = self._log.read(effect.records_from, effect.records_to)
                self._reply(effect.request_id, effect.response, records or None)
            case effects.FlushLog():
                self._spawn(self._flush())
            case effects.AdvanceHighWatermark(high_watermark=high_watermark):
                self._commit(high_watermark)
            case effects.BecomeLeader() | effects.ResignLeadership() | effects.FollowLeader():
                self._change_leader(effect)
            case (
                effects.PersistElection()
                | effects.AppendLeaderChange()
                | effects.AppendFetched()
                | effects.TruncateLog()
            ):
                await self._disk.write(
                    effect, fetched=self._fetched, brings_epoch=self._brings_epoch
                )
            case _:
                assert_never(effect)

    def _commit(self, high_watermark: Offset) -> None:
        self.high_watermark = high_watermark
        self._parts.committed.advance(high_watermark)
        if self._active is not None:
            self._active.advance(high_watermark)
        if not self._has_checkpoint_due:
            self._has_checkpoint_due = True
            self._spawn(self._checkpoint())

    def _change_leader(
        self, effect: effects.BecomeLeader | effects.ResignLeadership | effects.FollowLeader
    ) -> None:
        if self._active is not None:
            self._active.stand_down()
            self._active = None
        leader_id = NOBODY
        if isinstance(effect, effects.BecomeLeader):
            leader_id = self._parts.node_id
            self._active = ActiveController(
                self._parts.controller,
                leader_epoch=effect.leader_epoch,
                epoch_start_offset=effect.epoch_start_offset,
                draw=self._parts.draw,
            )
        elif isinstance(effect, effects.FollowLeader):
            leader_id = effect.leader_id
        self.leader_id = leader_id
        self._parts.committed.lead_by(leader_id, Epoch(effect.leader_epoch))
        self._parts.watcher.leader_changed(leader_id)

    # --- the controller ---

    async def _maybe_claim(self) -> None:
        active = self._active
        if active is None or active.is_claimed:
            return
        if self.high_watermark <= active.epoch_start_offset:
            return
        early = active.claim(self._parts.committed.image, self.now_ms())
        if await self._enact(ActiveController.decide_activation):
            self._parts.watcher.controller_claimed()
        for ask in early:
            await self._decide(ask)

    async def _decide(self, ask: Ask) -> None:
        active, now_ms, end_offset = self._active, self.now_ms(), self._log.end_offset
        if active is None:
            if not ask.answer.done():
                ask.answer.set_exception(NotController("this node does not lead the quorum"))
        elif not active.is_claimed:
            active.wait_for_claim(ask)
        elif active.maybe_answer_again(ask):
            active.advance(self.high_watermark)
        else:
            await self._enact(
                lambda active: active.decide(ask, now_ms=now_ms, end_offset=end_offset), ask
            )

    async def _enact(
        self, decide: Callable[[ActiveController], Decision[Any] | None], ask: Ask | None = None
    ) -> bool:
        """Decide, apply, append, in this order; the caller is answered at commit.

        The log gets nothing that does not fit the state before it: every replay of it, on every
        node, would fail. If a decision does not fit, or cannot be made, that is our bug. Then the
        live state is of no more use: this node gives up the leadership, and False is returned.
        """
        active, base_offset = self._active, self._log.end_offset
        if active is None:
            return False
        try:
            decision = decide(active) or Decision(response=None)
            batches = MetadataLog.encode(decision.records)
            active.apply(base_offset, decision.records)
        except Exception as error:  # noqa: BLE001  # ours, whatever it is: Kafka resigns as well
            await self._give_up(error, ask)
            return False
        end_offset = Offset(base_offset + len(decision.records))
        if ask is not None:
            active.answer_when_committed(end_offset, ask.answer, decision.response)
            active.remember(ask, end_offset, decision)
        if not decision.records:
            active.advance(self.high_watermark)
            return True
        self._log.append_batches(batches, active.leader_epoch)
        appended = events.RecordsAppended(
            leader_epoch=active.leader_epoch, log_end_offset=self._log.end_offset
        )
        await self._step(appended)
        return True

    async def _give_up(self, error: Exception, ask: Ask | None) -> None:
        """Answer that the request cannot be decided, and lead no more: nothing was written."""
        asked = "by itself" if ask is None else type(ask.request).__name__
        _logger.error("the controller failed to decide %s, and resigns", asked, exc_info=error)
        if ask is not None and not ask.answer.done():
            ask.answer.set_result(failure_response(ask.request))
        await self._step(events.ResignRequested())

    async def _expire_sessions(self) -> None:
        """Fence overdue brokers. A heartbeat that waits in the inbox was heard as it came."""
        while self._active is not None:
            due_ms, now_ms = self._active.next_expiry_ms(), self.now_ms()
            if due_ms is None or due_ms > now_ms:
                return
            await self._enact(partial(ActiveController.decide_expiry, now_ms=now_ms))

    # --- background ---

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._background_error = error
            if not self._inbox.full():  # else there is enough that wakes us
                self._inbox.put_nowait(events.Ticked())

    async def _checkpoint(self) -> None:
        await asyncio.sleep(CHECKPOINT_S)
        self._has_checkpoint_due = False  # first: what is committed during the write comes next
        await self._disk.checkpoint(self.high_watermark)

    async def _flush(self) -> None:
        flushed_offset = await self._disk.flush()
        await self._inbox.put(events.LogFlushed(flushed_offset=flushed_offset))

    async def _send(self, effect: effects.SendRequest) -> None:
        address = self._parts.addresses(effect.destination)
        try:
            response, content = await self._parts.transport.call(
                address, effect.request, timeout_ms=effect.timeout_ms
            )
            records, fetched = describe(content) if content else (b"", None)
        except (RpcFailed, CorruptBatch) as error:
            if isinstance(error, CorruptBatch) and effect.destination not in self._sends_corrupt:
                self._sends_corrupt.add(effect.destination)  # say it once
                _logger.warning("node %d sends corrupt records: %s", effect.destination, error)
            await self._inbox.put(events.RequestFailed(request_id=effect.request_id))
            return
        if fetched is not None:
            self._sends_corrupt.discard(effect.destination)
        received = events.ResponseReceived(
            request_id=effect.request_id,
            source=effect.destination,
            response=response,
            records=fetched,
        )
        await self._inbox.put(Responded(received, records))

    def _reply(self, request_id: int, response: object, records: bytes | None) -> None:
        answer = self._asked.pop(request_id, None)
        if answer is not None and not answer.done():
            answer.set_result((response, records))
