"""A static member returns or is replaced, in each protocol: also the last one of a group.

The outcomes are those of Apache Kafka 4.3 (KIP-345, KIP-848): a member of the consumer protocol
waits only for a present owner of the consumer protocol; every other pair is a replacement.
"""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from quorumlog.broker.groups.core.consumer import targets
from quorumlog.broker.groups.core.consumer.partitions import Partitions
from quorumlog.broker.groups.core.consumer.states import ConsumerGroupState
from quorumlog.broker.groups.core.group import GroupState
from quorumlog.broker.groups.core.requests import (
    CommitOffsets,
    CommittedOffset,
    Heartbeat,
    Join,
    JoinResult,
    Sync,
)
from quorumlog.broker.settings import BrokerSettings
from quorumlog.client.assignor import Subscription
from quorumlog.client.core.group_protocol import decode_assignment, encode_subscription
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from tests.support.groups.consumer.classic import classic_beat, classic_join, classic_sync, some
from tests.support.groups.consumer.coordination import (
    SETTINGS,
    ConsumerCoordination,
    heartbeat,
    join,
)
from tests.unit.broker.groups.consumer.test_mixed_groups import MUST_JOIN, classic_group, rejoined


class MixedGroup:
    """`c` (static) of the consumer protocol and `a` of the classic one; each has two partitions."""

    def __init__(self, settings: BrokerSettings = SETTINGS, **of_c: Any) -> None:
        self.groups = ConsumerCoordination(settings=settings)
        self.groups.topics.set("other", 1)
        self.groups.beat(join("c", **{"instance_id": "i", **of_c}))
        self.groups.answer(classic_join("", new_member_id="a"))
        for _ in range(2):
            self.c_beats()
            self.epoch = self.groups.answer(classic_join("a")).generation_id
            self.groups.answer(classic_sync("a", self.epoch))
        group = self.groups.group
        assert group.state is ConsumerGroupState.STABLE
        self.had = {
            name: frozenset(one.partition for one in member.current.assigned)
            for name, member in group.members.items()
        }
        assert sorted(map(len, self.had.values())) == [2, 2]

    def c_beats(self) -> None:
        current = self.groups.group.members["c"].current
        self.groups.beat(heartbeat("c", current.member_epoch, owned=current.assigned))

    def c_goes(self) -> None:
        self.groups.beat(heartbeat("c", -2, instance_id="i"))

    def replace(self, **changes: Any) -> JoinResult:
        """Let `c2` of the classic protocol join as the instance, and commit what is written."""
        request_id = self.groups.ask(replacing_join(**changes))
        self.groups.commit_writes()
        answer = self.groups.replies[request_id]
        assert isinstance(answer, JoinResult)
        return answer

    def has(self, member_id: str, generation_id: int) -> frozenset[int]:
        """Return the partitions that a SyncGroup of the member is answered with."""
        synced = self.groups.answer(classic_sync(member_id, generation_id))
        assert synced.error_code is ErrorCode.NONE
        return frozenset(one.partition for one in decode_assignment(synced.assignment))

    @property
    def classic_state(self) -> GroupState:
        assert self.groups.consumer.groups == {}
        return self.groups.coordinator.groups["g"].state

    def check_rebalances_once(self, **changes: Any) -> None:
        """The downgrade rebalances: the next generation gives every partition to one member."""
        assert self.replace(**changes).leader == ""
        assert self.classic_state is GroupState.PREPARING_REBALANCE
        assert self.groups.answer(classic_beat("a", self.epoch)) in MUST_JOIN
        self.check_next_generation("c2", **changes)

    def check_next_generation(self, joins: str, **changes: Any) -> None:
        asked = [self.groups.ask(replacing_join(member_id=joins, **changes))]
        asked.append(self.groups.ask(classic_join("a", owned=some(*self.had["a"]))))
        answers = [self.groups.replies[request_id] for request_id in asked]
        assert {answer.error_code for answer in answers} == {ErrorCode.NONE}
        [leader] = [answer for answer in answers if answer.members]
        assert not leader.skip_assignment
        given = {"a": some(*self.had["a"]), "c2": some(*self.had["c"], 4)}
        self.groups.answer(classic_sync(leader.member_id, leader.generation_id, **given))
        assert self.classic_state is GroupState.STABLE
        assert self.has("a", leader.generation_id) == self.had["a"]
        assert self.has("c2", leader.generation_id) == self.had["c"] | {4}


def replacing_join(member_id: str = "", **changes: Any) -> Join:
    named = {"new_member_id": "c2", "group_instance_id": "i", **changes}
    return classic_join(member_id, **named)


