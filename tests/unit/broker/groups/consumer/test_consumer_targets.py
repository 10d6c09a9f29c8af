"""Large targets are made outside of the step: who waits for them, and what they may not undo."""

import pytest

from quorumlog.broker.groups.core.consumer import awaited_targets, events, targets
from quorumlog.broker.groups.core.consumer.effects import MakeTarget
from quorumlog.broker.groups.core.consumer.group import ConsumerGroup
from quorumlog.broker.groups.core.consumer.records import (
    ConsumerGroupRecord,
    CurrentAssignmentValue,
    TargetMemberValue,
    decode,
    from_stored,
)
from quorumlog.broker.groups.core.consumer.states import ConsumerGroupState
from quorumlog.broker.groups.core.requests import DeleteGroup
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import decode_batches
from tests.support.coordination.groups_begun import consumers
from tests.support.groups.consumer.classic import classic_join
from tests.support.groups.consumer.coordination import (
    ConsumerCoordination,
    TopicsOfTest,
    heartbeat,
    join,
)


def large(partitions: int = 2000) -> ConsumerCoordination:
    topics = TopicsOfTest()
    topics.set("t", partitions)
    return ConsumerCoordination(topics)


def large_with_a() -> tuple[ConsumerCoordination, int]:
    """Member a has all partitions; with its epoch."""
    groups = large()
    return groups, groups.beat(join("a")).member_epoch


def commit_all(groups: ConsumerCoordination) -> None:
    """Commit what is written, but make no target."""
    while groups.writes:
        groups.commit_write()


def test_two_hundred_joins_need_two_targets() -> None:
    groups = large()
    asked = [groups.ask(join(f"m{number}")) for number in range(200)]
    commit_all(groups)
    assert groups.group.state is ConsumerGroupState.ASSIGNING
    jobs = []
    while groups.own:
        [effect] = groups.own
        assert isinstance(effect, MakeTarget)
        jobs.append(len(effect.job.members))
        groups.make_target()
        commit_all(groups)
    assert jobs == [1, 200]
    results = [groups.replies[request_id] for request_id in asked]
    assert {result.error_code for result in results} == {ErrorCode.NONE}
    assert {result.member_epoch for result in results} == {1, 200}
    sizes = {len(partitions) for partitions in groups.group.targets.values()}
    assert sizes == {10}
    groups.check_replayed()


def partitions_in(record: ConsumerGroupRecord) -> int:
    match record.value:
        case TargetMemberValue(topic_partitions=stored):
            return len(from_stored(stored))
        case CurrentAssignmentValue(assigned_partitions=stored):
            return len(from_stored(stored))
        case _:
            return 0


def taken_over_in_slices(members: int, partitions: int, patch: pytest.MonkeyPatch) -> list[int]:
    """Let members join together; return how many partitions each step decided on at the end."""
    groups = large(partitions)
    asked = [groups.ask(join(f"m{number}")) for number in range(members)]
    commit_all(groups)
    groups.make_target()  # for the first one
    commit_all(groups)
    steps = [0]
    apply = ConsumerGroup.apply

    def counting(group: ConsumerGroup, record: ConsumerGroupRecord) -> None:
        apply(group, record)
        steps[-1] += partitions_in(record)

    with patch.context() as while_it_counts:
        while_it_counts.setattr(ConsumerGroup, "apply", counting)
        groups.give_target()
        while groups.is_taking_over:
            steps.append(0)
            groups.step(events.Ticked())
    groups.commit_writes()
    assert all(groups.replies[one].error_code is ErrorCode.NONE for one in asked)
    assert groups.group.assignment_epoch == members
    assert {len(target) for target in groups.group.targets.values()} == {partitions // members}
    groups.check_replayed()
    return steps


def test_no_step_takes_over_more_of_a_larger_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awaited_targets, "SLICE_MAX", awaited_targets.SLICE_MAX // 4)
    small = taken_over_in_slices(10, 1000, monkeypatch)
    ten_times = taken_over_in_slices(100, 10_000, monkeypatch)
    slice_max = awaited_targets.SLICE_MAX + 1 + 10_000 // 100  # with its last member
    assert max(small + ten_times) <= slice_max
    assert len(ten_times) >= 2 * 10_000 // slice_max  # the parts are written, then told
    assert len(ten_times) >= 9 * len(small)


def test_a_member_that_leaves_between_slices_gets_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awaited_targets, "SLICE_MAX", 1)
    groups, epoch = large_with_a()
    asked = groups.ask(join("b"))
    commit_all(groups)
    groups.give_target()  # and a's part is written
    assert groups.is_taking_over
    left = groups.ask(heartbeat("a", -1))
    assert {*groups.group.members} == {"b"}
    groups.commit_writes()
    assert groups.replies[left].error_code is ErrorCode.NONE
    assert groups.replies[asked].error_code is ErrorCode.NONE
    told = groups.beat(heartbeat("b", groups.replies[asked].member_epoch))
    assert len(told.assignment or ()) == 2000
    assert groups.group.assignment_epoch == epoch + 2
    groups.check_replayed()


def test_a_heartbeat_between_slices_waits_behind_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awaited_targets, "SLICE_MAX", 1)
    groups, epoch = large_with_a()
    first = groups.ask(join("b"))
    commit_all(groups)
    groups.give_target()
    while groups.group.assignment_epoch == epoch:
        groups.step(events.Ticked())
    second = groups.ask(heartbeat("a", epoch))
    groups.commit_writes()
    answered = [one for one in groups.replies if one in {first, second}]
    assert answered == [first, second]
    assert len(groups.replies[second].assignment) == 1000


