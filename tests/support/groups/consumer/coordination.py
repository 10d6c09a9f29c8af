"""A group coordinator over a log in memory, and the requests of members of consumer groups."""

import re
from collections.abc import Iterable
from functools import partial
from typing import Any

from quorumlog.broker.groups.core.consumer import events
from quorumlog.broker.groups.core.consumer.coordinator import ConsumerGroupCoordinator
from quorumlog.broker.groups.core.consumer.effects import MakeTarget, MatchTopics
from quorumlog.broker.groups.core.consumer.group import ConsumerGroup
from quorumlog.broker.groups.core.consumer.partitions import (
    NO_PARTITIONS,
    Partitions,
    TopicIdPartition,
)
from quorumlog.broker.groups.core.consumer.requests import ConsumerHeartbeat, HeartbeatResult
from quorumlog.broker.groups.core.consumer.topics import (
    InvalidRegularExpression,
    IsMatch,
    TopicDescription,
    Topics,
)
from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.rewrite import DEFAULT_LIMITS, RewriteLimits
from quorumlog.broker.groups.core.rules import GROUP_RULES, GroupRules
from quorumlog.broker.settings import BrokerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicId
from tests.support.coordination.driven_shard import DrivenShard

SETTINGS = BrokerSettings(
    group_initial_rebalance_delay_ms=100,
    group_min_session_timeout_ms=10,
    group_consumer_session_timeout_ms=1000,
    group_consumer_heartbeat_interval_ms=100,
)


class PythonMatcher:
    """A fake: Python's expressions; the tests use only the common subset with RE2."""

    def __init__(self) -> None:
        self.tried = 0

    def compile(self, expression: str) -> IsMatch:
        try:
            pattern = re.compile(expression)
        except re.error as error:
            raise InvalidRegularExpression(str(error)) from error

        def is_match(name: str) -> bool:
            self.tried += 1
            return pattern.fullmatch(name) is not None

        return is_match


def heartbeat(member_id: str, member_epoch: int, **changes: Any) -> ConsumerHeartbeat:
    values: dict[str, Any] = {"group_id": "g", "member_id": member_id, "member_epoch": member_epoch}
    return ConsumerHeartbeat(**{**values, **changes})


def join(member_id: str, *names: str, **changes: Any) -> ConsumerHeartbeat:
    """A full heartbeat, of a joining member unless `member_epoch` is given."""
    values: dict[str, Any] = {
        "rebalance_timeout_ms": 500,
        "subscribed_topic_names": names or ("t",),
        "owned": NO_PARTITIONS,
    }
    changed = {**values, **changes}
    return heartbeat(member_id, changed.pop("member_epoch", 0), **changed)


def durable(group: ConsumerGroup) -> dict[str, Any]:
    """The complete state in the records of a group."""
    volatile = {"is_metadata_due", "subscribed_names", "rights"}
    return {name: value for name, value in vars(group).items() if name not in volatile}


class TopicsOfTest(Topics):
    """Topics with ids that contain their names: `T(name, generation)`."""

    __test__ = False

    def __init__(
        self, matcher: PythonMatcher | None = None, *, has_authorizer: bool = False
    ) -> None:
        self.matcher = matcher or PythonMatcher()
        super().__init__(self.matcher, has_authorizer=has_authorizer)
        self.created = 0

    def id_of(self, name: str) -> TopicId:
        return self.by_name[name].topic_id

    def set(self, name: str, partitions: int) -> None:
        """Create a topic, let it grow, or (0) delete it."""
        if partitions == 0:
            self.change(self.version + 1, {name: None})
            return
        known = self.by_name.get(name)
        if known is None:
            self.created += 1
        new_id = TopicId(self.created.to_bytes(2, "big") + name.encode().ljust(14, b"."))
        topic_id = new_id if known is None else known.topic_id
        self.change(self.version + 1, {name: TopicDescription(topic_id, partitions)})

    def run_jobs(self) -> None:
        """Try all names that were not tried."""
        while jobs := self.take_jobs():
            for job in jobs:
                self.note_matched(job, job.run())

    def some(self, name: str, *indexes: int) -> Partitions:
        return frozenset(TopicIdPartition(self.id_of(name), index) for index in indexes)


