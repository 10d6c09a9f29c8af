"""Each replica waits for something that will come: a fetch, a deadline, a request or disk work."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from quorumlog.broker.following.core.session_client import SessionClient
from quorumlog.broker.following.io.replica_fetcher import ReplicaFetcher
from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.effects import Effect
from quorumlog.broker.partitions.core.isr_rules import IsrRules
from quorumlog.broker.partitions.core.partition import KAFKA_RULES
from quorumlog.broker.partitions.core.roles import Leader as Role
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.replica_directories import ReplicaReports
from quorumlog.broker.replicas import Replicas
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch
from quorumlog.wire.codec.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from quorumlog.wire.io.connection import Done, KafkaConnection
from tests.support.broker.one_broker import AT, TOPIC_ID, follow, from_leader, one_broker, publish
from tests.support.broker.replicas import ALL_ALIVE, BROKERS, LAG_TIME_MS, Replica, image
from tests.support.waiting import loop_turns, until
from tests.unit.broker.test_cutting_a_log import begin_cut, follower

SESSION: Final = 7


class Leader:
    """A connection to a leader that answers with an error, or parks all fetches but the first."""

    def __init__(self, error_code: ErrorCode) -> None:
        self.asked = 0
        self._error_code: Final = error_code

    async def open(self, *_address: object, **_options: object) -> "Leader":
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return self

    def request(self, _request: FetchRequest, done: Done) -> None:
        self.asked += 1
        if self._error_code is ErrorCode.NONE and self.asked > 1:
            return
        answer = PartitionData(partition_index=0, error_code=self._error_code)
        topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[answer])
        response = FetchResponse(session_id=SESSION, responses=[topic])
        asyncio.get_running_loop().call_soon(done, response)

    async def close(self) -> None:
        pass


@asynccontextmanager
async def fetching(
    directory: Path, monkeypatch: pytest.MonkeyPatch, error_code: ErrorCode = ErrorCode.NONE
) -> AsyncIterator[tuple[Replicas, Leader]]:
    """Follow a leader; begin when the second fetch has been sent."""
    leader = Leader(error_code)
    monkeypatch.setattr(KafkaConnection, "open", leader.open)
    async with one_broker(directory, isr=(1, 2)) as replicas:
        replicas.registered(ALL_ALIVE[BROKERS[0]].broker_epoch)
        replicas.check_progress()
        follow(replicas)
        replicas.check_progress()
        await until(lambda: leader.asked > 1)
        yield replicas, leader


def fetcher_of(replicas: Replicas) -> ReplicaFetcher:
    [fetcher] = replicas._fetchers._fetchers.values()
    return fetcher


async def test_a_leader_elected_during_a_truncation_is_fetched_from(tmp_path: Path) -> None:
    async with follower(tmp_path) as (replicas, queue):
        begin_cut(replicas, queue)
        publish(replicas, image(3, 2, 2, (1, 2, 3)))
        replicas.check_progress()
        queue.release()
        replicas.check_progress()


async def test_the_leader_has_the_position_or_gets_it_by_the_next_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fetching(tmp_path, monkeypatch) as (replicas, _):
        replicas.check_progress()
        follow(replicas)(from_leader(0))  # applied by the test, not by the fetcher
        with pytest.raises(InvariantViolation, match="orders-0: the leader has its position"):
            replicas.check_progress()
        fetcher_of(replicas).touch(replicas.drivers[AT])
        replicas.check_progress()


async def test_a_fetcher_follows_each_partition_in_its_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fetching(tmp_path, monkeypatch) as (replicas, _):
        fetchers, fetcher = replicas._fetchers, fetcher_of(replicas)
        [followed] = fetcher._followed.values()
        damages: list[tuple[object, str, object, str]] = [
            (followed, "leader_epoch", Epoch(0), "it is followed in its epoch"),
            (fetcher, "_followed", {}, "a fetcher follows it"),
            (fetcher, "_loops", {}, "its fetcher runs"),
            (fetchers, "_fetchers", {}, "a fetcher of leader 2"),
            (fetchers, "_lanes", {}, "its leader 2 is followed"),
        ]
        for owner, name, damaged, rule in damages:
            with monkeypatch.context() as planted:
                planted.setattr(owner, name, damaged)
                with pytest.raises(InvariantViolation, match=f"orders-0: {rule}"):
                    replicas.check_progress()
            replicas.check_progress()


async def test_a_partition_that_backs_off_has_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fetching(tmp_path, monkeypatch, ErrorCode.UNKNOWN_TOPIC_ID) as (replicas, _):
        for _ in range(100):
            await asyncio.sleep(0)
            replicas.check_progress()

        async def wait_for_ever(fetcher: ReplicaFetcher) -> None:
            await fetcher._changed.wait()

        with monkeypatch.context() as planted:
            planted.setattr(ReplicaFetcher, "_wait_for_work", wait_for_ever)
            fetcher_of(replicas).wake()
            await until(fetcher_of(replicas)._changed.sleeps)
            with pytest.raises(InvariantViolation, match="orders-0: a fetch at or before"):
                replicas.check_progress()
        fetcher_of(replicas).wake()


async def test_a_fetcher_waits_only_for_flushes_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fetching(tmp_path, monkeypatch) as (replicas, _):
        flushing = fetcher_of(replicas)._flushing
        flushing.add((TOPIC_ID, AT.partition))
        with pytest.raises(InvariantViolation, match="a flush that a fetcher waits for"):
            replicas.check_progress()
        flushing.clear()


def test_a_session_that_forgets_a_partition_after_its_back_off_is_found() -> None:
    session: SessionClient[str, int] = SessionClient()
    session.changes(0, ["a", "b"], {"a": 1, "b": 1}.get)
    session.answered(ErrorCode.NONE, SESSION)
    assert (session.covers("a", 1), session.covers("a", 2)) == (True, False)
    session.touch("a")
    session.changes(0, ["a", "b"], {"b": 1}.get)  # it backs off
    assert session.covers("a", 1)
    session._touched.clear()
    assert (session.covers("a", 1), session.covers("b", 1)) == (False, True)


async def test_a_proposal_of_unknown_outcome_is_repeated_by_a_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_broker(tmp_path) as replicas:
        publish(replicas, image(1, 1, 1, (1, 2), replicas=(1, 2)))
        partition = replicas.drivers[AT].partition
        role = cast(Any, partition.state.role)
        partition._leadership._isr.propose(role, frozenset({BROKERS[0]}))
        with pytest.raises(InvariantViolation, match="its ISR proposal is under way"):
            replicas.check_progress()
        role.pending.is_in_flight = False
        replicas.check_progress()
        monkeypatch.setattr(type(partition), "needs_ticks", lambda _: False)
        with pytest.raises(InvariantViolation, match="a tick repeats its proposal"):
            replicas.check_progress()
        role.pending = None


class _NeverRepeats(IsrRules):
    def maybe_shrink(self, role: Role, now_ms: int) -> Sequence[Effect]:
        return () if role.pending else super().maybe_shrink(role, now_ms)


@pytest.mark.parametrize("isr", [IsrRules, _NeverRepeats])
def test_a_tick_that_repeats_no_proposal_breaks_an_invariant(isr: type[IsrRules]) -> None:
    replica = Replica(BROKERS[0], replace(KAFKA_RULES, isr=isr))
    joined = events.PartitionPublished(image=image(1, 1, 1, (1, 2)), brokers=ALL_ALIVE)
    replica.step(0, joined)
    replica.append(0, [0])
    replica.step(LAG_TIME_MS + 1, events.Ticked())
    assert len(replica.proposals) == 1
    lost = events.IsrAnswered(asked_epoch=Epoch(1), error_code=ErrorCode.REQUEST_TIMED_OUT)
    replica.step(LAG_TIME_MS + 2, lost)
    if isr is IsrRules:
        replica.step(LAG_TIME_MS + 3, events.Ticked())
        assert len(replica.proposals) == 2
    else:
        with pytest.raises(InvariantViolation, match="9: a tick repeats an ISR proposal"):
            replica.step(LAG_TIME_MS + 3, events.Ticked())


async def test_a_report_and_a_move_have_a_task_that_is_awake(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        replicas.registered(ALL_ALIVE[BROKERS[0]].broker_epoch)
        await loop_turns(5)
        replicas.check_progress()
        reports: ReplicaReports[Any] = replicas._directories._assignments
        reports._to_look_at[AT] = None
        with pytest.raises(InvariantViolation, match="AssignReplicasToDirs"):
            replicas.check_progress()
        reports._to_look_at.clear()
        move = cast(Any, SimpleNamespace(is_waiting=False))
        replicas.moves.table.moves[AT] = move
        with pytest.raises(InvariantViolation, match="moves between directories"):
            replicas.check_progress()
        move.is_waiting = True
        replicas.check_progress()
        replicas.moves.table.moves.clear()


async def test_a_replica_whose_log_a_thread_has_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with follower(tmp_path) as (replicas, queue):
        driver: PartitionDriver = begin_cut(replicas, queue)[0]
        with monkeypatch.context() as planted:
            planted.setattr(replicas._fetchers, "_lanes", {})
            assert driver.is_truncating
            replicas.check_progress()
