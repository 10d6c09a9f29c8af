"""A change of the voters: how it reaches the leader, and when it is asked for again (KIP-853)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from quorumlog.metadata_quorum.controller_client import (
    ControllerUnavailable,
    NewVoter,
    VoterChangeResult,
)
from quorumlog.metadata_quorum.core.messages import (
    AddVoterRequest,
    RemoveVoterRequest,
    UpgradeKRaftVersionRequest,
    VoterChangeResponse,
)
from quorumlog.metadata_quorum.driver.seams import ControllerDeposed, NotController
from quorumlog.metadata_quorum.io.leader_client import LeaderClient
from quorumlog.metadata_quorum.io.rpc_client import RpcFailed
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch
from tests.support.metadata_quorum.voters import directory_id
from tests.unit.metadata_quorum.test_controller_client import Leaders

FOUR = NewVoter(voter_id=BrokerId(4), directory_id=directory_id("4"), address="host4:4")
CHANGES: dict[type, Callable[[LeaderClient], Awaitable[VoterChangeResult]]] = {
    AddVoterRequest: lambda client: client.add_voter(FOUR),
    RemoveVoterRequest: lambda client: client.remove_voter(BrokerId(4), directory_id("4")),
    UpgradeKRaftVersionRequest: lambda client: client.upgrade_kraft_version(1),
}


def response(code: ErrorCode, message: str = "") -> VoterChangeResponse:
    return VoterChangeResponse(
        error_code=code, error_message=message, leader_id=BrokerId(3), leader_epoch=Epoch(2)
    )


@pytest.mark.parametrize("kind", CHANGES)
async def test_the_leaders_answer_is_the_result(kind: type) -> None:
    codes = [ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT]

    async def answer(leader_id: BrokerId, attempt: int) -> object:
        return response(codes[attempt - 1], "late" if attempt > 1 else "")

    leaders = Leaders(answer)
    assert await CHANGES[kind](leaders.client) == VoterChangeResult(error_code=ErrorCode.NONE)
    assert await CHANGES[kind](leaders.client) == VoterChangeResult(
        error_code=ErrorCode.REQUEST_TIMED_OUT, error_message="late"
    )
    assert leaders.asked == [(2, kind, 4_000)] * 2


@pytest.mark.parametrize("kind", CHANGES)
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
    assert (await CHANGES[kind](leaders.client)).error_code is ErrorCode.NONE
    assert [leader_id for leader_id, _, _ in leaders.asked] == [2, 3]


@pytest.mark.parametrize("kind", CHANGES)
async def test_a_change_that_may_have_been_made_is_not_asked_for_again(kind: type) -> None:
    async def answer(leader_id: BrokerId, attempt: int) -> object:
        raise RpcFailed("no answer")

    leaders = Leaders(answer)
    with pytest.raises(ControllerUnavailable, match="no answer"):
        await CHANGES[kind](leaders.client)
    leaders.watch.set(BrokerId(1))
    leaders.local = ControllerDeposed("the leader of the quorum stops")
    with pytest.raises(ControllerUnavailable, match="stops"):
        await CHANGES[kind](leaders.client)
    assert len(leaders.asked) == 1


async def test_a_leader_that_removes_itself_answers_although_it_leads_no_more() -> None:
    answers = asyncio.Event()

    async def answer(leader_id: BrokerId, attempt: int) -> object:
        await answers.wait()
        return response(ErrorCode.NONE)

    leaders = Leaders(answer)
    removal = asyncio.create_task(leaders.client.remove_voter(BrokerId(2), directory_id("2")))
    while not leaders.asked:
        await asyncio.sleep(0)
    leaders.watch.set(BrokerId(3))
    answers.set()
    assert (await removal).error_code is ErrorCode.NONE
    assert len(leaders.asked) == 1


async def test_without_a_leader_the_change_waits_for_one() -> None:
    async def answer(leader_id: BrokerId, attempt: int) -> object:
        return response(ErrorCode.NONE)

    leaders = Leaders(answer, request_timeout_ms=50)
    leaders.watch.set(BrokerId(1))
    leaders.local = NotController("this node does not lead")
    with pytest.raises(ControllerUnavailable, match="does not lead"):
        await leaders.client.upgrade_kraft_version(1)
