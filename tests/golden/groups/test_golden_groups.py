"""Stories of a group, as golden scripts (`tests.support.golden`).

`<now_ms> <what> <arguments> name=value`; requests are numbered in order, as are writes.
"""

from pathlib import Path
from typing import assert_never

import pytest

from quorumlog.broker.groups.core import events
from quorumlog.broker.groups.core.consumer.records import ConsumerGroupRecord
from quorumlog.broker.groups.core.consumer.requests import HeartbeatResult
from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.effects import (
    AdvanceLogStart,
    AnswerRequest,
    AppendRecords,
    Effect,
    MakeTarget,
    MatchTopics,
    VerifyTransaction,
    WriteMarker,
)
from quorumlog.broker.groups.core.records import GroupRecord, LogRecord
from quorumlog.broker.groups.core.requests import (
    CommitResult,
    JoinResult,
    LeaveResult,
    Request,
    Result,
    SyncResult,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support import golden
from tests.support.groups.coordination import SETTINGS, beat, commit, join, leave, sync


class Story:
    def __init__(self) -> None:
        self.coordinator = GroupCoordinator(SETTINGS)
        self.coordinator.loaded(0)
        self.log: list[LogRecord] = []
        self.writes: dict[int, tuple[LogRecord, ...]] = {}
        self.requests = 0

    def run(self, command: str) -> str:
        time, what, *words = command.split()
        names = [word for word in words if "=" not in word]
        values = dict(word.split("=") for word in words if "=" in word)
        now_ms = int(time)
        if what == "failover":
            self.coordinator = GroupCoordinator(SETTINGS)
            for record in self.log:
                self.coordinator.replay(record)
            self.coordinator.loaded(now_ms)
            self.writes.clear()
            return self.state()
        effects = self.coordinator.step(now_ms, self.event(what, names, values))
        return "\n".join([*(self.show(effect) for effect in effects), self.state()])

    def event(self, what: str, names: list[str], values: dict[str, str]) -> events.Event:
        if what == "tick":
            return events.Ticked()
        if what == "written":
            write_id = int(names[0])
            self.log += self.writes.pop(write_id)
            return events.WriteEnded(write_id=write_id)
        if what == "failed":
            del self.writes[int(names[0])]
            return events.WriteEnded(write_id=int(names[0]), error_code=ErrorCode[names[1]])
        self.requests += 1
        request = self.request(what, names, values)
        return events.RequestReceived(request_id=self.requests, request=request)

    def request(self, what: str, names: list[str], values: dict[str, str]) -> Request:
        name, instance = names[0], values.pop("instance", None)
        match what:
            case "new":
                must_ask = values.pop("knows_id", "no") == "no"
                return join(
                    new_member_id=name,
                    group_instance_id=instance,
                    requires_known_member_id=must_ask,
                )
            case "join":
                return join(name, group_instance_id=instance)
            case "sync":
                return sync(
                    name, int(names[1]), **{key: val.encode() for key, val in values.items()}
                )
            case "beat":
                return beat(name, int(names[1]), instance)
            case "leave":
                return leave(*names)
            case "commit":
                return commit(int(names[2]), name, int(names[1]))
            case _:
                raise ValueError(what)

    def show(self, effect: Effect) -> str:
        match effect:
            case AnswerRequest(request_id=request_id, result=result):
                return f"#{request_id} {show_result(result)}"
            case AppendRecords(write_id=write_id, records=records):
                self.writes[write_id] = records
                return f"write {write_id}: " + "; ".join(map(show_record, records))
            case AdvanceLogStart(offset=offset):
                return f"start at {offset}"
            case WriteMarker() | VerifyTransaction():
                raise ValueError("no transaction is in these stories")
            case MakeTarget() | MatchTopics():
                raise ValueError("no consumer group is in these stories")

    def state(self) -> str:
        group = self.coordinator.groups.get("g")
        offset = [
            str(found.offset)
            for found in self.coordinator.fetch_offsets("g", None).values()
            if found
        ]
        committed = f" offset={','.join(offset)}" if offset else ""
        if group is None:
            return f"= no group{committed}"
        members = ",".join(group.members)
        where = f"{group.state.value} generation={group.generation_id} members={members}"
        return f"= {where} leader={group.leader}{committed}"


def show_result(result: Result | HeartbeatResult) -> str:
    match result:
        case HeartbeatResult():
            raise ValueError("no consumer group is in these stories")
        case ErrorCode():
            shown = result.name
        case LeaveResult(members=members):
            shown = " ".join(code.name for code in members)
        case CommitResult(error_code=error_code, partitions=partitions):
            shown = " ".join({code.name for code in partitions.values()} or {error_code.name})
        case SyncResult(error_code=error_code, assignment=assignment):
            is_fine = error_code is ErrorCode.NONE
            shown = f"assigned {assignment.decode()}" if is_fine else error_code.name
        case JoinResult():
            shown = show_join(result)
        case _:
            assert_never(result)
    return shown


def show_join(result: JoinResult) -> str:
    if result.error_code is not ErrorCode.NONE:
        return f"{result.error_code.name} {result.member_id}".strip()
    told = ",".join(member.member_id for member in result.members)
    knows = f" members={told}" if told else ""
    skips = " skip_assignment" if result.skip_assignment else ""
    you = f"joined {result.member_id} generation={result.generation_id}"
    return f"{you} leader={result.leader}{knows}{skips}"


def show_record(record: LogRecord) -> str:
    assert not isinstance(record, ConsumerGroupRecord)
    if not isinstance(record, GroupRecord):
        found = record.committed
        return f"{record.topic_partition} -> {found.offset if found else 'gone'}"
    if record.stored is None:
        return f"group {record.group_id} gone"
    assigned = [f"{one.member_id}={one.assignment.decode()}" for one in record.stored.members]
    return f"generation {record.stored.generation_id} {' '.join(assigned)}".strip()


@golden.scripts_beside(__file__)
def test_story(script: Path, request: pytest.FixtureRequest) -> None:
    golden.check(script, Story().run, request)