class ConsumerCoordination(DrivenShard[GroupCoordinator]):
    """The groups of one partition, loaded; `consumer` coordinates the consumer groups."""

    def __init__(
        self,
        topics: TopicsOfTest | None = None,
        settings: BrokerSettings = SETTINGS,
        *,
        batches: Iterable[bytes] = (),
        now_ms: int = 0,
        rewrite_limits: RewriteLimits = DEFAULT_LIMITS,
        rules: GroupRules = GROUP_RULES,
    ) -> None:
        if topics is None:
            topics = TopicsOfTest()
            topics.set("t", 4)
        self.topics, self.settings, self.rules = topics, settings, rules
        new_coordinator = partial(
            GroupCoordinator, settings, rewrite_limits, topics=topics, rules=rules
        )
        super().__init__(new_coordinator, batches=batches, now_ms=now_ms)
        self.load()

    def make_target(self) -> None:
        """Run the oldest job that the coordinator has given away; let its target be taken over."""
        self.give_target()
        self.take_over()

    def give_target(self) -> None:
        """Run the oldest job that the coordinator has given away."""
        effect = next(effect for effect in self.own if isinstance(effect, MakeTarget))
        self.own.remove(effect)
        self.step(events.TargetMade(job=effect.job, target=effect.job.run()))

    def take_over(self) -> int:
        """Let targets that were made be taken over; return in how many ticks."""
        ticks = 0
        while self.is_taking_over:
            self.step(events.Ticked())
            ticks += 1
        return ticks

    @property
    def is_taking_over(self) -> bool:
        """Whether a tick is due at once, to go on with a target."""
        return self.consumer.next_deadline_ms <= self.now_ms

    def try_names(self) -> None:
        """Run the oldest job of names that the coordinator has given away."""
        effect = next(effect for effect in self.own if isinstance(effect, MatchTopics))
        self.own.remove(effect)
        self.topics.note_matched(effect.job, effect.job.run())
        self.step(events.TopicsMatched(expression=effect.job.expression))

    def commit_writes(self) -> None:
        """Commit all that is written, and make all targets; names are tried by `try_names`."""
        while self.writes or any(isinstance(effect, MakeTarget) for effect in self.own):
            self.take_over()
            if self.writes:
                self.commit_write()
            else:
                self.make_target()

    @property
    def consumer(self) -> ConsumerGroupCoordinator:
        return self.coordinator.consumer_groups.coordinator

    @property
    def group(self) -> ConsumerGroup:
        return self.consumer.groups["g"]

    def beat(self, request: ConsumerHeartbeat) -> HeartbeatResult:
        """Send a request as `answer` does; it must succeed."""
        result: HeartbeatResult = self.answer(request)
        assert result.error_code is ErrorCode.NONE, result
        return result

    def refused(self, request: ConsumerHeartbeat) -> ErrorCode:
        """Send a request that is refused, without a write; return its error."""
        request_id = self.ask(request)
        assert not self.writes
        result: HeartbeatResult = self.replies[request_id]
        assert result.error_message
        return result.error_code

    def set_topic(self, name: str, partitions: int) -> None:
        self.topics.set(name, partitions)
        self.step(events.TopicsChanged(names={name}))

    def reloaded(self) -> "ConsumerCoordination":
        """Return another coordinator with the same log, as after a failover."""
        return ConsumerCoordination(
            self.topics, self.settings, batches=self.batches, now_ms=self.now_ms, rules=self.rules
        )

    def check_replayed(self) -> None:
        """The served state equals a replay of the log, if no write is under way."""
        assert not self.writes
        loaded = self.reloaded().consumer.groups
        live = self.consumer.groups
        assert {name: describe_all(group) for name, group in live.items()} == {
            name: describe_all(group) for name, group in loaded.items()
        }


def describe_all(group: ConsumerGroup) -> dict[str, Any]:
    """As `durable`, with members that can be compared."""
    members = {
        member_id: (member.metadata, member.current) for member_id, member in group.members.items()
    }
    return {**durable(group), "members": members}