def test_a_refused_write_between_two_slices_ends_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awaited_targets, "SLICE_MAX", 1)
    groups = large()
    groups.beat(join("a"))
    asked = groups.ask(join("b"))
    commit_all(groups)
    groups.give_target()
    groups.fail_write()
    assert groups.replies[asked].error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not groups.is_taking_over
    groups.check_replayed()
    assert len(groups.beat(join("b")).assignment or ()) == 0  # a has all of it, as yet


def test_a_coordinator_that_takes_over_between_two_slices_makes_the_target_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(awaited_targets, "SLICE_MAX", 1)
    groups, epoch = large_with_a()
    groups.ask(join("b"))
    commit_all(groups)
    groups.give_target()
    groups.commit_write()  # a's part, without the epoch
    groups = groups.reloaded()
    assert groups.group.state is ConsumerGroupState.ASSIGNING
    assert len(groups.beat(heartbeat("a", epoch)).assignment or ()) == 1000
    groups.check_replayed()
    groups = large()
    groups.ask(join("a"))
    commit_all(groups)
    groups = groups.reloaded()  # before the first slice
    assert groups.group.state is ConsumerGroupState.ASSIGNING
    assert len(groups.beat(join("a")).assignment or ()) == 2000


def test_a_small_target_is_made_at_once() -> None:
    groups = large(999)
    groups.ask(join("m"))
    assert groups.own == []
    groups = large(1000)
    groups.ask(join("m"))
    assert len(groups.own) == 1


def test_a_heartbeat_waits_for_the_target_of_the_epoch() -> None:
    groups, epoch = large_with_a()
    groups.ask(join("b"))
    beats = groups.ask(heartbeat("a", epoch))
    commit_all(groups)
    assert beats not in groups.replies
    groups.commit_writes()
    assert len(groups.replies[beats].assignment) == 1000


def test_a_write_that_is_refused_refuses_what_waits_for_the_target() -> None:
    groups = large()
    request_id = groups.ask(join("a"))
    groups.fail_write()
    assert groups.replies[request_id].error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert groups.consumer.groups == {}
    groups.make_target()  # of a group that is not there any more
    assert (groups.consumer.groups, groups.writes) == ({}, [])
    assert groups.beat(join("a")).member_epoch == 1


def test_a_target_of_an_earlier_group_of_that_name_changes_nothing() -> None:
    groups = large()
    groups.ask(join("a"))
    groups.fail_write()
    groups.ask(join("b"))
    first, second = groups.own
    assert isinstance(first, MakeTarget)
    groups.step(events.TargetMade(job=first.job, target=first.job.run()))
    assert groups.group.assignment_epoch == 0
    groups.own.remove(first)
    groups.commit_writes()
    assert [*groups.group.targets] == ["b"]
    assert second not in groups.own


def test_a_member_that_has_left_meanwhile_is_told_so() -> None:
    groups, epoch = large_with_a()
    request_id = groups.ask(join("b"))
    commit_all(groups)
    groups.ask(heartbeat("b", -1))
    commit_all(groups)
    groups.commit_writes()
    assert groups.replies[request_id].error_code is ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.beat(heartbeat("a", epoch)).member_epoch == 3


def test_members_whose_sessions_end_while_their_target_is_made() -> None:
    groups = large()
    request_id = groups.ask(join("a"))
    commit_all(groups)
    groups.tick(2000)
    commit_all(groups)
    assert groups.group.state is ConsumerGroupState.EMPTY
    busy = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert groups.replies[groups.ask(DeleteGroup(group_id="g"))] is busy
    groups.commit_writes()
    assert groups.replies[request_id].error_code is ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.answer(DeleteGroup(group_id="g")) is ErrorCode.NONE


def test_a_static_member_that_is_replaced_meanwhile_is_in_the_target() -> None:
    groups = large()
    a = groups.beat(join("a", instance_id="i")).member_epoch
    groups.beat(heartbeat("a", -2, instance_id="i"))
    groups.ask(join("b"))
    returns = groups.ask(join("c", instance_id="i"))  # which begins no epoch
    groups.commit_writes()
    assert groups.replies[returns].error_code is ErrorCode.NONE
    had = [one for partitions in groups.group.targets.values() for one in partitions]
    assert len(had) == len({*had}) == 2000
    assert {*groups.group.targets} == {"b", "c"}
    assert a < groups.group.assignment_epoch


def test_a_classic_member_waits_as_well() -> None:
    groups = large()
    groups.beat(join("c"))
    request_id = groups.ask(classic_join("", new_member_id="a"))
    commit_all(groups)
    assert request_id not in groups.replies
    groups.commit_writes()
    assert groups.replies[request_id].generation_id == 2


@pytest.mark.parametrize("at_once_max", [0, 1 << 30])
def test_both_ways_give_the_same_target(monkeypatch: pytest.MonkeyPatch, at_once_max: int) -> None:
    monkeypatch.setattr(targets, "AT_ONCE_MAX", at_once_max)
    groups = large(7)
    for member_id in ("a", "b", "c"):
        groups.answer(join(member_id))
    assert sorted(map(len, groups.group.targets.values())) == [2, 2, 3]
    groups.check_replayed()


def test_only_the_parts_of_a_target_that_differ_are_written() -> None:
    groups = consumers("a", "b")
    before, parts = len(groups.batches), dict(groups.group.targets)
    groups.set_topic("t", 5)
    groups.beat(heartbeat("a", groups.group.members["a"].current.member_epoch))
    written = {
        record.subject.name
        for batch in groups.batches[before:]
        for _, records in decode_batches(batch)
        for one in records
        if (record := decode(one.key or b"", one.value)) is not None
        and isinstance(record.value, TargetMemberValue)
    }
    changed = {name for name, part in groups.group.targets.items() if part != parts[name]}
    assert len(changed) == 1
    assert written == changed