@pytest.mark.parametrize("goes_first", [True, False])
def test_the_group_is_classic_without_rebalance_and_the_new_member_leads(goes_first: bool) -> None:
    mixed = MixedGroup()
    if goes_first:
        mixed.c_goes()
    request_id = mixed.groups.ask(replacing_join())
    assert request_id not in mixed.groups.replies, "not before the classic group is committed"
    [_] = mixed.groups.writes
    mixed.groups.commit_writes()
    joined = mixed.groups.replies[request_id]
    assert (joined.error_code, joined.member_id) == (ErrorCode.NONE, "c2")
    assert (joined.generation_id, joined.protocol_name) == (mixed.epoch, "cooperative-sticky")
    assert (joined.leader, joined.skip_assignment) == ("c2", True)
    instances = {one.member_id: one.group_instance_id for one in joined.members}
    assert instances == {"a": None, "c2": "i"}
    assert mixed.classic_state is GroupState.STABLE
    assert mixed.groups.answer(classic_beat("a", mixed.epoch)) is ErrorCode.NONE
    assert mixed.has("c2", mixed.epoch) == mixed.had["c"]
    assert mixed.has("a", mixed.epoch) == mixed.had["a"]
    assert mixed.groups.refused(heartbeat("c", mixed.epoch)) is ErrorCode.UNKNOWN_MEMBER_ID
    loaded = mixed.groups.reloaded().coordinator
    assert loaded.committed == mixed.groups.coordinator.committed
    assert (loaded.groups["g"].state, loaded.groups["g"].leader) == (GroupState.STABLE, "c2")


def test_the_only_member_of_a_group_changes_to_the_classic_protocol() -> None:
    groups = ConsumerCoordination()
    epoch = groups.beat(join("c", instance_id="i")).member_epoch
    joined = groups.answer(replacing_join())
    assert (joined.generation_id, joined.leader, joined.skip_assignment) == (epoch, "c2", True)
    synced = groups.answer(classic_sync("c2", epoch))
    assert decode_assignment(synced.assignment) == some(0, 1, 2, 3)


def test_the_leader_has_partitions_assigned_that_are_added_after_the_downgrade() -> None:
    mixed = MixedGroup()
    mixed.replace()
    mixed.groups.set_topic("t", 5)
    leader = mixed.groups.ask(replacing_join("c2"))  # as a leader does that sees the partition
    assert mixed.classic_state is GroupState.PREPARING_REBALANCE
    told = mixed.groups.answer(classic_beat("a", mixed.epoch))
    assert told is ErrorCode.REBALANCE_IN_PROGRESS
    assert leader not in mixed.groups.replies
    mixed.check_next_generation("c2")


def test_a_leader_that_is_lost_after_the_downgrade_is_succeeded() -> None:
    mixed = MixedGroup()
    mixed.replace()
    for _ in range(6):
        mixed.groups.answer(classic_beat("a", mixed.epoch))
        mixed.groups.tick(200)
    joined = mixed.groups.answer(classic_join("a", owned=some(*mixed.had["a"])))
    assert (joined.leader, len(joined.members)) == ("a", 1)


def _subscribed_to(*topics: str) -> tuple[tuple[str, bytes], ...]:
    return (("cooperative-sticky", encode_subscription(Subscription(topics=topics))),)


@pytest.mark.parametrize(
    "changes",
    [
        {"protocols": _subscribed_to("t", "other")},
        {"supports_skipping_assignment": False},
        {"protocols": (("range", _subscribed_to("t")[0][1]), *_subscribed_to("t"))},
    ],
    ids=["another subscription", "a client that cannot skip", "another favourite protocol"],
)
def test_a_member_that_is_not_the_same_makes_a_rebalance(changes: dict[str, Any]) -> None:
    MixedGroup().check_rebalances_once(**changes)


@pytest.mark.parametrize("is_behind", [False, True])
def test_topics_that_have_changed_since_the_target_make_a_rebalance(is_behind: bool) -> None:
    mixed = MixedGroup()
    mixed.groups.set_topic("t", 5)
    if is_behind:
        mixed.c_beats()  # a new epoch, which `a` has not joined
    mixed.check_rebalances_once()


def test_a_replaced_member_that_has_missed_an_epoch_but_no_partition_makes_none() -> None:
    mixed = MixedGroup()
    owned = encode_subscription(Subscription(topics=("t", "other"), owned=some(*mixed.had["a"])))
    more = classic_join("a", protocols=(("cooperative-sticky", owned),))
    epoch = mixed.groups.answer(more).generation_id
    assert epoch > mixed.groups.group.members["c"].current.member_epoch
    joined = mixed.replace()
    assert (joined.leader, joined.generation_id) == ("c2", epoch)
    assert mixed.has("c2", epoch) == mixed.had["c"]
    synced = decode_assignment(mixed.groups.answer(classic_sync("a", epoch)).assignment)
    assert {*synced} == {*some(*mixed.had["a"]), TopicPartition("other", 0)}


