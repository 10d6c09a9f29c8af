"""The requests of users that one node passes on to another, gathered into batches.

A node that passes on hundreds of small changes a second would spend most of its time on messages.
So all requests of one kind from one turn of the event loop are one message. When MESSAGES_MAX
messages of that kind are unanswered, requests wait for the next answer, and then form the next
message.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from quorumlog.metadata_quorum.io.rpc_client import RpcFailed, RpcMalformed, RpcTooLarge
from quorumlog.tasks import OnError, Tasks

BATCH_MAX: Final = 200  # requests in a message
MESSAGES_MAX: Final = 4  # of one kind to one node, under way
_Key = tuple[str, type, int]  # the address, the kind, and the time limit in ms


class BatchCaller(Protocol):
    """`RpcClient`, or its substitute in a test."""

    async def call(
        self, address: str, request: object, *, timeout_ms: int, request_id: str | None = None
    ) -> tuple[Any, bytes | None]:
        """Return the response and the records beside it. Raises RpcFailed."""

    async def call_many(
        self, address: str, batch: Sequence[tuple[object, str]], *, timeout_ms: int
    ) -> list[Any]:
        """Return a response or a RpcFailed for each. Raises RpcFailed."""


class _Batch:
    """Requests of one kind to one node, in order, and the callers that wait for the answers."""

    def __init__(self) -> None:
        self.requests: Final[list[tuple[object, str]]] = []
        self.answers: Final[list[asyncio.Future[Any]]] = []
        self.sending: asyncio.Task[None] | None = None

    @property
    def is_given_up(self) -> bool:
        """Whether no caller waits for an answer any more."""
        return all(answer.done() for answer in self.answers)

    def cancel(self) -> None:
        """Cancel the callers without an answer."""
        for answer in self.answers:
            answer.cancel()

    def fill(self, outcomes: Sequence[Any]) -> None:
        """Hand out the responses, or failures, to the callers that still wait."""
        for answer, outcome in zip(self.answers, outcomes, strict=True):
            if answer.done():
                continue
            if isinstance(outcome, BaseException):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)


@dataclass(slots=True)
class _Lane:
    """The requests of one kind to one node: waiting batches, and the number of sent messages."""

    waiting: deque[_Batch] = field(default_factory=deque)
    messages: int = 0
    is_due: bool = False  # to send, at the end of this turn of the event loop


class RequestBatches:
    """Gathers requests into batches, and hands out their answers. `close` it."""

    def __init__(self, caller: BatchCaller, on_error: OnError) -> None:
        self._caller: Final = caller
        self._lanes: Final[dict[_Key, _Lane]] = {}
        self._tasks: Final = Tasks(on_error)

    async def close(self) -> None:
        """Cancel all requests in progress, and their callers."""
        for lane in self._lanes.values():
            for batch in lane.waiting:
                batch.cancel()
        await self._tasks.stop()

    async def call(
        self, address: str, request: object, *, timeout_ms: int, request_id: str
    ) -> object:
        """Return the response. Raises RpcFailed."""
        key = address, type(request), timeout_ms
        lane = self._lanes.setdefault(key, _Lane())
        if not lane.waiting or len(lane.waiting[-1].requests) >= BATCH_MAX:
            lane.waiting.append(_Batch())
        batch, answer = lane.waiting[-1], asyncio.get_running_loop().create_future()
        batch.requests.append((request, request_id))
        batch.answers.append(answer)
        if not lane.is_due and lane.messages < MESSAGES_MAX:
            lane.is_due = True
            asyncio.get_running_loop().call_soon(self._send, key, lane)
        try:
            return await answer
        finally:
            if batch.sending is not None and batch.is_given_up:
                batch.sending.cancel()

    def _send(self, key: _Key, lane: _Lane) -> None:
        lane.is_due = False
        while lane.waiting and lane.messages < MESSAGES_MAX:
            batch = lane.waiting.popleft()
            if not batch.is_given_up:
                lane.messages += 1
                batch.sending = self._tasks.start(self._ask(key, lane, batch))
        if not lane.waiting and not lane.messages:
            self._lanes.pop(key, None)

    async def _ask(self, key: _Key, lane: _Lane, batch: _Batch) -> None:
        address, _, timeout_ms = key
        try:
            if len(batch.requests) == 1:
                outcomes = await self._ask_singly(address, batch, timeout_ms)
            else:
                outcomes = await self._ask_together(address, batch, timeout_ms)
            batch.fill(outcomes)
        finally:
            batch.cancel()
            lane.messages -= 1
            self._send(key, lane)

    async def _ask_together(self, address: str, batch: _Batch, timeout_ms: int) -> list[Any]:
        try:
            return await self._caller.call_many(address, batch.requests, timeout_ms=timeout_ms)
        except (RpcMalformed, RpcTooLarge):
            # An older release takes no batches; and one bad request may fail a whole batch.
            return await self._ask_singly(address, batch, timeout_ms)
        except RpcFailed as failure:
            return [failure] * len(batch.requests)

    async def _ask_singly(self, address: str, batch: _Batch, timeout_ms: int) -> list[Any]:
        asking = (
            self._caller.call(address, request, timeout_ms=timeout_ms, request_id=request_id)
            for request, request_id in batch.requests
        )
        replies = await asyncio.gather(*asking, return_exceptions=True)
        return [reply if isinstance(reply, BaseException) else reply[0] for reply in replies]
