"""Rounds of a replica fetcher: the next fetch is sent in the callback of the last response."""

import asyncio
import random
from pathlib import Path

import pytest

from quorumlog.broker.fetching.io import fetches as fetches_module
from quorumlog.broker.fetching.io.delayed_fetch import DelayedFetch
from quorumlog.broker.fetching.io.fetches import Fetches
from quorumlog.broker.following.io import replica_fetcher
from quorumlog.broker.following.io.replica_fetcher import TAKEN_AT_ONCE
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, Offset
from quorumlog.wire.codec.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from quorumlog.wire.io.connection import Done, KafkaConnection
from tests.support.broker.one_broker import AT, append, one_broker
from tests.support.broker.replica_calls import fetch_from
from tests.unit.broker.test_follower_sessions import FollowerTwo
from tests.unit.broker.test_replica_fetcher import TOPIC_ID, fetcher, follow


class RoundLeader:
    """A leader that answers each fetch when the test says so."""

    def __init__(self) -> None:
        self.fetches: list[tuple[FetchRequest, Done]] = []

    async def open(self, *_address: object, **_options: object) -> "RoundLeader":
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return self

    def request(self, request: FetchRequest, done: Done) -> None:
        self.fetches.append((request, done))

    def answer(self, *partitions: PartitionData, error_code: int = 0) -> None:
        topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[*partitions])
        response = FetchResponse(session_id=7, error_code=error_code, responses=[topic])
        self.fetches[-1][1](response)

    async def close(self) -> None:
        pass

    async def asked(self, count: int) -> None:
        while len(self.fetches) < count:
            await asyncio.sleep(0)