def test_an_epoch_whose_target_was_not_made_before_a_failover_makes_a_rebalance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mixed = MixedGroup()
    mixed.groups.set_topic("t", 5)
    monkeypatch.setattr(targets, "AT_ONCE_MAX", 0)
    mixed.groups.ask(heartbeat("c", mixed.epoch))
    mixed.groups.commit_write()
    mixed.groups = mixed.groups.reloaded()
    assert mixed.groups.group.group_epoch > mixed.groups.group.assignment_epoch
    mixed.check_rebalances_once()


def test_a_member_id_that_the_instance_does_not_have_is_fenced() -> None:
    mixed = MixedGroup()
    assert mixed.replace(member_id="x").error_code is ErrorCode.FENCED_INSTANCE_ID
    assert {*mixed.groups.group.members} == {"a", "c"}
    assert mixed.replace(member_id="c").member_id == "c"
    assert mixed.classic_state is GroupState.PREPARING_REBALANCE
    mixed = MixedGroup()
    claims = encode_subscription(Subscription(topics=("t",), owned=some(*mixed.had["a"])))
    mixed.check_rebalances_once(protocols=(("cooperative-sticky", claims),))


def test_a_member_that_has_partitions_to_give_up_makes_a_rebalance() -> None:
    groups = ConsumerCoordination()
    groups.beat(join("c", instance_id="i"))
    groups.answer(classic_join("", new_member_id="a"))
    epoch = groups.group.members["c"].current.member_epoch
    groups.beat(heartbeat("c", epoch, owned=groups.topics.some("t", 0, 1, 2, 3)))
    assert [member.member_id for member in groups.group.unrevoked()] == ["c"]
    assert groups.answer(replacing_join()).leader == ""
    assert groups.coordinator.groups["g"].state is GroupState.PREPARING_REBALANCE


def test_a_member_that_has_left_before_it_had_its_part_makes_a_rebalance() -> None:
    groups, _ = classic_group()
    groups.beat(join("c", instance_id="i"))
    groups.beat(heartbeat("c", -2, instance_id="i"))
    for member_id, had in (("a", some(0, 1)), ("b", some(2, 3))):
        _, has = rejoined(groups, member_id, *had)
        rejoined(groups, member_id, *has)
    group = groups.group
    assert group.target_of("c")
    assert not group.members["c"].current.assigned
    assert groups.answer(replacing_join()).leader == ""
    assert groups.coordinator.groups["g"].state is GroupState.PREPARING_REBALANCE


def test_a_member_that_subscribed_by_an_expression_makes_a_rebalance() -> None:
    groups = ConsumerCoordination()
    groups.beat(join("c", instance_id="i", subscribed_topic_regex="t"))
    assert groups.answer(replacing_join()).leader == ""
    assert groups.coordinator.groups["g"].state is GroupState.PREPARING_REBALANCE


def test_a_policy_without_downgrades_keeps_the_consumer_group() -> None:
    mixed = MixedGroup(replace(SETTINGS, group_consumer_migration_policy="upgrade"))
    assert mixed.replace().generation_id == mixed.epoch
    assert {*mixed.groups.group.members} == {"a", "c2"}


def test_a_downgrade_that_is_not_written_is_refused_and_leaves_the_consumer_group() -> None:
    mixed = MixedGroup()
    request_id = mixed.groups.ask(replacing_join())
    mixed.groups.fail_write()
    assert mixed.groups.replies[request_id].error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert {*mixed.groups.group.members} == {"a", "c"}
    mixed.c_beats()
    mixed.groups.check_replayed()
    assert mixed.replace().leader == "c2"
    assert mixed.classic_state is GroupState.STABLE


OLD, NEW = "old", "new"
PRESENT, CLOSED, SESSION_OVER = "present", "closed", "session over"
SESSION_MS = 1000


