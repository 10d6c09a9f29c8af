"""Requests that one node passes on together: each still gets its own answer."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import cbor2
import pytest
from aiohttp import ClientSession, web

from quorumlog.metadata_quorum.controller_client import TopicResult
from quorumlog.metadata_quorum.controller_requests import FindTopics, TopicResults
from quorumlog.metadata_quorum.io.request_batches import BATCH_MAX, MESSAGES_MAX, RequestBatches
from quorumlog.metadata_quorum.io.rpc import BATCH_REQUESTS_MAX, Reply
from quorumlog.metadata_quorum.io.rpc_client import RpcFailed, RpcMalformed, RpcTooLarge
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicId
from tests.unit.metadata_quorum.test_quorum_rpc import app_of, client, node_of, serving

NODE = "node:1"


class Caller:
    """Notes the messages; `answer` says what becomes of each."""

    def __init__(self) -> None:
        self.messages: list[list[object]] = []
        self.cancelled = 0
        self.failure: Exception | None = None  # of messages with several requests
        self.gate = asyncio.Event()
        self.gate.set()

    async def call(
        self, address: str, request: object, *, timeout_ms: int, request_id: str | None = None
    ) -> tuple[Any, bytes | None]:
        await self._sent([request])
        return f"{address} {request} {request_id}", None

    async def call_many(
        self, address: str, batch: Sequence[tuple[object, str]], *, timeout_ms: int
    ) -> list[Any]:
        await self._sent([request for request, _ in batch])
        if self.failure is not None:
            raise self.failure
        return [
            RpcFailed("refused") if request == "bad" else f"{address} {request} {request_id}"
            for request, request_id in batch
        ]

    async def _sent(self, requests: list[object]) -> None:
        self.messages.append(requests)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


@asynccontextmanager
async def batches(*, holds: bool = False) -> AsyncIterator[tuple[Caller, RequestBatches]]:
    """`holds`: no message is answered before a test opens the gate."""
    caller, errors = Caller(), list[BaseException]()
    if holds:
        caller.gate.clear()
    made = RequestBatches(caller, errors.append)
    yield caller, made
    await made.close()
    assert not errors


def ask(made: RequestBatches, request: object, number: int = 0) -> "asyncio.Task[object]":
    call = made.call(NODE, request, timeout_ms=1000, request_id=f"#{number}")
    return asyncio.ensure_future(call)


async def until_sent(caller: Caller, messages: int) -> None:
    while len(caller.messages) < messages:
        await asyncio.sleep(0)


async def test_requests_of_one_turn_are_one_message_and_each_gets_its_answer() -> None:
    async with batches() as (caller, made):
        tasks = [ask(made, f"r{at}", at) for at in range(3)]
        answers = [await task for task in tasks]
    assert caller.messages == [["r0", "r1", "r2"]]
    assert answers == [f"{NODE} r{at} #{at}" for at in range(3)]


async def test_requests_of_other_kinds_nodes_or_limits_are_other_messages() -> None:
    async with batches() as (caller, made):
        await asyncio.gather(
            ask(made, "text"),
            ask(made, 5),
            made.call("node:2", "text", timeout_ms=1000, request_id=""),
            made.call(NODE, "text", timeout_ms=2000, request_id=""),
        )
    assert sorted(map(str, caller.messages)) == ["['text']", "['text']", "['text']", "[5]"]


async def test_one_that_is_refused_fails_alone() -> None:
    async with batches() as (_, made):
        tasks = [ask(made, "good", 1), ask(made, "bad"), ask(made, "good", 2)]
        good, bad, also_good = await asyncio.gather(*tasks, return_exceptions=True)
    assert (good, also_good) == (f"{NODE} good #1", f"{NODE} good #2")
    assert isinstance(bad, RpcFailed)


@pytest.mark.parametrize("failure", [RpcMalformed("status 400"), RpcTooLarge("too many bytes")])
async def test_what_is_not_taken_together_is_sent_one_by_one(failure: RpcFailed) -> None:
    async with batches() as (caller, made):
        caller.failure = failure
        tasks = [ask(made, "a", 1), ask(made, "b", 2)]
        answers = [await task for task in tasks]
    assert answers == [f"{NODE} a #1", f"{NODE} b #2"]
    assert caller.messages == [["a", "b"], ["a"], ["b"]]


async def test_a_message_without_an_answer_fails_for_all_and_is_not_sent_again() -> None:
    async with batches() as (caller, made):
        caller.failure = RpcFailed("timed out", definite=False)
        tasks = [ask(made, "a"), ask(made, "b")]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert outcomes == [caller.failure, caller.failure]
    assert caller.messages == [["a", "b"]]


async def test_requests_gather_while_enough_messages_are_under_way() -> None:
    async with batches(holds=True) as (caller, made):
        tasks = []
        for at in range(MESSAGES_MAX):
            tasks.append(ask(made, "early", at))
            await until_sent(caller, at + 1)
        tasks += [ask(made, "late", at) for at in range(BATCH_MAX + 5)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert caller.messages == [["early"]] * MESSAGES_MAX
        caller.gate.set()
        await asyncio.gather(*tasks)
    assert [len(message) for message in caller.messages[MESSAGES_MAX:]] == [BATCH_MAX, 5]


async def test_a_caller_that_gives_up_takes_no_answer_from_another() -> None:
    async with batches(holds=True) as (caller, made):
        impatient, patient = ask(made, "impatient", 1), ask(made, "patient", 2)
        await until_sent(caller, 1)
        impatient.cancel()
        await asyncio.sleep(0)
        caller.gate.set()
        assert await patient == f"{NODE} patient #2"
    assert impatient.cancelled()
    assert not caller.cancelled


async def test_a_message_that_nothing_waits_for_is_given_up() -> None:
    async with batches(holds=True) as (caller, made):
        tasks = [ask(made, "a"), ask(made, "b")]
        await until_sent(caller, 1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while not caller.cancelled:
            await asyncio.sleep(0)


async def test_after_the_end_no_caller_waits_and_nothing_is_sent() -> None:
    async with batches(holds=True) as (caller, made):
        sent = [ask(made, "sent", at) for at in range(MESSAGES_MAX)]
        await until_sent(caller, 1)
        waiting = ask(made, "waiting")
        await asyncio.sleep(0)
        await made.close()
        outcomes = await asyncio.gather(*sent, waiting, return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        assert caller.messages == [["sent"] * MESSAGES_MAX]


# --- many requests in one message ---

ASKED = [(FindTopics(names=(name,)), name) for name in ("a", "b", "c")]


async def test_a_batch_comes_back_in_order_whatever_is_done_first() -> None:
    found_c = asyncio.Event()

    async def handle(request: FindTopics, request_id: str | None) -> Reply:
        """Find every topic but `b`, and `a` after `c`."""
        [name] = request.names
        if name == "a":
            await found_c.wait()
        if name == "c":
            found_c.set()
        if name == "b":
            return Reply(error_code=ErrorCode.NOT_CONTROLLER)
        found = TopicResult(
            name=f"{name} {request_id}", error_code=ErrorCode.NONE, topic_id=TopicId(bytes(16))
        )
        return Reply.of(TopicResults(results=(found,)))

    async with serving(node_of(handle)) as port, client(port) as (ours, address):
        a, b, c = await ours.call_many(address, ASKED, timeout_ms=30_000)
    assert (a.results[0].name, c.results[0].name) == ("a a", "c c")
    assert isinstance(b, RpcFailed)
    assert (b.error_code, b.definite) == (ErrorCode.NOT_CONTROLLER, True)


async def test_a_node_that_takes_no_batches_says_that_it_did_nothing() -> None:
    async def older(request: web.Request) -> web.Response:
        if "body" not in cbor2.loads(await request.read()):
            raise web.HTTPBadRequest(text="malformed request: expected a map, got NoneType\n")
        raise AssertionError("it was sent one by one")

    async with serving(app_of(older)) as port, client(port) as (ours, address):
        with pytest.raises(RpcMalformed):
            await ours.call_many(address, ASKED, timeout_ms=30_000)


async def test_too_few_answers_to_a_batch_are_no_answer() -> None:
    async def short(request: web.Request) -> web.Response:
        reply = {"error_code": 0, "leader_id": -1, "body": {"replies": []}}
        return web.Response(body=cbor2.dumps(reply))

    async with serving(app_of(short)) as port, client(port) as (ours, address):
        with pytest.raises(RpcFailed, match="0 answers"):
            await ours.call_many(address, ASKED, timeout_ms=30_000)


@pytest.mark.parametrize(
    "batch",
    [
        [{"body": {"names": ["a"]}}, {"body": {"names": 5}}],
        [{"body": {"names": ["a"]}}] * (BATCH_REQUESTS_MAX + 1),
    ],
    ids=["one is malformed", "too many"],
)
async def test_a_batch_that_is_refused_is_carried_out_in_no_part(batch: list[object]) -> None:
    handled: list[object] = []

    async def handle(request: object, request_id: str | None) -> Reply:
        handled.append(request)
        return Reply.of(TopicResults(results=()))

    envelope = {"cluster_id": "c", "protocol_version": 1, "sender_id": 2, "batch": batch}
    async with serving(node_of(handle)) as port, ClientSession() as session:
        url = f"http://127.0.0.1:{port}/rpc/FindTopics"
        async with session.post(url, data=cbor2.dumps(envelope)) as answer:
            assert answer.status == 400
    assert handled == []
