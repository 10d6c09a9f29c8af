"""Stories of a group with members of both protocols, as golden scripts (`tests.support.golden`).

`<now_ms> <what> <arguments> name=value`; requests are numbered in order, as are writes. `join`,
`beat`, `leave` are of KIP-848; `enter`, `sync`, `ping`, `quit` of the classic protocol. Partitions
are written `0,1`; `-` is none of them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.groups.core import events
from quorumlog.broker.groups.core.consumer.records import (
    ConsumerGroupRecord,
    CurrentAssignmentValue,
    GroupValue,
    TargetMemberValue,
    TargetValue,
    from_stored,
)
from quorumlog.broker.groups.core.consumer.requests import HeartbeatResult
from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.effects import AnswerRequest, AppendRecords, Effect
from quorumlog.broker.groups.core.records import GroupRecord, LogRecord
from quorumlog.broker.groups.core.requests import JoinResult, LeaveResult, SyncResult
from quorumlog.client.core.group_protocol import decode_assignment
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support import golden
from tests.support.groups.consumer.classic import (
    classic_beat,
    classic_join,
    classic_leave,
    classic_sync,
    some,
)
from tests.support.groups.consumer.coordination import SETTINGS, TopicsOfTest, heartbeat, join


def indexes(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(",") if one != "-")


def shown(partitions: Any) -> str:
    return ",".join(str(index) for index in sorted(index for _, index in partitions)) or "-"


class Story:
    def __init__(self) -> None:
        self.topics = TopicsOfTest()
        self.topics.set("t", 4)
        self.log: list[LogRecord] = []
        self.writes: dict[int, tuple[LogRecord, ...]] = {}
        self.requests = 0
        self.lead(0)

    def lead(self, now_ms: int) -> None:
        self.coordinator = GroupCoordinator(SETTINGS, topics=self.topics)
        for record in self.log:
            self.coordinator.replay(record)
        self.coordinator.loaded(now_ms)
        self.writes.clear()

    def run(self, command: str) -> str:
        time, what, *words = command.split()
        names = [word for word in words if "=" not in word]
        values = dict(word.split("=") for word in words if "=" in word)
        if what == "failover":
            self.lead(int(time))
            return self.state()
        effects = self.coordinator.step(int(time), self.event(what, names, values))
        return "\n".join([*map(self.show, effects), self.state()])

    def event(self, what: str, names: list[str], values: dict[str, str]) -> events.Event:
        match what:
            case "tick":
                return events.Ticked()
            case "written":
                self.log += self.writes.pop(int(names[0]))
                return events.WriteEnded(write_id=int(names[0]))
            case "failed":
                del self.writes[int(names[0])]
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                return events.WriteEnded(write_id=int(names[0]), error_code=code)
            case _:
                self.requests += 1
                request = self.request(what, names, values)
                return events.RequestReceived(request_id=self.requests, request=request)

    def request(self, what: str, names: list[str], values: dict[str, str]) -> Any:
        name, epoch = names[0], int(names[1]) if len(names) > 1 else 0
        has = indexes(values.pop("has", "-"))
        given = {key: some(*indexes(value)) for key, value in values.items()}
        requests: dict[str, Callable[[], Any]] = {
            "join": lambda: join(name),
            "beat": lambda: heartbeat(name, epoch, owned=self.topics.some("t", *has)),
            "leave": lambda: heartbeat(name, -1),
            "enter": lambda: classic_join("", new_member_id=name),
            "rejoin": lambda: classic_join(name, owned=some(*has)),
            "sync": lambda: classic_sync(name, epoch, **given),
            "ping": lambda: classic_beat(name, epoch),
            "quit": lambda: classic_leave(name),
        }
        return requests[what]()

    def show(self, effect: Effect) -> str:
        match effect:
            case AnswerRequest(request_id=request_id, result=result):
                return f"#{request_id} {show_result(result)}"
            case AppendRecords(write_id=write_id, records=records):
                self.writes[write_id] = records
                return f"write {write_id}: " + "; ".join(map(show_record, records))
            case _:
                raise ValueError(effect)

    def state(self) -> str:
        classic = self.coordinator.groups.get("g")
        if classic is not None:
            members = ",".join(classic.members)
            where = f"{classic.state.value} generation={classic.generation_id}"
            return f"= classic {where} {members}".strip()
        group = self.coordinator.consumer_groups.coordinator.groups.get("g")
        if group is None:
            return "= no group"
        members = " ".join(
            f"{name}{'*' if member.is_classic else ''}:{member.current.member_epoch}"
            f":{member.current.state.name.lower()}"
            for name, member in group.members.items()
        )
        return f"= consumer {group.state.value} epoch={group.group_epoch} {members}".strip()


def show_result(result: Any) -> str:
    match result:
        case ErrorCode():
            text = result.name
        case LeaveResult(members=members):
            text = " ".join(code.name for code in members)
        case _ if result.error_code is not ErrorCode.NONE:
            text = result.error_code.name
        case HeartbeatResult():
            has = "" if result.assignment is None else f" has {shown(result.assignment)}"
            text = f"{result.member_id} epoch={result.member_epoch}{has}"
        case JoinResult():
            text = f"joined {result.member_id} generation={result.generation_id}"
        case SyncResult():
            text = f"assigned {shown(decode_assignment(result.assignment))}"
        case _:
            raise ValueError(result)
    return text


def show_record(record: LogRecord) -> str:
    if isinstance(record, GroupRecord):
        return show_classic(record)
    assert isinstance(record, ConsumerGroupRecord)
    kind, _, name = record.subject
    match record.value:
        case None:
            text = "gone"
        case GroupValue(epoch=epoch) | TargetValue(assignment_epoch=epoch):
            text = f"epoch={epoch}"
        case TargetMemberValue(topic_partitions=stored):
            text = shown(from_stored(stored))
        case CurrentAssignmentValue() as value:
            pending = from_stored(value.partitions_pending_revocation)
            revokes = f" gives up {shown(pending)}" if pending else ""
            text = f"epoch={value.member_epoch} {shown(from_stored(value.assigned_partitions))}"
            text += revokes
        case _:
            text = ""
    return " ".join(f"{kind.name.lower()} {name} {text}".split())


def show_classic(record: GroupRecord) -> str:
    if record.stored is None:
        return "classic group gone"
    members = [
        f"{one.member_id}={shown(decode_assignment(one.assignment))}"
        for one in record.stored.members
    ]
    return f"classic generation {record.stored.generation_id} {' '.join(members)}".strip()


@golden.scripts_beside(__file__)
def test_story(script: Path, request: pytest.FixtureRequest) -> None:
    golden.check(script, Story().run, request)
