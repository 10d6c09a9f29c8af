"""Stories of a consumer group (KIP-848), as golden scripts (`tests.support.golden`).

`<now_ms> <what> <arguments> name=value`; requests are numbered in order, as are writes. Partitions
are written `t0,t1`; `-` is none of them.
"""

from pathlib import Path
from typing import assert_never

import pytest

from quorumlog.broker.groups.core.consumer import events
from quorumlog.broker.groups.core.consumer.coordinator import ConsumerGroupCoordinator
from quorumlog.broker.groups.core.consumer.effects import (
    AnswerRequest,
    AppendRecords,
    Effect,
    MakeTarget,
)
from quorumlog.broker.groups.core.consumer.partitions import Partitions
from quorumlog.broker.groups.core.consumer.records import (
    ConsumerGroupRecord,
    CurrentAssignmentValue,
    GroupValue,
    RegularExpressionValue,
    TargetMemberValue,
    TargetValue,
    from_stored,
)
from quorumlog.broker.groups.core.consumer.requests import (
    ConsumerGroupResult,
    ConsumerHeartbeat,
    HeartbeatResult,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support import golden
from tests.support.groups.consumer.coordination import SETTINGS, TopicsOfTest, heartbeat, join


class Story:
    def __init__(self) -> None:
        self.topics = TopicsOfTest()
        self.topics.set("t", 4)
        self.log: list[ConsumerGroupRecord] = []
        self.writes: dict[int, tuple[ConsumerGroupRecord, ...]] = {}
        self.requests = 0
        self.lead(0)

    def lead(self, now_ms: int) -> None:
        self.coordinator = ConsumerGroupCoordinator(SETTINGS, self.topics)
        for record in self.log:
            self.coordinator.committed.apply(record)
        self.coordinator.loaded(now_ms)
        self.writes.clear()

    def run(self, command: str) -> str:
        time, what, *words = command.split()
        names = [word for word in words if "=" not in word]
        values = dict(word.split("=") for word in words if "=" in word)
        if what == "failover":
            self.lead(int(time))
            return self.state()
        if what == "topic":
            self.topics.set(names[0], int(names[1]))
        effects = self.coordinator.step(int(time), self.event(what, names, values))
        return "\n".join([*map(self.show, effects), self.state()])

    def event(self, what: str, names: list[str], values: dict[str, str]) -> events.Event:
        match what:
            case "tick":
                return events.Ticked()
            case "topic":
                return events.TopicsChanged(names={names[0]})
            case "written":
                self.log += self.writes.pop(int(names[0]))
                return events.WriteEnded(write_id=int(names[0]))
            case "failed":
                del self.writes[int(names[0])]
                return events.WriteEnded(write_id=int(names[0]), error_code=ErrorCode[names[1]])
            case _:
                self.requests += 1
                request = self.request(what, names, values)
                return events.RequestReceived(request_id=self.requests, request=request)

    def request(self, what: str, names: list[str], values: dict[str, str]) -> ConsumerHeartbeat:
        name, instance_id = names[0], values.get("instance")
        regex = values.get("regex")
        match what:
            case "join":
                return join(name, instance_id=instance_id, subscribed_topic_regex=regex)
            case "beat":
                owned = self.partitions(values["owned"]) if "owned" in values else None
                epoch = int(names[1])
                return heartbeat(name, epoch, instance_id=instance_id, owned=owned)
            case "leave":
                epoch = -1 if instance_id is None else -2
                return heartbeat(name, epoch, instance_id=instance_id)
            case _:
                raise ValueError(what)

    def partitions(self, text: str) -> Partitions:
        found: Partitions = frozenset()
        for word in text.replace("-", "").split(",") if text != "-" else ():
            found |= self.topics.some(word[:-1], int(word[-1]))
        return found

    def name(self, partitions: Partitions) -> str:
        names = self.topics.names
        shown = sorted(f"{names.get(topic_id, '?')}{index}" for topic_id, index in partitions)
        return ",".join(shown) or "-"

    def show(self, effect: Effect) -> str:
        match effect:
            case AnswerRequest(request_id=request_id, result=result):
                return f"#{request_id} {self.show_result(result)}"
            case AppendRecords(write_id=write_id, records=records):
                self.writes[write_id] = records
                return f"write {write_id}: " + "; ".join(map(self.show_record, records))
            case MakeTarget():
                raise ValueError("the targets of these stories are small")
            case _:
                assert_never(effect)

    def show_result(self, result: ConsumerGroupResult) -> str:
        assert isinstance(result, HeartbeatResult)
        if result.error_code is not ErrorCode.NONE:
            return result.error_code.name
        told = "" if result.assignment is None else f" has {self.name(result.assignment)}"
        return f"{result.member_id} epoch={result.member_epoch}{told}"

    def show_record(self, record: ConsumerGroupRecord) -> str:
        kind, _, name = record.subject
        subject = f"{kind.name.lower()} {name}".strip()
        match record.value:
            case None:
                return f"{subject} gone"
            case GroupValue(epoch=epoch) | TargetValue(assignment_epoch=epoch):
                return f"{subject} epoch={epoch}"
            case TargetMemberValue(topic_partitions=stored):
                return f"{subject} {self.name(from_stored(stored))}"
            case CurrentAssignmentValue() as value:
                pending = from_stored(value.partitions_pending_revocation)
                revokes = f" gives up {self.name(pending)}" if pending else ""
                has = self.name(from_stored(value.assigned_partitions))
                return f"{subject} epoch={value.member_epoch} {has}{revokes}"
            case RegularExpressionValue(topics=topics):
                return f"{subject} {','.join(topics)}"
            case _:
                return subject

    def state(self) -> str:
        group = self.coordinator.groups.get("g")
        if group is None:
            return "= no group"
        members = [
            f"{name}:{member.current.member_epoch}:{member.current.state.name.lower()}"
            for name, member in group.members.items()
        ]
        return f"= {group.state.value} epoch={group.group_epoch} {' '.join(members)}".strip()


@golden.scripts_beside(__file__)
def test_story(script: Path, request: pytest.FixtureRequest) -> None:
    golden.check(script, Story().run, request)
