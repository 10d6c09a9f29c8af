"""The way to the active controller: which node it asks, and when it asks again."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from quorumlog.metadata_quorum.cluster_changes import (
    AlterGroupConfigs,
    ConfigChange,
    ConfigChanges,
    RequestFor,
    UnregisterBroker,
)
from quorumlog.metadata_quorum.controller_client import (
    ControllerUnavailable,
    NewPartitions,
    NewTopic,
    NewVoter,
    ProducerIdBlock,
    Reassignment,
    RequestTooLarge,
    VoterChangeResult,
)
from quorumlog.metadata_quorum.controller_requests import (
    AllocateProducerIds,
    AlterConfigs,
    AlterReassignments,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    FindTopics,
    ProducerIdsReply,
    TopicResults,
)
from quorumlog.metadata_quorum.core.messages import (
    AddVoterRequest,
    RemoveVoterRequest,
    UpgradeKRaftVersionRequest,
    VoterChangeResponse,
)
from quorumlog.metadata_quorum.driver.dependencies import ControllerDeposed, NotController
from quorumlog.metadata_quorum.io.leader_client import Askable, LeaderClient, LeaderWatch
from quorumlog.metadata_quorum.io.rpc import REQUEST_BYTES_MAX
from quorumlog.metadata_quorum.io.rpc_client import RpcClient, RpcFailed
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, Epoch, TopicId
from tests.support.metadata_quorum.voters import directory_id

ID = TopicId(b"i" * 16)
DELETE = DeleteTopics(topic_ids=(ID,))


Answer = Callable[[BrokerId, int], Awaitable[object]]


class Leaders:
    """Two other nodes that may lead; `asked` is what came, `answer` how they answer."""

    def __init__(self, answer: Answer, request_timeout_ms: int = 30_000) -> None:
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

    @property
    def leaders(self) -> list[BrokerId]:
        """The nodes that were asked."""
        return [leader_id for leader_id, _, _ in self.asked]

    async def asking(self, question: Awaitable[object]) -> "asyncio.Future[object]":
        """Ask, and return when the question has come."""
        asked = asyncio.ensure_future(question)
        while not self.asked:
            await asyncio.sleep(0)
        return asked

    async def ask_local(self, request: Askable, request_id: str) -> object:
        raise self.local

    async def ask_remote(
        self, leader_id: BrokerId, request: Askable, request_id: str, timeout_ms: int
    ) -> object:
        self.asked.append((leader_id, type(request), timeout_ms))
        return await self._answer(leader_id, len(self.asked))


async def silent_is_node_2(leader_id: BrokerId, attempt: int) -> object:
    if leader_id == 2:
        await asyncio.Event().wait()
    return TopicResults(results=())


def failing(error: Exception) -> Answer:
    async def answer(leader_id: BrokerId, attempt: int) -> object:
        raise error

    return answer


async def test_a_users_request_is_not_repeated_to_a_leader_that_is_busy_with_it() -> None:
    answers = asyncio.Event()

    async def answer(leader_id: BrokerId, attempt: int) -> object:
        await answers.wait()
        return TopicResults(results=())

    leaders = Leaders(answer)
    deletion = await leaders.asking(leaders.client.ask(DELETE))
    answers.set()
    assert await deletion == TopicResults(results=())
    assert leaders.asked == [(2, DeleteTopics, 30_000)]  # all the time there is


@pytest.mark.parametrize("turns", range(4))
async def test_a_users_question_goes_to_the_next_leader_when_the_silent_one_leads_no_more(
    turns: int,
) -> None:
    leaders = Leaders(silent_is_node_2)
    asked = await leaders.asking(leaders.client.ask(FindTopics(names=("t",))))
    leaders.watch.set(NO_LEADER)
    for _ in range(turns):
        await asyncio.sleep(0)
    leaders.watch.set(BrokerId(3))
    assert await asked == TopicResults(results=())
    assert leaders.leaders == [2, 3]


async def test_a_caller_that_gives_up_as_the_leader_changes_has_given_up() -> None:
    leaders = Leaders(silent_is_node_2)
    asked = await leaders.asking(leaders.client.ask(FindTopics(names=("t",))))
    leaders.watch.set(BrokerId(3))
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert leaders.leaders == [2]


CHANGES: dict[str, RequestFor[object]] = {
    "create": CreateTopics(topics=(NewTopic(name="t"),)),
    "delete": DELETE,
    "grow": CreatePartitions(topics=(NewPartitions(name="t", count=2),)),
    "alter": AlterConfigs(topics=(ConfigChanges(name="t", changes=()),)),
    "elect": ElectLeaders(partitions=(("t", 0),)),
    "unregister": UnregisterBroker(broker_id=BrokerId(3)),
    "reassign": AlterReassignments(wanted=(Reassignment(topic="t", partition=0, replicas=None),)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_a_change_that_the_deposed_leader_may_have_made_is_not_sent_to_the_next(
    change: RequestFor[object],
) -> None:
    """The next leader would refuse it because it was made, or make it a second time.

    A node that leads again after a restart has forgotten its answers.
    """
    leaders = Leaders(silent_is_node_2)
    asked = await leaders.asking(leaders.client.ask(change))
    leaders.watch.set(NO_LEADER)
    leaders.watch.set(BrokerId(3))
    with pytest.raises(ControllerUnavailable, match="silent until it lost the leadership"):
        await asked
    assert leaders.leaders == [2]
    lost = Leaders(failing(RpcFailed("connection reset")))
    with pytest.raises(ControllerUnavailable, match="connection reset"):
        await lost.client.ask(change)
    assert lost.leaders == [2]


async def test_a_change_that_this_node_may_have_made_is_not_sent_to_the_next_leader() -> None:
    leaders = Leaders(silent_is_node_2)
    leaders.watch.set(BrokerId(1))
    leaders.local = ControllerDeposed("deposed before the change was committed")
    with pytest.raises(ControllerUnavailable, match="deposed before"):
        await leaders.client.ask(DELETE)
    assert leaders.asked == []


async def test_a_change_that_this_node_did_not_make_goes_to_the_next_leader() -> None:
    leaders = Leaders(silent_is_node_2)
    leaders.watch.set(BrokerId(1))
    leaders.local = NotController("this node does not lead the quorum")
    deletion = asyncio.create_task(leaders.client.ask(DELETE))
    await asyncio.sleep(0)
    leaders.watch.set(BrokerId(3))
    assert await deletion == TopicResults(results=())
    assert leaders.leaders == [3]


async def test_a_connection_that_is_refused_is_tried_again_at_once() -> None:
    async def answer(leader_id: BrokerId, attempt: int) -> object:
        if attempt < 3:
            raise RpcFailed("refused", definite=True)
        return TopicResults(results=())

    leaders = Leaders(answer)
    assert await leaders.client.ask(DELETE) == TopicResults(results=())
    assert len(leaders.asked) == 3


async def test_a_brokers_own_request_is_repeated_when_the_leader_is_silent() -> None:
    """It is small, and a connection may be dead without a word: a session must not end for that."""
    block = ProducerIdBlock(first=0, count=1000)

    async def answer(leader_id: BrokerId, attempt: int) -> object:
        if attempt == 1:
            raise RpcFailed("no answer within 2 s")
        return ProducerIdsReply(error_code=ErrorCode.NONE, block=block)

    leaders = Leaders(answer)
    allocate = AllocateProducerIds(broker_id=BrokerId(1), broker_epoch=1)
    assert (await leaders.client.ask(allocate)).block == block
    assert leaders.asked == [(2, AllocateProducerIds, 2_000)] * 2


async def test_without_a_leader_no_node_is_asked() -> None:
    leaders = Leaders(failing(NotImplementedError()), request_timeout_ms=0)
    leaders.watch.set(NO_LEADER)
    with pytest.raises(ControllerUnavailable, match="no active controller answered"):
        await leaders.client.ask(DELETE)
    assert leaders.asked == []


async def test_what_names_too_much_is_not_sent() -> None:
    leaders, many = Leaders(failing(NotImplementedError())), 10_001
    changes = (ConfigChange(name="flush.ms", value="1"),) * many
    requests: list[RequestFor[object]] = [
        CreateTopics(topics=(NewTopic(name="t"),) * many),
        FindTopics(names=("t",) * many),
        DeleteTopics(topic_ids=(ID,) * many),
        CreatePartitions(topics=(NewPartitions(name="t", count=2),) * many),
        AlterConfigs(topics=(ConfigChanges(name="t", changes=changes),)),
        ElectLeaders(partitions=(("t", 0),) * many),
        AlterReassignments(wanted=(Reassignment(topic="t", partition=0, replicas=None),) * many),
        AlterGroupConfigs(groups=(ConfigChanges(name="g", changes=()),) * many),
    ]
    for request in requests:
        with pytest.raises(RequestTooLarge, match="at most 10000"):
            await leaders.client.ask(request)
    assert leaders.asked == []


async def test_what_takes_too_many_bytes_is_not_tried_again() -> None:
    rpc = RpcClient(cluster_id="c", node_id=BrokerId(1), shared_secret=None)

    async def answer(leader_id: BrokerId, attempt: int) -> object:
        long = FindTopics(names=("x" * REQUEST_BYTES_MAX,))
        return await rpc.call("localhost:1", long, timeout_ms=1000)

    leaders = Leaders(answer)
    with pytest.raises(RequestTooLarge, match="where 16777216 may be"):
        await leaders.client.ask(FindTopics(names=("x",)))
    assert len(leaders.asked) == 1
    await rpc.close()


# --- changes of the voters (KIP-853) ---


FOUR = NewVoter(voter_id=BrokerId(4), directory_id=directory_id("4"), address="host4:4")
OF_VOTERS: dict[type, Callable[[LeaderClient], Awaitable[VoterChangeResult]]] = {
    AddVoterRequest: lambda client: client.add_voter(FOUR),
    RemoveVoterRequest: lambda client: client.remove_voter(BrokerId(4), directory_id("4")),
    UpgradeKRaftVersionRequest: lambda client: client.upgrade_kraft_version(1),
}


def response(code: ErrorCode, message: str = "") -> VoterChangeResponse:
    return VoterChangeResponse(
        error_code=code, error_message=message, leader_id=BrokerId(3), leader_epoch=Epoch(2)
    )


@pytest.mark.parametrize("kind", OF_VOTERS)
async def test_the_leaders_answer_is_the_result(kind: type) -> None:
    codes = [ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT]

    async def answer(leader_id: BrokerId, attempt: int) -> object:
        return response(codes[attempt - 1], "late" if attempt > 1 else "")

    leaders = Leaders(answer)
    assert await OF_VOTERS[kind](leaders.client) == VoterChangeResult(error_code=ErrorCode.NONE)
    assert await OF_VOTERS[kind](leaders.client) == VoterChangeResult(
        error_code=ErrorCode.REQUEST_TIMED_OUT, error_message="late"
    )
    assert leaders.asked == [(2, kind, 4_000)] * 2


@pytest.mark.parametrize("kind", OF_VOTERS)
@pytest.mark.parametrize(
    "refusal",
    [response(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not here"), RpcFailed("refused", definite=True)],
)
async def test_a_change_that_was_certainly_not_made_is_asked_of_the_next_leader(
    kind: type, refusal: object
) -> None:
    async def answer(leader_id: BrokerId, attempt: int) -> object:
        if leader_id == 3:
            return response(ErrorCode.NONE)
        leaders.watch.set(BrokerId(3))
        if isinstance(refusal, Exception):
            raise refusal
        return refusal

    leaders = Leaders(answer)
    assert (await OF_VOTERS[kind](leaders.client)).error_code is ErrorCode.NONE
    assert leaders.leaders == [2, 3]


@pytest.mark.parametrize("kind", OF_VOTERS)
async def test_a_change_that_may_have_been_made_is_not_asked_for_again(kind: type) -> None:
    leaders = Leaders(failing(RpcFailed("no answer")))
    with pytest.raises(ControllerUnavailable, match="no answer"):
        await OF_VOTERS[kind](leaders.client)
    leaders.watch.set(BrokerId(1))
    leaders.local = ControllerDeposed("the leader of the quorum stops")
    with pytest.raises(ControllerUnavailable, match="stops"):
        await OF_VOTERS[kind](leaders.client)
    assert len(leaders.asked) == 1


async def test_a_leader_that_removes_itself_answers_although_it_leads_no_more() -> None:
    answers = asyncio.Event()

    async def answer(leader_id: BrokerId, attempt: int) -> object:
        await answers.wait()
        return response(ErrorCode.NONE)

    leaders = Leaders(answer)
    removal = leaders.client.remove_voter(BrokerId(2), directory_id("2"))
    removing = await leaders.asking(removal)
    leaders.watch.set(BrokerId(3))
    answers.set()
    assert await removing == VoterChangeResult(error_code=ErrorCode.NONE)
    assert len(leaders.asked) == 1


async def test_without_a_leader_the_change_waits_for_one() -> None:
    leaders = Leaders(failing(NotImplementedError()), request_timeout_ms=50)
    leaders.watch.set(BrokerId(1))
    leaders.local = NotController("this node does not lead")
    with pytest.raises(ControllerUnavailable, match="does not lead"):
        await leaders.client.upgrade_kraft_version(1)
