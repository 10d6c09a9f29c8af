"""One client's connection: calls handlers, sends responses in the order of the requests.

A handler runs inside the socket callback. If it returns a Future, later requests are handled in the
meantime (pipelining); its response waits for its turn. If it is a coroutine, it runs as a task, and
later requests wait for it, as in Kafka. They wait for a Fetch, too, because many large responses at
once would not fit into memory. All buffers are bounded: the connection does not read from a client
that leaves its responses unread or sends too many requests, until it catches up.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from inspect import iscoroutine
from typing import Any, Final

from quorumlog.addresses import DEFAULT_LISTENER, address_text
from quorumlog.broker.quotas.throttle import Throttle
from quorumlog.broker.server.acceptor import Acceptor
from quorumlog.broker.server.api import Client, Deliver, Disconnect, Reply, unsupported_version
from quorumlog.broker.server.request_runs import RequestRuns, WaitingRun
from quorumlog.broker.server.stats import UNTIMED_MAX
from quorumlog.clock import monotonic_s
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.message import Buffer, Response, Sendable
from quorumlog.wire.codec.messages.api_versions import ApiVersionsRequest
from quorumlog.wire.codec.repeated_fetches import FetchDecoder
from quorumlog.wire.codec.schemas import (
    API_VERSIONS_KEY,
    RequestHeader,
    UnsupportedVersion,
    response_to_send,
)
from quorumlog.wire.io.file_sender import Done
from quorumlog.wire.io.frames import FrameProtocol

PRODUCE_KEY: Final = 0
FETCH_KEY: Final = 1
SOFTWARE_MAX: Final = 100  # characters of a client's name that are kept
FLUSH_BYTES: Final = 256 * 1024  # responses are collected up to this size, then written

Turn = tuple[RequestHeader, "asyncio.Future[Any]", float] | WaitingRun
"""A request, its response, and the time (s) of its arrival; or a run."""


class Connection(FrameProtocol):
    """The requests of one client, and their responses.

    Invariants:
    1. Responses leave in the order of their requests.
    2. While a coroutine handler runs, no frame is delivered: it may use views into its request.
    3. At most `queued_max_requests` requests are under way, and at most one of them is a Fetch.
       `_under_way` is their number: a run in `_turns` counts for all its requests.
    4. No frame is delivered while the connection waits for its turn.
    """

    def __init__(self, server: Acceptor, listener: str = DEFAULT_LISTENER) -> None:
        super().__init__(frame_max_bytes=server.context.settings.socket_request_max_bytes)
        self._server: Final = server
        self._stats: Final = server.stats
        self._apis: Final = server.stats.apis
        self._loop: Final = asyncio.get_running_loop()
        self._account: Final = server.context.replicas.response_memory.open_account()
        self._context = replace(server.context, account=self._account, listener=listener)
        self._handlers = server.context.handlers
        self._decode: Final = FetchDecoder().decode
        self._turns: Final[deque[Turn]] = deque()
        self._under_way = 0
        self._runs: Final = RequestRuns()
        self._may_continue: Final = server.turns.may_continue
        self._is_over: Final = server.turns.is_over
        # DEVIATION: Kafka counts the requests of all connections together.
        # docs/decisions/0039-limits.md
        self._turns_max: Final = server.context.settings.queued_max_requests
        self._task: asyncio.Task[Any] | None = None
        self._gathered: list[Sendable] = []
        self._gathered_bytes = self._unsent_bytes = 0  # unsent: at the last check of a slow client
        self._is_delivering = self._is_flush_due = self._waits_for_turn = False
        self._client = Client()
        self._quotas: Final = server.context.quotas.clients
        self._throttle: Throttle | None = None  # since the first request under quotas
        self._asked_s: float | None = None  # when `turns` was just checked, for the first frame
        self.last_active_s = self._loop.time()
        self._unsent_since_s = 0.0

    def secure(self, principal: str) -> None:
        """Serve a client after its TLS handshake: its responses are not sent from files."""
        self._context = replace(self._context, principal=principal, may_send_files=False)

    # FrameProtocol's hooks.

    def connection_opened(self) -> None:
        """Record the address of the client."""
        name = self.transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self._client = Client(address_text(name[0], name[1]), name[0])
            host = f"/{name[0]}"  # as Kafka writes it
            self._context = replace(self._context, client_host=host, client_port=name[1])
        self._server.opened(self)

    def connection_closed(self, error: Exception | None) -> None:
        """Cancel everything under way: the client has gone."""
        if isinstance(error, MalformedFrame | UnsupportedVersion | Disconnect):
            self._server.note_refused(self._client, f"closed: {error}")
        if self._task is not None:
            self._task.cancel()
        for turn in self._turns:
            if not isinstance(turn, WaitingRun):
                turn[1].cancel()
        self._turns.clear()
        self._gathered.clear()
        self._account.close()
        if self._throttle is not None:
            self._throttle.close()
        self._server.closed(self)

    def buffer_updated(self, nbytes: int) -> None:
        """Handle all complete frames, then write their responses together."""
        self._stats.bytes_in += nbytes
        self._asked_s = self._loop.time()
        if self._is_over(self._asked_s):
            self._wait_for_turn()
        self._is_delivering = True
        FrameProtocol.buffer_updated(self, nbytes)  # `super` makes an object each time
        self._is_delivering = False
        self._asked_s = None
        if self._gathered:
            self._flush()

    def run_received(self) -> bool:
        """Handle the requests that look like an earlier one, and like each other, in one step."""
        if self._runs.last is None:
            return False
        found = self._runs.find(
            self._received,
            self._start,
            self._end,
            self._turns_max - self._under_way,
            self._frame_max_bytes,
        )
        if found is None or (self._quotas.is_active and self._is_limited(found[0].header)):
            return False
        self._begin_request()
        template, run = found
        if self._waits_for_turn:
            del run[1:]
        api_key = template.header.api_key
        handle_run = self._handlers[api_key].handle_run
        if handle_run is None:
            return False
        try:
            reply = handle_run(self._context, template, run, may_continue=self._may_continue)
        except Exception as error:  # noqa: BLE001 - the outermost frame of a handler
            self._start = run[-1][-1]
            self._handler_failed(template.header, error)
            return True
        if reply is None:
            return False
        handled, responses = reply
        self._start = run[handled - 1][-1]
        if not isinstance(responses, list) or (self._turns and responses):
            self._wait_turn_of_run(api_key, handled, responses)
        elif responses:
            api = self._apis[api_key]
            api.untimed += handled
            if api.untimed >= UNTIMED_MAX:
                api.answered_alike(monotonic_s() - self.last_active_s)
            self._gather(responses)
        else:  # acks=0
            self._apis[api_key].unanswered += handled
        return True

    def _begin_request(self) -> None:
        """Note the time; when this turn is over, the frames behind this one wait for the next."""
        now_s, self._asked_s = self._asked_s, None
        if now_s is None:  # not the first frame of the received bytes
            now_s = self._loop.time()
            if self._is_over(now_s):
                self._wait_for_turn()
        self.last_active_s = now_s

    def frame_received(self, frame: memoryview) -> None:
        """Handle one request."""
        self._begin_request()
        try:
            header, request = self._decode(frame)
        except UnsupportedVersion as unsupported:
            self._refuse(unsupported.header)
            return
        except MalformedFrame as error:
            self.close(error)
            return
        except (ImportError, OSError) as error:  # of a rare message, such as without a file handle
            self.close(Disconnect(f"the module of a message cannot be loaded: {error}"))
            return
        if isinstance(request, ApiVersionsRequest):
            self._introduced(request.client_software_name, request.client_software_version)
        handler = self._handlers.get(header.api_key)
        if handler is None or not handler.min_version <= header.api_version <= handler.max_version:
            self._refuse(header)
            return
        if handler.handle_run is not None:
            self._runs.learn(frame, header, request)
        handle = handler.handle
        if self._quotas.is_active:
            handle = partial(self.throttle().handle, handle, len(frame))
        try:
            reply = handle(self._context, header, request)
        except Exception as error:  # noqa: BLE001 - the outermost frame of a handler
            self._handler_failed(header, error)
        else:
            self._take(header, reply)

    def close(self, error: Exception | None = None) -> None:
        """Close once the responses so far are sent."""
        self._flush()
        super().close(error)

    def writing_paused(self) -> None:
        """Read no more requests from a client that does not read its responses."""
        self._regulate()

    def writing_resumed(self) -> None:
        """Read requests again."""
        self._account.sent()
        self._unsent_bytes = 0
        self._regulate()

    def read_elsewhere(self, read: Callable[[], bytes], done: Done) -> None:
        """Read a part of an unsent file in the disk queue: its pages were evicted."""
        self._server.context.replicas.disk.submit(self, read, done)

    def silent_for_s(self) -> float:
        """Return for how long the client has read no bytes although some wait; 0 if none wait.

        The time is measured between calls of this method, which must be regular.
        """
        if self.is_writable or self.is_closing:
            return 0.0
        now_s, unsent_bytes = self._loop.time(), self.unsent_bytes
        if unsent_bytes != self._unsent_bytes:
            self._unsent_bytes, self._unsent_since_s = unsent_bytes, now_s
        return now_s - self._unsent_since_s

    @property
    def listener(self) -> str:
        """The name of the listener that accepted the connection."""
        return self._context.listener

    def throttle(self) -> Throttle:
        """Return the throttle of this connection; handlers find it in the context."""
        if self._throttle is None:
            self._throttle = Throttle(self._quotas, self._hold, self._resume)
            self._context = replace(self._context, throttle=self._throttle)
        return self._throttle

    @property
    def host(self) -> str:
        """The address of the client."""
        return self._client.host

    @property
    def held_bytes(self) -> int:
        """Bytes of the response memory that this connection holds."""
        return self._account.held

    @property
    def is_busy(self) -> bool:
        """Whether a request is under way."""
        return bool(self._turns) or self._task is not None or not self.is_writable

    def _wait_for_turn(self) -> None:
        if not self._waits_for_turn:
            self._hold()
            self._server.turns.wait(self._resume)

    def _is_limited(self, header: RequestHeader) -> bool:
        return self.throttle().limits_produce(self._context, header)

    def _hold(self) -> None:
        """Read no request until `_resume`: the client is over a quota."""
        self._waits_for_turn = True
        self.pause_frames()

    def _resume(self) -> None:
        """Handle the frames that have waited for another turn of the loop, or for a quota."""
        if self._throttle is not None and self._throttle.is_held:
            return
        self._waits_for_turn = False
        if not self.is_closing:
            self._is_delivering = True
            self._regulate()
            self._is_delivering = False
            self._flush()

    def _introduced(self, name: str, version: str) -> None:
        self._note_software(name, version)
        self._context = self._context.introduced(name, version)
        self._handlers = self._context.handlers

    # Responses.

    def _take(self, header: RequestHeader, reply: Reply) -> None:
        if reply is None:
            self._apis[header.api_key].unanswered += 1
        elif isinstance(reply, asyncio.Future):
            self._wait_turn(header, reply)
        elif isinstance(reply, Response):
            if self._turns:
                answer: asyncio.Future[Response] = self._loop.create_future()
                answer.set_result(reply)
                self._wait_turn(header, answer)
            else:
                self._send(header, reply, self.last_active_s)
        elif iscoroutine(reply):
            if header.api_key == PRODUCE_KEY:  # other requests hold no views into their frame
                self.keep_frame()
            self._task = self._loop.create_task(reply)
            self._task.add_done_callback(self._task_done)
            self._wait_turn(header, self._task)

    def _wait_turn_of_run(
        self, api_key: int, handled: int, responses: list[Buffer] | Callable[[Deliver], None]
    ) -> None:
        waiting = WaitingRun(self._run_answered, handled, api_key, self.last_active_s)
        self._turns.append(waiting)
        self._under_way += handled
        if isinstance(responses, list):
            waiting.deliver(responses, handled)
        else:
            responses(waiting.deliver)
        if self._under_way >= self._turns_max:
            self.pause_frames()

    def _wait_turn(self, header: RequestHeader, answer: "asyncio.Future[Any]") -> None:
        self._turns.append((header, answer, self.last_active_s))
        self._under_way += 1
        is_fetch = header.api_key == FETCH_KEY
        if self._task is not None or self._under_way >= self._turns_max:
            self.pause_frames()
        elif is_fetch:
            self.hold_frames()
        if not answer.done():
            answer.add_done_callback(self._fetched if is_fetch else self._answered)
        elif len(self._turns) == 1:
            self._answered(answer)

    def _task_done(self, _task: "asyncio.Task[Any]") -> None:
        self._task = None
        if self._waits_for_turn:
            self.release_frame()
        self._regulate()

    def _fetched(self, answer: "asyncio.Future[Any]") -> None:
        """Write the response to a delayed fetch, within the call that completes it."""
        if self._end:  # the call must not handle the next request, which has arrived already
            self._loop.call_soon(self._answered)
            return
        has_others = self._gathered or self._is_closing or self._waits_for_turn
        if len(self._turns) == 1 and not has_others:
            self._write_fetched(answer)
            return
        self._is_delivering = True
        self._answered()
        self._is_delivering = False
        self._flush()

    def _write_fetched(self, answer: "asyncio.Future[Any]") -> None:
        """Do as `_answered` and `_flush` for the only request under way, as it mostly is."""
        turn: Any = self._turns.popleft()  # no run
        header, _, arrived_s = turn
        self._under_way -= 1
        try:
            chunks = response_to_send(header, answer.result())
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - as in `_send`
            self._handler_failed(header, error)
            return
        self._account.hand_over()
        self._apis[FETCH_KEY].answered(monotonic_s() - arrived_s, 1)
        self._stats.bytes_out += sum(map(len, chunks))
        self.write(chunks)
        if self._drained is None:
            self._account.sent()
            if not self._waits_for_turn:
                self.resume_frames()

    def _run_answered(self) -> None:
        """Send the responses to a run, within the call that completes it."""
        if self._is_paused and self._end:  # as above: the call is a step of a partition
            self._loop.call_soon(self._answered)
        else:
            self._answered()

    def _answered(self, _answer: "asyncio.Future[Any] | None" = None) -> None:
        """Send the responses whose turn it is."""
        while self._turns and not self._is_closing:
            turn = self._turns[0]
            if isinstance(turn, WaitingRun):
                self._send_ready(turn)
                if turn.waiting:
                    break
                self._turns.popleft()
                continue
            header, answer, arrived_s = turn
            if not answer.done():
                break
            self._turns.popleft()
            self._under_way -= 1
            try:
                response = answer.result()
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - as above
                self._handler_failed(header, error)
            else:
                self._send(header, response, arrived_s)
        if self._is_paused:
            self._regulate()

    def _send(self, header: RequestHeader, response: Response | None, arrived_s: float) -> None:
        if response is None:
            self._apis[header.api_key].unanswered += 1
            return
        try:
            if self._throttle is not None:
                response = self._throttle.with_delay(response)
            chunks = response_to_send(header, response)
        except Exception as error:  # noqa: BLE001 - a handler's malformed response ends here
            self._handler_failed(header, error)
            return
        if header.api_key == FETCH_KEY:
            self._account.hand_over()
        self._apis[header.api_key].answered(monotonic_s() - arrived_s, 1)
        self._gather(chunks)

    def _send_ready(self, run: WaitingRun) -> None:
        responses, count = run.take()
        self._under_way -= count
        if responses:
            self._apis[run.api_key].answered(monotonic_s() - run.arrived_s, count)
            self._gather(responses)
        else:  # acks=0
            self._apis[run.api_key].unanswered += count

    def _gather(self, chunks: Sequence[Sendable]) -> None:
        self._gathered += chunks
        self._gathered_bytes += sum(map(len, chunks))
        if self._gathered_bytes >= FLUSH_BYTES:
            self._flush()
        elif not (self._is_delivering or self._is_flush_due):
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._gathered and not self._is_closing:
            chunks, self._gathered = self._gathered, []
            self._stats.bytes_out += self._gathered_bytes
            self._gathered_bytes = 0
            self.write(chunks)
            if self._drained is None:
                self._account.sent()

    def _regulate(self) -> None:
        """Read frames only while there is room for their requests and responses."""
        has_room = self._under_way < self._turns_max and self._task is None
        if has_room and self._turns:
            last = self._turns[-1]
            has_room = isinstance(last, WaitingRun) or last[0].api_key != FETCH_KEY
        if not has_room or self._waits_for_turn or not self.is_writable:
            self.pause_frames()
        elif self._is_paused:
            self.resume_frames()

    # The end of a connection.

    def _refuse(self, header: RequestHeader) -> None:
        """Answer an ApiVersions of an unsupported version; close at any other such request."""
        if header.api_key == API_VERSIONS_KEY:
            as_v0 = header._replace(api_version=0)
            self._take(as_v0, unsupported_version(self._context))
            return
        if not self._client.software:
            self._note_software(header.client_id or "")
        self.close(UnsupportedVersion(header))

    def _note_software(self, *names: str) -> None:
        self._client = self._client._replace(software=" ".join(names)[:SOFTWARE_MAX].strip())

    def _handler_failed(self, header: RequestHeader, error: BaseException) -> None:
        """Close: some responses cannot carry an error, and the client must not wait for one."""
        self._apis[header.api_key].unanswered += 1
        if isinstance(error, InvariantViolation):
            self._server.on_fatal(error)
        elif isinstance(error, Disconnect):
            self.close(error)
        else:
            reason = f"closed: {header.label} failed"
            self._server.note_refused(self._client, reason, error)
            self.close()
