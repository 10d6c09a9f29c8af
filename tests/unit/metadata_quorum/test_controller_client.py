"""The way to the active controller: which node it asks, and when it asks again."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from quorumlog.metadata_quorum.controller.requests import (
    AllocateProducerIds,
    DeleteTopics,
    FindTopics,
    ProducerIdsReply,
    TopicResults,
)
from quorumlog.metadata_quorum.controller_client import (
    ConfigChange,
    ControllerUnavailable,
    NewPartitions,
    NewTopic,
    ProducerIdBlock,
    RequestTooLarge,
    TopicConfigChanges,
)
from quorumlog.metadata_quorum.io.leader_client import (
    Askable,
    LeaderClient,
    LeaderWatch,
)
from quorumlog.metadata_quorum.io.rpc import REQUEST_BYTES_MAX, RpcClient, RpcFailed
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, TopicId

ID = TopicId(b"i" * 16)


class Leaders:
    """Two other nodes that may lead; `asked` is what came, `answer` how they answer."""

    def __init__(
        self,
        answer: Callable[[BrokerId, int], Awaitable[object]],
        request_timeout_ms: int = 30_000,
    ) -> None:
        self.asked: list[tuple[BrokerId, type[Askable], int]] = []
        self.watch = LeaderWatch()
        self.watch.set(BrokerId(2))
        self._answer = answer
        self.client = LeaderClient(
            node_id=BrokerId(1),
            leader=self.watch,
            ask_local=self.ask_local,
            ask_remote=self.ask_remote,
            request_timeout_ms=request_timeout_ms,
            attempt_timeout_ms=2_000,
        )

    async def ask_local(self, request: Askable, request_id: str) -> object:
        raise NotImplementedError

    async def ask_remote(
        self, leader_id: BrokerId, request: Askable, request_id: str, timeout_ms: int
    ) -> object:
        self.asked.append((leader_id, type(request), timeout_ms))
        return await self._answer(leader_id, len(self.asked))


async def test_a_users_request_is_not_repeated_to_a_leader_that_is_busy_with_it() -> None:
    answers = asyncio.Event()

    async def answer(leader_id: BrokerId, attempt: int) -> object:
        await answers.wait()
        return TopicResults(results=())

    leaders = Leaders(answer)
    deletion = asyncio.create_task(leaders.client.delete_topics([ID]))
    while not leaders.asked:
        await asyncio.sleep(0)
    answers.set()
    assert await deletion == []
    assert leaders.asked == [(2, DeleteTopics, 30_000)]  # all the time there is


async def test_a_users_request_goes_to_the_next_leader_when_the_silent_one_leads_no_more() -> None:
    async def answer(leader_id: BrokerId, attempt: int) -> object:
        if leader_id == 2:
            await asyncio.Event().wait()
        return TopicResults(results=())

    leaders = Leaders(answer)
    deletion = asyncio.create_task(leaders.client.delete_topics([ID]))
    while not leaders.asked:
        await asyncio.sleep(0)
    leaders.watch.set(NO_LEADER)
    leaders.watch.set(BrokerId(3))
    assert await deletion == []
    assert [leader_id for leader_id, _, _ in leaders.asked] == [2, 3]


async def test_a_connection_that_fails_is_tried_again_at_once_and_a_refusal_is_no_outcome() -> None:
    async def answer(leader_id: BrokerId, attempt: int) -> object:
        if attempt < 3:
            raise RpcFailed("refused")
        return TopicResults(results=())

    leaders = Leaders(answer)
    assert await leaders.client.delete_topics([ID]) == []
    assert len(leaders.asked) == 3


async def test_a_brokers_own_request_is_repeated_when_the_leader_is_silent() -> None:
    """It is small, and a connection may be dead without a word: a session must not end for that."""
    block = ProducerIdBlock(first=0, count=1000)

    async def answer(leader_id: BrokerId, attempt: int) -> object:
        if attempt == 1:
            raise RpcFailed("no answer within 2 s")
        return ProducerIdsReply(error_code=ErrorCode.NONE, block=block)

    leaders = Leaders(answer)
    assert await leaders.client.allocate_producer_ids(1) == (ErrorCode.NONE, block)
    assert leaders.asked == [(2, AllocateProducerIds, 2_000)] * 2


async def test_without_a_leader_no_node_is_asked() -> None:
    async def answer(leader_id: BrokerId, attempt: int) -> object:
        raise NotImplementedError

    leaders = Leaders(answer, request_timeout_ms=0)
    leaders.watch.set(NO_LEADER)
    with pytest.raises(ControllerUnavailable, match="no active controller answered"):
        await leaders.client.delete_topics([ID])
    assert leaders.asked == []


async def test_what_names_too_much_is_not_sent() -> None:
    async def answer(leader_id: BrokerId, attempt: int) -> object:
        raise NotImplementedError

    leaders, many = Leaders(answer), 10_001
    client = leaders.client
    changes = (ConfigChange(name="flush.ms", value="1"),) * many
    for sent in (
        client.create_topics([NewTopic(name="t")] * many),
        client.find_topics(["t"] * many),
        client.delete_topics([ID] * many),
        client.create_partitions([NewPartitions(name="t", count=2)] * many),
        client.alter_configs([TopicConfigChanges(name="t", changes=changes)]),
        client.elect_leaders([("t", 0)] * many),
    ):
        with pytest.raises(RequestTooLarge, match="at most 10000"):
            await sent
    assert leaders.asked == []


async def test_what_takes_too_many_bytes_is_not_tried_again() -> None:
    rpc = RpcClient(cluster_id="c", node_id=BrokerId(1), shared_secret=None)

    async def answer(leader_id: BrokerId, attempt: int) -> object:
        long = FindTopics(names=("x" * REQUEST_BYTES_MAX,))
        return await rpc.call("localhost:1", long, timeout_ms=1000)

    leaders = Leaders(answer)
    with pytest.raises(RequestTooLarge, match="where 16777216 may be"):
        await leaders.client.find_topics(["x"])
    assert len(leaders.asked) == 1
    await rpc.close()