class Switch:
    """Static member OLD with partitions of `t`, beside a member of the consumer protocol."""

    def __init__(self, protocol: str) -> None:
        self.groups = ConsumerCoordination()
        self.protocol = protocol
        self.groups.beat(join("companion"))
        self.join(protocol, OLD, is_first=True)
        for _ in range(2):
            self.companion_beats()
            self.beat_old()
        assert self.groups.group.state is ConsumerGroupState.STABLE
        self.had = self.assigned(OLD)
        assert len(self.had) == 2

    def join(self, protocol: str, member_id: str, *, is_first: bool = False) -> ErrorCode:
        """Join as a process that starts; a classic one names no member id unless it has one."""
        request: Any
        if protocol == "consumer":
            request = join(member_id, instance_id="i")
        else:
            named = member_id if member_id == OLD and not is_first else ""
            request = classic_join(named, new_member_id=member_id, group_instance_id="i")
        result = self.groups.answer(request)
        code: ErrorCode = result.error_code
        return code

    def companion_beats(self) -> None:
        current = self.groups.group.members["companion"].current
        self.groups.beat(heartbeat("companion", current.member_epoch, owned=current.assigned))

    def beat_old(self) -> None:
        epoch = self.groups.group.members[OLD].current.member_epoch
        if self.protocol == "consumer":
            owned = self.assigned(OLD)
            self.groups.beat(heartbeat(OLD, epoch, instance_id="i", owned=owned))
        else:
            self.groups.answer(classic_join(OLD, group_instance_id="i"))
            epoch = self.groups.group.members[OLD].current.member_epoch
            sync = Sync(group_id="g", member_id=OLD, generation_id=epoch, group_instance_id="i")
            assert self.groups.answer(sync).error_code is ErrorCode.NONE

    def assigned(self, member_id: str) -> Partitions:
        return self.groups.group.members[member_id].current.assigned

    def end(self, presence: str) -> None:
        """Let OLD stop: a classic static member sends nothing, a member of KIP-848 sends -2."""
        if presence == PRESENT:
            return
        if self.protocol == "consumer":
            self.groups.beat(heartbeat(OLD, -2, instance_id="i"))
        if presence == SESSION_OVER:
            for _ in range(2):
                self.companion_beats()
                self.groups.tick(SESSION_MS // 2)
                self.groups.commit_writes()
            assert OLD not in self.groups.group.members

    def codes_of_old(self, epoch: int) -> set[ErrorCode]:
        """Return what the former owner's classic requests are answered."""
        named: Any = {"group_id": "g", "member_id": OLD, "group_instance_id": "i"}
        asked = (
            classic_join(OLD, group_instance_id="i"),
            Sync(**named, generation_id=epoch),
            Heartbeat(**named, generation_id=epoch),
        )
        answers = map(self.groups.answer, asked)
        return {getattr(answer, "error_code", answer) for answer in answers}


CELLS = [*product(("classic", "consumer"), repeat=2)]


@pytest.mark.parametrize("member_id", [OLD, NEW])
@pytest.mark.parametrize("presence", [PRESENT, CLOSED, SESSION_OVER])
@pytest.mark.parametrize(("before", "after"), CELLS)
def test_a_static_member_returns(before: str, after: str, presence: str, member_id: str) -> None:
    switch = Switch(before)
    group = switch.groups.group
    epoch, had = group.group_epoch, switch.had
    switch.end(presence)
    code = switch.join(after, member_id)
    keeps_out = before == after == "consumer" and presence == PRESENT and member_id == NEW
    is_unknown = after == "classic" and member_id == OLD and presence == SESSION_OVER
    if keeps_out:
        assert code is ErrorCode.UNRELEASED_INSTANCE_ID
        assert group.static["i"] == OLD
        return
    if is_unknown:
        assert code is ErrorCode.UNKNOWN_MEMBER_ID
        return
    assert code is ErrorCode.NONE
    assert group.static["i"] == member_id
    assert group.members[member_id].is_classic is (after == "classic")
    assert {*group.members} == {"companion", member_id}
    if presence != SESSION_OVER:
        assert (group.group_epoch, switch.assigned(member_id)) == (epoch, had)
    if before == "classic" and presence != SESSION_OVER and member_id == NEW:
        assert switch.codes_of_old(epoch) == {ErrorCode.FENCED_INSTANCE_ID}
    switch.groups.check_replayed()


def test_a_replaced_classic_member_commits_no_offsets() -> None:
    switch = Switch("classic")
    epoch = switch.groups.group.group_epoch
    switch.join("consumer", NEW)
    named: Any = {"group_id": "g", "member_id": OLD, "group_instance_id": "i"}
    offsets = {some(0)[0]: CommittedOffset(offset=7)}
    commit = CommitOffsets(**named, generation_id=epoch, offsets=offsets)
    # Kafka's ConsumerGroup.validateOffsetCommit looks the member up by its id alone.
    assert switch.groups.answer(commit).error_code is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("member_id", [OLD, NEW])
def test_the_only_classic_member_returns_with_the_consumer_protocol(member_id: str) -> None:
    groups = ConsumerCoordination()
    joined = groups.ask(classic_join("", new_member_id=OLD, group_instance_id="i"))
    groups.tick(250)
    generation_id = groups.replies[joined].generation_id
    groups.answer(classic_sync(OLD, generation_id, old=some(0, 1, 2, 3)))
    result = groups.beat(join(member_id, instance_id="i"))
    assert result.assignment == groups.topics.some("t", 0, 1, 2, 3)
    assert {*groups.group.members} == {member_id}
    groups.check_replayed()