async def test_a_small_response_is_followed_by_the_next_fetch_in_the_same_callback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = RoundLeader()
    monkeypatch.setattr(KafkaConnection, "open", leader.open)
    failures: list[BaseException] = []
    fetches, [followed] = fetcher(failed=failures.append), follow(1)
    fetches.set_followed([followed])
    await leader.asked(1)
    for count in range(1, 6):  # no turn of the loop between two fetches
        leader.answer(PartitionData(partition_index=0))
        assert len(leader.fetches) == count + 1
    assert leader.fetches[-1][0].session_epoch == 5
    many = [PartitionData(partition_index=index) for index in range(TAKEN_AT_ONCE)]
    leader.answer(*many)
    assert len(leader.fetches) == 6  # applied in slices, by the task
    await leader.asked(7)
    leader.answer(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    await leader.asked(8)
    assert leader.fetches[-1][0].session_epoch == 0
    await fetches.stop()
    leader.answer(PartitionData(partition_index=0))  # no task waits for it any more
    assert (len(leader.fetches), failures) == (8, [])


async def test_a_large_response_keeps_its_records_until_its_last_slice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader, taken = RoundLeader(), list[bytes]()
    monkeypatch.setattr(KafkaConnection, "open", leader.open)

    def note(_followed: object, _asked: object, answer: PartitionData, **_options: object) -> bool:
        taken.append(bytes(memoryview(answer.records)))  # type: ignore[arg-type]
        return False

    monkeypatch.setattr(replica_fetcher, "take_answer", note)
    fetches, buffer = fetcher(), bytearray(b"records")
    fetches.set_followed(follow(TAKEN_AT_ONCE))
    await leader.asked(1)
    leader.answer(
        *(
            PartitionData(partition_index=index, records=memoryview(buffer))
            for index in range(TAKEN_AT_ONCE)
        )
    )
    buffer[:] = b"another"  # the connection reads on into it
    await leader.asked(2)
    assert taken == [b"records"] * TAKEN_AT_ONCE
    await fetches.stop()


async def test_a_violation_in_a_round_ends_the_fetcher_by_its_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader, failures = RoundLeader(), list[BaseException]()
    monkeypatch.setattr(KafkaConnection, "open", leader.open)

    def broken(*_asked: object, **_options: object) -> bool:
        raise InvariantViolation("planted")

    monkeypatch.setattr(replica_fetcher, "take_answer", broken)
    fetches = fetcher(failed=failures.append)
    fetches.set_followed(follow(1))
    await leader.asked(1)
    leader.answer(PartitionData(partition_index=0))
    while not failures:
        await asyncio.sleep(0)
    assert [str(failure) for failure in failures] == ["planted"]
    await fetches.stop()


async def test_a_repeated_fetch_is_the_fetch_of_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers move the log on, or fail, so that the partition is left out for a while."""

    async def requests_of() -> list[object]:
        leader, sent = RoundLeader(), list[object]()
        monkeypatch.setattr(KafkaConnection, "open", leader.open)
        fetches, [followed] = fetcher(), follow(1)
        state = followed.driver.partition.state
        fetches.set_followed([followed])
        for count in range(1, 30):
            await leader.asked(count)
            request = leader.fetches[-1][0]
            sent.append((request.session_id, request.session_epoch, repr(request.topics)))
            error_code = 3 if count % 7 == 0 else 0
            if not error_code:
                state.log_end_offset = Offset(state.log_end_offset + count % 3)
            leader.answer(PartitionData(partition_index=0, error_code=error_code))
        await fetches.stop()
        return sent

    repeated = await requests_of()
    monkeypatch.setattr(replica_fetcher.ReplicaFetcher, "_repetition", lambda *_: None)
    assert await requests_of() == repeated


async def test_the_answer_in_one_step_is_the_answer_of_all_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower waits, and gets one batch or several; it may be behind, or take few bytes."""

    async def answers_of(directory: Path) -> list[object]:
        draw, told, offset, end = random.Random(7), list[object](), 0, 0
        async with one_broker(directory, isr=(1, 2)) as replicas:
            follower = FollowerTwo(replicas)
            await follower.fetch()
            for _ in range(60):
                follower.names(offset)
                waiting = asyncio.ensure_future(follower.fetch(max_wait_ms=60_000))
                await asyncio.sleep(0)
                for _ in range(draw.choice((1, 1, 3))):
                    append(replicas)
                    end += 1
                [found] = await waiting
                told.append((found._replace(records=()), [bytes(one) for one in found.records]))
                told.append((dict(follower.session.unsettled), follower.session.waiting))
                if draw.random() < 0.8:  # or it lost the answer
                    offset = end
        return told

    answered, in_one_step = 0, Fetches._answers_newest

    def counted(fetches: Fetches, delayed: DelayedFetch) -> bool:
        nonlocal answered
        is_answered = in_one_step(fetches, delayed)
        answered += is_answered
        return is_answered

    monkeypatch.setattr(Fetches, "_answers_newest", counted)
    short = await answers_of(tmp_path / "short")
    assert answered >= 30
    monkeypatch.setattr(Fetches, "_answers_newest", lambda _fetches, _delayed: False)
    assert await answers_of(tmp_path / "long") == short


async def test_a_fetch_that_waits_again_is_answered_as_a_new_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower repeats its fetch: it is in time or late, diverges, or its client goes away."""
    waited_again = 0

    async def answers_of(directory: Path) -> list[object]:
        nonlocal waited_again
        draw, told, offset, end = random.Random(11), list[object](), 0, 0
        async with one_broker(directory, isr=(1, 2)) as replicas:
            follower = FollowerTwo(replicas)
            await follower.fetch()
            session, state = follower.session, replicas.drivers[AT].partition.state
            spec, last = follower.spec(60_000), None
            for _ in range(200):
                if draw.random() < 0.1:  # the records come first
                    append(replicas)
                    end += 1
                [fetch] = spec.partitions = [one.fetch for one in session.partitions.values()]
                fetch.topic_id = replicas.drivers[AT].topic_id
                fetch.fetch_offset = Offset(offset)
                fetch.last_fetched_epoch = Epoch(9 if draw.random() < 0.1 else -1)
                session.unsettled[fetch.key] = True
                found = fetch_from(replicas, spec)
                waited_again += session.waiting is not None and session.waiting is last
                last = session.waiting
                if isinstance(found, asyncio.Future):
                    if draw.random() < 0.1:
                        found.cancel()
                        await asyncio.sleep(0)
                        continue
                    for _ in range(draw.choice((1, 1, 3))):
                        append(replicas)
                        end += 1
                    found = await found
                told += [
                    (one._replace(records=()), [bytes(chunk) for chunk in one.records])
                    for one in found
                ]
                told.append((dict(session.unsettled), session.waiting, state.high_watermark))
                if draw.random() < 0.8:  # or it lost the answer
                    offset = end
            told.append(len(replicas.fetches._purgatory.deadlines))
        return told

    short = await answers_of(tmp_path / "short")
    assert waited_again >= 50
    monkeypatch.setattr(fetches_module, "last_fetch", lambda _spec, _session: None)
    waited_again = 0
    assert await answers_of(tmp_path / "long") == short
    assert waited_again == 0
