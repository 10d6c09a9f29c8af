"""A shard drives any coordinator: here one that adds numbers, and knows nothing of groups."""

import asyncio
from dataclasses import dataclass
from typing import Any

from quorumlog.broker.coordination.core import events
from quorumlog.broker.coordination.core.coordinator import Effect
from quorumlog.broker.coordination.core.effects import AnswerRequest, AppendRecords
from quorumlog.broker.coordination.io.coordinator_shard import CoordinatorShard
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.groups.memory_log import WHERE, MemoryLog


@dataclass(frozen=True)
class Add:
    """Adds a number; answered with the committed sum."""

    number: int

    def refuse(self, error_code: ErrorCode) -> int | ErrorCode:
        return error_code


class Sum:
    """A record is a number; each is answered when it is committed."""

    def __init__(self) -> None:
        self.next_deadline_ms = 1 << 40
        self.not_written = {ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE}
        self.committed = 0
        self.writing: dict[int, int] = {}

    def replay_encoded(self, key: bytes, value: bytes | None) -> None:
        self.committed += int(key)

    def encode(self, record: int) -> tuple[bytes, bytes | None]:
        return str(record).encode(), None

    def loaded(self, now_ms: int, log_start_offset: int, log_end_offset: int) -> None:
        pass

    def step(self, now_ms: int, event: Any) -> list[Effect]:
        match event:
            case events.RequestReceived(request_id=request_id, request=Add(number=number)):
                self.writing[request_id] = number
                return [AppendRecords(write_id=request_id, records=(number,))]
            case events.WriteCommitted(write_id=write_id):
                self.committed += self.writing.pop(write_id)
                return [AnswerRequest(request_id=write_id, result=self.committed)]
            case events.WriteFailed(write_id=write_id, error_code=error_code):
                del self.writing[write_id]
                return [AnswerRequest(request_id=write_id, result=error_code)]
            case _:
                return []


async def loaded(log: MemoryLog, lost: list[Any]) -> CoordinatorShard[Sum]:
    def fail(violation: InvariantViolation) -> None:
        raise violation

    shard = CoordinatorShard(
        WHERE,
        replicas=log,
        coordinator=Sum(),
        load_buffer_bytes=1000,
        now_ms=lambda: 0,
        on_fatal=fail,
        on_lost=lost.append,
    )
    async with asyncio.timeout(5):
        while not isinstance(shard.coordinator, Sum):
            await asyncio.sleep(0)
    return shard


async def test_a_request_is_answered_once_its_record_is_committed() -> None:
    log = MemoryLog()
    shard = await loaded(log, [])
    log.commits_at_once = False
    first, second = shard.ask(Add(1)), shard.ask(Add(2))
    await asyncio.sleep(0)
    assert not first.done()
    log.commit_all()
    assert [await first, await second] == [1, 3]
    shard.close()


async def test_the_next_shard_loads_what_was_committed() -> None:
    log = MemoryLog()
    shard = await loaded(log, [])
    await shard.ask(Add(5))
    shard.close()
    successor = await loaded(log, [])
    assert await successor.ask(Add(1)) == 6
    successor.close()


async def test_a_refused_append_has_the_coordinators_own_error() -> None:
    log = MemoryLog()
    shard = await loaded(log, [])
    log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    assert await shard.ask(Add(1)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    shard.close()


async def test_a_write_of_unknown_outcome_ends_the_shard() -> None:
    log, lost = MemoryLog(), list[Any]()
    shard = await loaded(log, lost)
    log.commits_at_once = False
    answer = shard.ask(Add(1))
    log.fail_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert await answer is ErrorCode.NOT_COORDINATOR
    assert lost == [shard]
