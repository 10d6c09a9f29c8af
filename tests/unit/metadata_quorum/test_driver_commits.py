"""What the driver does before, at and after the commit of a decision."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from quorumlog.metadata_quorum.controller import cluster_decisions
from quorumlog.metadata_quorum.controller import controller as facade
from quorumlog.metadata_quorum.controller.decision import Decision
from quorumlog.metadata_quorum.controller_requests import (
    AllocateProducerIds,
    CreateTopics,
    ProducerIdsReply,
    TopicResults,
)
from quorumlog.metadata_quorum.core import events
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.driver.active_controller import (
    ANSWERS_MAX,
    RECORDS_MAX,
    Remembered,
    RememberedAnswers,
)
from quorumlog.metadata_quorum.driver.dependencies import NotController
from quorumlog.metadata_quorum.image.records import MetadataRecord, NoOp, ProducerIds
from quorumlog.metadata_quorum.io.leader_client import LeaderClient, LeaderWatch
from quorumlog.metadata_quorum.io.metadata_quorum import EventLoopClock
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Offset
from tests.support.metadata_quorum.drivers import (
    Network,
    Voter,
    ask,
    codes,
    create,
    heartbeat,
    register,
    registration,
    until,
)

SESSION_S = 9.0


def producer_ids(next_producer_id: Any) -> ProducerIds:
    return ProducerIds(broker_id=BrokerId(1), broker_epoch=0, next_producer_id=next_producer_id)


def allocation(epoch: int) -> AllocateProducerIds:
    return AllocateProducerIds(broker_id=BrokerId(1), broker_epoch=epoch)


@asynccontextmanager
async def lone_voter(*topics: str) -> AsyncIterator[tuple[Network, Voter, int]]:
    """A network of one voter, in which broker 1 is registered; and its broker epoch."""
    async with Network(1) as network:
        epoch = await register(network)
        if topics:
            await network.ask(create(*topics))
        yield network, network.voters[1], epoch


@pytest.mark.jumping_time
async def test_an_answer_waits_for_the_commit_of_all_that_it_says_and_of_all_that_it_read() -> None:
    async with lone_voter() as (network, voter, _):
        voter.threads.hold()
        first = asyncio.create_task(network.ask(create("a", "b")))
        await until(lambda: voter.threads.held == 1)
        second = asyncio.create_task(network.ask(create("a")))  # refused, so without records
        await asyncio.sleep(1)
        assert not first.done()
        assert not second.done()
        assert voter.seen.image.topics == {}  # nor does anybody see it
        voter.threads.release()
        assert codes(await first) == ["NONE"] * 2
        assert codes(await second) == ["TOPIC_ALREADY_EXISTS"]
        assert [*voter.seen.image.topics] == ["a", "b"]


@pytest.mark.jumping_time
async def test_a_leader_warns_of_records_that_a_broker_may_lack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with lone_voter("a") as (network, *_):
        await network.ask(registration(1, incarnation_id="b"))  # by no clean stop
    assert "broker 1 may lack acknowledged records: the machine restarted" in caplog.text
    assert "No other broker held all of a-0" in caplog.text


@pytest.mark.jumping_time
async def test_a_leader_without_followers_refuses_nothing_by_what_it_knew() -> None:
    async with Network(3) as network:
        await register(network)
        await network.ask(create("a"))
        leader = await network.leader()
        for node_id in {*network.voters} - {leader.node_id}:
            await network.kill(node_id)
        refused = asyncio.create_task(ask(leader.driver, create("a")))
        with pytest.raises(NotController):  # it resigns; until then, another may have deleted "a"
            await refused


@pytest.mark.jumping_time
async def test_a_client_is_not_answered_one_record_before_its_own_is_committed() -> None:
    async with lone_voter("a") as (network, voter, epoch):
        voter.threads.hold()
        one_record = asyncio.create_task(network.ask(allocation(epoch)))
        await until(lambda: voter.threads.held == 1)
        assert voter.log.end_offset == voter.quorum.state.log.high_watermark + 1
        refused = asyncio.create_task(network.ask(create("a")))  # has the answers looked at
        await asyncio.sleep(1)
        assert not one_record.done()
        assert not refused.done()
        voter.threads.release()
        await asyncio.gather(one_record, refused)


@pytest.mark.jumping_time
async def test_a_flush_vouches_for_nothing_that_was_appended_while_it_ran() -> None:
    async with lone_voter() as (network, voter, _):
        durable: list[bool] = []
        advance = voter.committed.advance

        def check(high_watermark: int) -> None:
            durable.append(high_watermark <= voter.log.flushed_offset)
            advance(high_watermark)  # type: ignore[arg-type]

        voter.committed.advance = check  # type: ignore[method-assign]
        voter.threads.hold()
        first = asyncio.create_task(network.ask(create("a")))
        await until(lambda: voter.threads.held == 1)
        second = asyncio.create_task(network.ask(create("b")))
        await asyncio.sleep(1)
        assert voter.log.end_offset > voter.log.flushed_offset
        voter.threads.release()
        await asyncio.gather(first, second)
        assert durable
        assert all(durable)


@pytest.mark.jumping_time
async def test_the_controller_takes_over_only_when_the_start_of_its_epoch_is_committed() -> None:
    network = Network(1)
    voter = Voter(1, Quorum, network)
    network.voters = {1: voter}
    voter.threads.hold()
    await until(lambda: voter.driver.leader_id == 1)
    early = asyncio.create_task(ask(voter.driver, registration(1)))
    await asyncio.sleep(1)
    assert not voter.driver.is_active_controller
    assert not early.done()
    voter.threads.release()
    reply = await early
    assert voter.driver.is_active_controller
    assert (reply.error_code, voter.listener.count) == (ErrorCode.NONE, 1)
    await voter.stop()


@pytest.mark.jumping_time
async def test_a_resignation_is_answered_when_the_other_voters_know_it() -> None:
    async with Network(3) as network:
        leader = await network.leader()
        known = asyncio.get_running_loop().create_future()
        leader.driver.resign(known)
        assert not known.done()
        assert await asyncio.wait_for(known, 1) is None
        assert not leader.quorum.resignation_pending
        assert not leader.driver.is_active_controller


@pytest.mark.jumping_time
async def test_the_core_hears_of_an_append_before_anything_else() -> None:
    async with Network(3) as network:
        await register(network)
        leader = await network.leader()
        leader.driver._is_writing = True  # both wait in the inbox
        created = asyncio.create_task(ask(leader.driver, create("a")))
        await asyncio.sleep(0)
        leader.driver.feed(events.ResignRequested())
        leader.driver._written(EventLoopClock.now_ms(), "election state", None)
        with pytest.raises(NotController):
            await created
        assert not leader.failure.done()
        await network.leader()


@pytest.mark.parametrize("voters", [1, 3])
@pytest.mark.jumping_time
async def test_a_broker_that_falls_silent_is_fenced_when_its_session_is_over(voters: int) -> None:
    async with Network(voters) as network:
        epochs = {1: await register(network, 1), 2: await register(network, 2)}
        leader = await network.leader()
        loop = asyncio.get_running_loop()
        began_s = loop.time()

        async def live() -> None:
            while True:
                await network.ask(heartbeat(2, epochs[2]))
                await asyncio.sleep(2)

        living = asyncio.create_task(live())
        await until(lambda: leader.seen.image.brokers[BrokerId(1)].fenced)
        assert SESSION_S <= loop.time() - began_s < SESSION_S + 1
        await asyncio.sleep(3 * SESSION_S)
        assert not leader.seen.image.brokers[BrokerId(2)].fenced
        living.cancel()


# --- repeated requests ---


@pytest.mark.jumping_time
async def test_a_request_that_is_repeated_before_the_commit_gets_the_first_ones_answer() -> None:
    async with lone_voter() as (_, voter, _):
        voter.threads.hold()
        asks = []
        for n in range(3):
            asks.append(asyncio.create_task(ask(voter.driver, create("a"), "client-1")))
            await asyncio.sleep(2)
            assert not asks[n].done()
        end_offset = voter.log.end_offset
        voter.threads.release()
        answers = await asyncio.gather(*asks)
        assert codes(answers[0]) == ["NONE"]
        late = await ask(voter.driver, create("a"), "client-1")  # it was answered already
        assert answers == [late] * 3
        assert voter.log.end_offset == end_offset
        another = await ask(voter.driver, create("a"), "client-2")
        assert codes(another) == ["TOPIC_ALREADY_EXISTS"]


@pytest.mark.jumping_time
async def test_a_request_that_was_refused_is_decided_again() -> None:
    async with Network(1) as network:
        (voter,) = network.voters.values()
        first = codes(await ask(voter.driver, create("a"), "client-1"))
        assert first != ["NONE"]  # no broker is there yet
        await register(network)
        assert codes(await ask(voter.driver, create("a"), "client-1")) == ["NONE"]


def test_answers_are_remembered_within_limits() -> None:
    remembered = RememberedAnswers()
    for n in range(ANSWERS_MAX + 1):
        remembered.add(f"small-{n}", Remembered(Offset(n), n, 1))
    assert remembered.get("small-0") is None
    assert remembered.get("small-1") == Remembered(Offset(1), 1, 1)
    remembered.add("large-1", Remembered(Offset(1), 1, RECORDS_MAX))
    assert remembered.get(f"small-{ANSWERS_MAX}") is None
    assert remembered.get("large-1") is not None
    assert remembered.get(None) is None
    remembered.add("x" * 101, Remembered(Offset(1), 1, 1))
    assert remembered.get("x" * 101) is None


@pytest.mark.jumping_time
async def test_a_client_repeats_a_request_under_the_same_id_and_no_other() -> None:
    ids: list[str] = []

    async def ask_local(request: object, request_id: str) -> object:
        ids.append(request_id)
        if len(ids) < 3:
            raise NotController("not yet")
        return TopicResults(results=())

    leader = LeaderWatch()
    leader.set(BrokerId(1))
    for _ in range(2):
        client = LeaderClient(
            node_id=BrokerId(1),
            leader=leader,
            ask_local=ask_local,
            ask_remote=None,  # type: ignore[arg-type]  # this node leads
            request_timeout_ms=60_000,
            attempt_timeout_ms=2_000,
        )
        await client.ask(CreateTopics(topics=()))
        await client.ask(CreateTopics(topics=()))
    assert len(ids) == 6
    assert ids[0] == ids[1] == ids[2]
    assert len({*ids}) == 4


# --- wrong decisions ---


@pytest.mark.parametrize(
    "wrong", [producer_ids(-5), producer_ids(1 + 2j)], ids=["it does not fit", "it has no bytes"]
)
@pytest.mark.parametrize("voters", [1, 3])
@pytest.mark.jumping_time
async def test_a_decision_that_does_not_fit_is_answered_and_never_written(
    voters: int, wrong: MetadataRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Network(voters) as network:
        ids = allocation(await register(network))
        nodes = network.voters.values()
        claims = sum(voter.listener.count for voter in nodes)
        decided = Decision(
            response=ProducerIdsReply(error_code=ErrorCode.NONE), records=(NoOp(), wrong)
        )
        with monkeypatch.context() as patched:
            patched.setattr(cluster_decisions, "decide_producer_ids", lambda *_: decided)
            for _ in range(4):  # a client may ask each next controller the same
                reply = await network.ask(ids)
                assert reply.error_code is ErrorCode.UNKNOWN_SERVER_ERROR
        assert not any(voter.failure.done() for voter in nodes)
        good = await network.ask(ids)
        assert (good.error_code, good.block.first) == (ErrorCode.NONE, 0)
        assert codes(await network.ask(create("a"))) == ["NONE"]
        for voter in nodes:
            assert wrong not in voter.records()
            assert NoOp() not in voter.records()
        assert sum(voter.listener.count for voter in nodes) > claims


@pytest.mark.jumping_time
async def test_a_decision_that_cannot_be_made_is_answered_in_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("planted")

    async with lone_voter() as (network, _, epoch):
        for request in (registration(1), heartbeat(1, epoch), create("a")):
            with monkeypatch.context() as patched:
                patched.setattr(facade.Controller, "decide", fail)
                response = await network.ask(request)
            [result] = response.results if request == create("a") else [response]
            assert result.error_code is ErrorCode.UNKNOWN_SERVER_ERROR
        assert codes(await network.ask(create("a"))) == ["NONE"]
