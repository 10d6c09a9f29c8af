"""Sessions and rebalances of consumer groups, their times, and their writes that fail."""

from typing import Any

import pytest

from quorumlog.broker.coordination.core import events as shard_events
from quorumlog.broker.groups.core.consumer import coordinator, events, targets
from quorumlog.broker.groups.core.consumer.group import ConsumerGroup
from quorumlog.broker.groups.core.consumer.partitions import NO_PARTITIONS
from quorumlog.broker.groups.core.consumer.settings import GroupTimes
from quorumlog.broker.groups.core.consumer.states import ConsumerGroupState, MemberState
from quorumlog.broker.settings import BrokerSettings
from quorumlog.invariants import InvariantViolation
from quorumlog.settings.groups import group_limits
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.coordination.groups_begun import consumers
from tests.support.groups.consumer.coordination import (
    ConsumerCoordination,
    TopicsOfTest,
    heartbeat,
    join,
)


def test_a_silent_member_is_removed_when_its_session_is_over() -> None:
    groups = consumers("a")
    groups.tick(600)
    groups.beat(join("b"))
    groups.tick(399)
    assert not groups.writes
    groups.tick(1)
    groups.commit_writes()
    assert [*groups.group.members] == ["b"]
    assert groups.beat(heartbeat("b", 2)).assignment == groups.topics.some("t", 0, 1, 2, 3)
    assert groups.refused(heartbeat("a", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    groups.check_replayed()


def test_every_heartbeat_begins_a_session_but_those_that_are_refused() -> None:
    groups = consumers("a")
    groups.tick(600)
    groups.beat(heartbeat("a", 1))
    groups.tick(600)
    assert groups.refused(heartbeat("a", 7)) is ErrorCode.FENCED_MEMBER_EPOCH
    groups.tick(399)
    assert not groups.writes
    groups.tick(1)
    assert groups.writes


def test_members_that_fall_silent_together_begin_one_epoch() -> None:
    groups = ConsumerCoordination()
    for member_id in "abc":
        groups.beat(join(member_id))
    assert groups.group.group_epoch == 3
    groups.tick(1000)
    assert groups.group.group_epoch == 4
    assert groups.group.state is ConsumerGroupState.EMPTY


def test_a_member_that_has_given_up_its_partitions_has_no_rebalance_to_end() -> None:
    groups = consumers("a", "b")
    groups.beat(heartbeat("a", 1))
    groups.beat(heartbeat("a", 1, owned=groups.topics.some("t", 0, 1)))
    groups.tick(400)
    groups.beat(heartbeat("a", 2))
    groups.beat(heartbeat("b", 2))
    groups.tick(400)
    groups.commit_writes()
    assert [*groups.group.members] == ["a", "b"]


def test_a_coordinator_that_loads_gives_each_member_a_whole_session_and_rebalance() -> None:
    groups = consumers("a", "b")
    groups.beat(heartbeat("a", 1))
    groups.tick(450)
    groups = groups.reloaded()
    groups.tick(499)
    assert not groups.writes
    groups.beat(heartbeat("b", 2))
    groups.tick(1)
    groups.commit_writes()
    assert [*groups.group.members] == ["b"]
    groups.tick(998)
    groups = groups.reloaded()
    groups.tick(999)
    assert not groups.writes
    groups.tick(1)
    assert groups.writes


def test_no_answer_is_given_before_all_is_committed_that_it_rests_on() -> None:
    groups = ConsumerCoordination()
    asked = [groups.ask(join("a")), groups.ask(join("b")), groups.ask(heartbeat("b", 2))]
    assert len(groups.writes) == 1  # the second batch waits for the first
    assert not groups.replies
    groups.commit_write()
    assert [*groups.replies] == asked[:1]
    assert len(groups.writes) == 1
    groups.commit_write()
    assert [*groups.replies] == asked
    groups.check_replayed()


def test_a_group_whose_first_write_is_refused_is_not_there() -> None:
    groups = ConsumerCoordination()
    request_id = groups.ask(join("a"))
    groups.fail_write(ErrorCode.RECORD_LIST_TOO_LARGE)
    assert groups.replies[request_id].error_code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert groups.consumer.groups == {}
    groups.tick(5000)
    assert not groups.writes


def test_records_that_wait_are_in_batches_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log would refuse a batch that is too large, and all that waits with it."""
    batch_bytes_max = coordinator.BATCH_BYTES_MAX // 10
    monkeypatch.setattr(coordinator, "BATCH_BYTES_MAX", batch_bytes_max)
    monkeypatch.setattr(targets, "AT_ONCE_MAX", 1 << 30)
    topics = TopicsOfTest()
    topics.set("t", 1000)
    groups = ConsumerCoordination(topics)
    asked = [groups.ask(join(f"m{number}")) for number in range(12)]
    sizes = []
    while groups.writes:
        sizes.append(len(groups.writes[0].records))
        groups.commit_write()
    assert len(sizes) > 2
    assert max(sizes) < 2 * batch_bytes_max
    assert [*groups.replies] == asked
    groups.check_replayed()


def test_groups_do_not_wait_for_each_other() -> None:
    groups = ConsumerCoordination()
    groups.ask(join("a"))
    other = groups.ask(join("b", group_id="other"))
    assert len(groups.writes) == 2
    groups.end_write(ErrorCode.NONE, index=1)
    assert other not in groups.replies  # the shard reports writes in the order of the log
    groups.commit_writes()
    assert groups.replies[other].member_epoch == 1


def test_a_write_that_ends_twice_is_a_bug_of_ours() -> None:
    groups = consumers("a")
    ended = shard_events.WriteEnded(write_id=1)
    with pytest.raises(InvariantViolation, match="write 1"):
        groups.consumer.step(0, ended)


def test_a_member_of_a_state_that_is_not_known_here_starts_from_scratch() -> None:
    groups = consumers("a")
    member = groups.group.members["a"]
    object.__setattr__(member.current, "state", MemberState.UNKNOWN)
    assert groups.refused(heartbeat("a", 1)) is ErrorCode.FENCED_MEMBER_EPOCH
    owned = groups.topics.some("t", 0)
    assert groups.refused(heartbeat("a", 1, owned=owned)) is ErrorCode.FENCED_MEMBER_EPOCH
    assert groups.beat(heartbeat("a", 1, owned=NO_PARTITIONS)).member_epoch == 1
    assert member.current.state is MemberState.STABLE


SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def test_the_next_heartbeat_has_the_new_interval_and_begins_a_session_of_the_new_length() -> None:
    groups = consumers("a")
    groups.topics.configure("g", {SESSION: "50000", HEARTBEAT: "7000"})
    groups.tick(999)
    assert groups.beat(heartbeat("a", 1)).heartbeat_interval_ms == 7000
    groups.tick(49_999)
    assert not groups.writes
    groups.tick(1)
    assert groups.writes


def test_a_session_that_has_begun_keeps_its_length() -> None:
    groups = ConsumerCoordination()
    groups.topics.configure("g", {SESSION: "50000"})
    groups.beat(join("a"))
    groups.topics.configure("g", {})
    groups.tick(49_999)
    assert not groups.writes
    groups.tick(1)
    assert groups.writes


@pytest.mark.parametrize(
    ("own", "in_force"),
    [
        ({SESSION: "44999"}, (45_000, 5000)),
        ({SESSION: "60001", HEARTBEAT: "15001"}, (60_000, 15_000)),
        ({HEARTBEAT: "4999"}, (45_000, 5000)),
        ({"share.session.timeout.ms": "1"}, (45_000, 5000)),
    ],
)
def test_no_group_leaves_the_bounds_of_its_coordinator(
    own: dict[str, str], in_force: tuple[int, int]
) -> None:
    """The controller, whose bounds may be others, has taken the values."""
    times = GroupTimes(group_limits(BrokerSettings()), {"g": own})
    assert (times.session_timeout_ms("g"), times.heartbeat_interval_ms("g")) == in_force
    assert (times.session_timeout_ms("h"), times.heartbeat_interval_ms("h")) == (45_000, 5000)


def test_the_times_of_groups_are_settings_of_the_broker() -> None:
    settings = BrokerSettings(
        group_consumer_session_timeout_ms=51_000,
        group_consumer_heartbeat_interval_ms=6000,
        group_consumer_max_session_timeout_ms=52_000,
    )
    times = GroupTimes(group_limits(settings), {"g": {SESSION: "60000"}})
    assert (times.session_timeout_ms("g"), times.session_timeout_ms("h")) == (52_000, 51_000)
    assert times.heartbeat_interval_ms("g") == 6000


def test_a_topic_of_no_group_costs_no_look_at_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = ConsumerCoordination()
    names = [f"g{number}" for number in range(100)]
    for name in names:
        groups.ask(join("m0", group_id=name))
    groups.commit_writes()
    looked_at: list[str] = []

    def all_names(self: ConsumerGroup) -> frozenset[str]:
        looked_at.append(self.group_id)
        return frozenset({"t"})

    monkeypatch.setattr(ConsumerGroup, "all_names", all_names)
    groups.step(events.TopicsChanged(names={"unrelated"}))
    beats: list[Any] = [
        groups.ask(heartbeat("m0", groups.consumer.groups[name].group_epoch, group_id=name))
        for name in names
    ]
    assert all(request_id in groups.replies for request_id in beats)
    assert (looked_at, groups.writes) == ([], [])
