"""The way to the active controller: which node it asks, and when it asks again."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from quorumlog.metadata_quorum.cluster_changes import UnregisterBroker
from quorumlog.metadata_quorum.config_changes import ConfigChange, ConfigChanges
from quorumlog.metadata_quorum.controller.requests import (
    AllocateProducerIds,
    DeleteTopics,
    FindTopics,
    ProducerIdsReply,
    TopicResults,
)
from quorumlog.metadata_quorum.controller_client import (
    ControllerUnavailable,
    NewPartitions,
    NewTopic,
    ProducerIdBlock,
    Reassignment,
    RequestTooLarge,
)
from quorumlog.metadata_quorum.driver.seams import ControllerDeposed, NotController
from quorumlog.metadata_quorum.io.leader_client import Askable, LeaderClient, LeaderWatch
from quorumlog.metadata_quorum.io.rpc import REQUEST_BYTES_MAX
from quorumlog.metadata_quorum.io.rpc_client import RpcClient, RpcFailed
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, TopicId

ID = TopicId(b"i" * 16)


class Leaders:
    """Two other nodes that may lead; `asked` is what came, `answer` how they answer."""

    def __init__(
        self, answer: Callable[[BrokerId, int], Awaitable[object]], request_timeout_ms: int = 30_000
    ) -> None:
        self.asked: list[tuple[BrokerId, type[Askable], int]] = []
        self.watch = LeaderWatch()
        self.watch.set(BrokerId(2))
        self.local: Exception = NotImplementedError()
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
        raise self.local

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


async def silent_then_deposed(leaders: Leaders, asking: Awaitable[object]) -> object:
    """Ask node 2, which gives no answer before node 3 leads."""
    asked = asyncio.ensure_future(asking)
    while not leaders.asked:
        await asyncio.sleep(0)
    leaders.watch.set(NO_LEADER)
    leaders.watch.set(BrokerId(3))
    return await asked


async def silent_is_node_2(leader_id: BrokerId, attempt: int) -> object:
    if leader_id == 2:
        await asyncio.Event().wait()
    return TopicResults(results=())


async def test_a_users_question_goes_to_the_next_leader_when_the_silent_one_leads_no_more() -> None:
    leaders = Leaders(silent_is_node_2)
    assert await silent_then_deposed(leaders, leaders.client.find_topics(["t"])) == []
    assert [leader_id for leader_id, _, _ in leaders.asked] == [2, 3]


async def test_a_caller_that_gives_up_as_the_leader_changes_has_given_up() -> None:
    leaders = Leaders(silent_is_node_2)
    asked = asyncio.ensure_future(leaders.client.find_topics(["t"]))
    while not leaders.asked:
        await asyncio.sleep(0)
    leaders.watch.set(BrokerId(3))
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert [leader_id for leader_id, _, _ in leaders.asked] == [2]


@pytest.mark.parametrize("turns", range(4))
async def test_a_leader_that_changes_twice_counts_as_changed(turns: int) -> None:
    leaders = Leaders(silent_is_node_2)
    asked = asyncio.ensure_future(leaders.client.find_topics(["t"]))
    while not leaders.asked:
        await asyncio.sleep(0)
    leaders.watch.set(NO_LEADER)
    for _ in range(turns):
        await asyncio.sleep(0)
    leaders.watch.set(BrokerId(3))
    assert await asked == []


CHANGES: dict[str, Callable[[LeaderClient], Awaitable[object]]] = {
    "create": lambda client: client.create_topics([NewTopic(name="t")]),
    "delete": lambda client: client.delete_topics([ID]),
    "grow": lambda client: client.create_partitions([NewPartitions(name="t", count=2)]),
    "alter": lambda client: client.alter_configs([ConfigChanges(name="t", changes=())]),
    "elect": lambda client: client.elect_leaders([("t", 0)]),
    "unregister": lambda client: client.change_cluster(UnregisterBroker(broker_id=BrokerId(3))),
    "reassign": lambda client: client.alter_reassignments(
        [Reassignment(topic="t", partition=0, replicas=None)]
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_a_change_that_the_deposed_leader_may_have_made_is_not_sent_to_the_next(
    change: Callable[[LeaderClient], Awaitable[object]],
) -> None:
    """The next leader would refuse it because it was made, or make it a second time."""
    leaders = Leaders(silent_is_node_2)
    with pytest.raises(ControllerUnavailable, match="silent until it lost the leadership"):
        await silent_then_deposed(leaders, change(leaders.client))
    assert [leader_id for leader_id, _, _ in leaders.asked] == [2]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_a_change_whose_answer_was_lost_is_not_sent_again(
    change: Callable[[LeaderClient], Awaitable[object]],
) -> None:
    """A node that leads again after a restart has forgotten its answers."""

    async def answer(leader_id: BrokerId, attempt: int) -> object:
        raise RpcFailed("connection reset")

    leaders = Leaders(answer)
    with pytest.raises(ControllerUnavailable, match="connection reset"):
        await change(leaders.client)
    assert len(leaders.asked) == 1


async def test_a_change_that_this_node_may_have_made_is_not_sent_to_the_next_leader() -> None:
    leaders = Leaders(silent_is_node_2)
    leaders.watch.set(BrokerId(1))
    leaders.local = ControllerDeposed("deposed before the change was committed")
    with pytest.raises(ControllerUnavailable, match="deposed before"):
        await leaders.client.delete_topics([ID])
    assert leaders.asked == []


async def test_a_change_that_this_node_did_not_make_goes_to_the_next_leader() -> None:
    leaders = Leaders(silent_is_node_2)
    leaders.watch.set(BrokerId(1))
    leaders.local = NotController("this node does not lead the quorum")
    deletion = asyncio.create_task(leaders.client.delete_topics([ID]))
    await asyncio.sleep(0)
    leaders.watch.set(BrokerId(3))
    assert await deletion == []
    assert [leader_id for leader_id, _, _ in leaders.asked] == [3]


async def test_a_connection_that_is_refused_is_tried_again_at_once() -> None:
    async def answer(leader_id: BrokerId, attempt: int) -> object:
        if attempt < 3:
            raise RpcFailed("refused", definite=True)
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
        client.alter_configs([ConfigChanges(name="t", changes=changes)]),
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
