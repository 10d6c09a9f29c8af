"""Groups that change their protocol, and members of both protocols in one group."""

from dataclasses import replace
from typing import Any

from quorumlog.broker.groups.core.effects import VerifyTransaction
from quorumlog.broker.groups.core.group import GroupState
from quorumlog.broker.groups.core.requests import (
    CommitOffsets,
    CommittedOffset,
    DeleteGroup,
    DeleteOffsets,
    JoinResult,
    Leave,
    LeaveResult,
    LeavingMember,
    SyncResult,
)
from quorumlog.broker.groups.core.rewrite import RewriteLimits
from quorumlog.broker.settings import BrokerSettings
from quorumlog.client.core.group_protocol import decode_assignment
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.records import iterate_headers
from tests.support.groups.consumer.classic import (
    classic_beat,
    classic_join,
    classic_leave,
    classic_sync,
    some,
)
from tests.support.groups.consumer.coordination import (
    SETTINGS,
    ConsumerCoordination,
    TopicsOfTest,
    heartbeat,
    join,
)
from tests.support.groups.transactions import txn_commit

T0, T1 = some(0, 1)
MUST_JOIN = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION}
"""The codes that let a member join again, at the generation of the group or at an earlier one."""


def classic_group(
    settings: BrokerSettings = SETTINGS, topics: TopicsOfTest | None = None
) -> tuple[ConsumerCoordination, int]:
    """a and b are Stable members of a classic group, and have two partitions each."""
    groups = ConsumerCoordination(topics, settings)
    for member_id in ("a", "b"):
        groups.ask(classic_join("", new_member_id=member_id))
    groups.tick(250)
    generation_id = groups.coordinator.groups["g"].generation_id
    assigned = {"a": some(0, 1), "b": some(2, 3)}
    groups.ask(classic_sync("b", generation_id))
    groups.answer(classic_sync("a", generation_id, **assigned))
    assert groups.coordinator.groups["g"].state is GroupState.STABLE
    return groups, generation_id


def upgraded_group() -> tuple[ConsumerCoordination, int]:
    """c of the consumer protocol has joined them."""
    groups, generation_id = classic_group()
    groups.answer(join("c"))
    return groups, generation_id


def let_pass(groups: ConsumerCoordination, generation_id: int, member_id: str = "a") -> None:
    """Let more time pass than a rebalance may take; the classic member and c are alive."""
    for _ in range(6):
        groups.ask(classic_beat(member_id, generation_id))
        groups.ask(heartbeat("c", groups.group.members["c"].current.member_epoch))
        groups.tick(100)
        groups.commit_writes()


def rejoined(
    groups: ConsumerCoordination, member_id: str, *owned: Any
) -> tuple[int, tuple[Any, ...]]:
    """Join and sync as a classic member that has these; return its generation, what it has."""
    joined = groups.answer(classic_join(member_id, owned=owned))
    assert isinstance(joined, JoinResult)
    assert joined.error_code is ErrorCode.NONE
    assert (joined.protocol_name, joined.leader) == ("cooperative-sticky", "")
    synced = groups.answer(classic_sync(member_id, joined.generation_id))
    assert isinstance(synced, SyncResult)
    assert synced.error_code is ErrorCode.NONE
    return joined.generation_id, decode_assignment(synced.assignment)


def commit(member_id: str, epoch: int, offset: int = 7, version: int = 9) -> CommitOffsets:
    return CommitOffsets(
        group_id="g",
        member_id=member_id,
        generation_id=epoch,
        offsets={T0: CommittedOffset(offset=offset)},
        api_version=version,
    )


def test_a_consumer_member_whose_session_ends_lets_the_group_be_classic_again() -> None:
    groups, generation_id = upgraded_group()
    for _ in range(4):
        groups.tick(300)
        groups.commit_writes()
        for member_id in ("a", "b"):
            groups.ask(classic_beat(member_id, generation_id))
            owned = some(0, 1) if member_id == "a" else some(2, 3)
            groups.ask(classic_join(member_id, owned=owned))
            groups.commit_writes()
    assert groups.consumer.groups == {}
    assert {*groups.coordinator.groups["g"].members} == {"a", "b"}


def test_nothing_is_served_of_a_group_while_it_changes_its_protocol() -> None:
    groups, generation_id = classic_group()
    groups.ask(join("c"))
    busy = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    for request in (classic_beat("a", generation_id), DeleteGroup(group_id="g")):
        assert groups.replies[groups.ask(request)] is busy
    sync = groups.replies[groups.ask(classic_sync("a", generation_id))]
    assert sync.error_code is ErrorCode.REBALANCE_IN_PROGRESS
    for refused in (
        classic_join("a"),
        commit("a", generation_id),
        join("d"),
        DeleteOffsets(group_id="g", partitions=(T0,)),
    ):
        assert groups.replies[groups.ask(refused)].error_code is busy
    groups.tick(10_000)  # nor does time pass for its members
    groups.commit_writes()
    assert {*groups.group.members} == {"a", "b", "c"}


def test_waiting_members_of_a_group_that_is_converted_join_again() -> None:
    groups, generation_id = classic_group()
    both = (("cooperative-sticky", classic_join("a").protocols[0][1]), ("range", b""))
    waits = groups.ask(classic_join("a", session_timeout_ms=900, protocols=both))
    assert groups.coordinator.groups["g"].state is GroupState.PREPARING_REBALANCE
    groups.answer(join("c"))
    assert groups.replies[waits].error_code is ErrorCode.REBALANCE_IN_PROGRESS
    assert generation_id <= groups.group.group_epoch
    assert {*groups.group.members} == {"a", "b", "c"}


def test_a_policy_may_forbid_either_conversion() -> None:
    groups, _ = classic_group(replace(SETTINGS, group_consumer_migration_policy="downgrade"))
    assert groups.refused(join("c")) is ErrorCode.GROUP_ID_NOT_FOUND
    groups, _ = classic_group(replace(SETTINGS, group_consumer_migration_policy="upgrade"))
    groups.answer(join("c"))
    groups.beat(heartbeat("c", -1))
    assert {*groups.group.members} == {"a", "b"}
    assert groups.coordinator.groups == {}


def test_a_group_whose_members_cannot_be_read_stays_classic() -> None:
    groups = ConsumerCoordination()
    unreadable = classic_join("", new_member_id="a", protocols=(("range", b"?"),))
    groups.ask(unreadable)
    assert groups.refused(join("c")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    groups.tick(250)
    assert groups.refused(join("c")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    groups.answer(classic_sync("a", 1, a=()))
    assert groups.refused(join("c")) is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_bad_heartbeat_converts_nothing() -> None:
    groups, _ = classic_group()
    assert groups.refused(join("c", server_assignor="none")) is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert groups.refused(join("c", member_epoch=4)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.coordinator.groups["g"].state is GroupState.STABLE


def test_groups_without_members_give_way_to_either_protocol() -> None:
    groups, _ = classic_group()
    groups.answer(classic_leave("a", "b"))
    groups.answer(join("c"))
    assert {*groups.group.members} == {"c"}
    assert groups.coordinator.groups == {}
    groups.beat(heartbeat("c", -1))
    assert groups.group.state.value == "Empty"
    request_id = groups.ask(classic_join("", new_member_id="a"))
    groups.commit_writes()
    groups.tick(200)
    assert groups.replies[request_id].error_code is ErrorCode.NONE
    assert groups.consumer.groups == {}
    assert {*groups.coordinator.groups["g"].members} == {"a"}


def test_an_administrator_removes_members_of_either_protocol_by_leave_group() -> None:
    groups, generation_id = classic_group()
    groups.beat(join("c"))
    groups.beat(join("d", instance_id="i"))
    by_instance = Leave(group_id="g", members=(LeavingMember(member_id="", group_instance_id="i"),))
    left = groups.answer(by_instance)
    assert left == LeaveResult(error_code=ErrorCode.NONE, members=(ErrorCode.NONE,))
    assert {*groups.group.members} == {"a", "b", "c"}
    groups.check_replayed()
    gone = groups.answer(classic_leave("c", "b", "nobody"))
    outcomes = (ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)
    assert gone == LeaveResult(error_code=ErrorCode.NONE, members=outcomes)
    assert groups.consumer.groups == {}  # none of KIP-848 is left: it is a classic group again
    assert {*groups.coordinator.groups["g"].members} == {"a"}
    assert groups.answer(classic_beat("a", generation_id)) in MUST_JOIN
    assert groups.refused(heartbeat("c", generation_id)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_of_kip_848_that_was_removed_joins_again() -> None:
    groups = ConsumerCoordination()
    epoch = groups.beat(join("c")).member_epoch
    groups.answer(classic_leave("c"))
    assert groups.group.members == {}
    assert groups.refused(heartbeat("c", epoch)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.beat(join("c")).member_epoch > epoch


def test_a_member_may_change_its_protocol_itself() -> None:
    groups, generation_id = classic_group()
    result = groups.beat(join("a"))
    assert result.member_epoch == generation_id + 1
    assert not groups.group.members["a"].is_classic
    assert groups.answer(classic_beat("a", generation_id)) is ErrorCode.UNKNOWN_MEMBER_ID
    joins_again = groups.answer(classic_beat("b", generation_id))
    assert joins_again is ErrorCode.REBALANCE_IN_PROGRESS
    groups.beat(join("b"))
    assert groups.group.state.value == "Stable"


def test_an_upgrade_amid_a_rebalance_leaves_no_partition_without_an_owner() -> None:
    groups = ConsumerCoordination()
    groups.ask(classic_join("", new_member_id="a"))
    groups.ask(classic_join("", new_member_id="b", group_instance_id="i"))
    groups.tick(250)
    assert groups.coordinator.groups["g"].state is GroupState.COMPLETING_REBALANCE
    groups.beat(join("c", instance_id="i"))  # the static member, with the same subscription
    rejoined(groups, "a")
    assert {one.partition for one in groups.group.owners} == {0, 1, 2, 3}


def test_an_upgrade_assigns_partitions_that_no_leader_has_assigned_yet() -> None:
    groups, _ = classic_group()
    groups.set_topic("t", 6)
    groups.beat(join("a"))
    rejoined(groups, "b", *some(2, 3))
    assert {one.partition for one in groups.group.owners} == {0, 1, 2, 3, 4, 5}


def test_a_classic_member_that_does_not_join_again_is_removed() -> None:
    groups, generation_id = upgraded_group()
    let_pass(groups, generation_id)
    assert "a" not in groups.group.members


def test_a_classic_member_that_does_not_sync_is_removed_and_one_that_has_stays() -> None:
    groups, _ = upgraded_group()
    joined = groups.answer(classic_join("a", owned=(T0, T1)))
    let_pass(groups, joined.generation_id)
    assert "a" not in groups.group.members
    groups, _ = upgraded_group()
    generation_id, has = rejoined(groups, "a", T0, T1)
    generation_id, has = rejoined(groups, "a", *has)
    let_pass(groups, generation_id)
    assert "a" in groups.group.members


def test_a_classic_member_that_joins_after_its_session_takes_nothing_from_its_successor() -> None:
    """It may still believe that it has all: its sync is the first response that denies it."""
    groups = ConsumerCoordination()
    everything = some(0, 1, 2, 3)
    for member_id in ("a", "b"):
        groups.tick(1500)  # longer than the session of the member before
        groups.ask(classic_join("", new_member_id=member_id))
        groups.tick(100)
        generation_id = groups.coordinator.groups["g"].generation_id
        groups.answer(classic_sync(member_id, generation_id, **{member_id: everything}))
    assert {*groups.coordinator.groups["g"].members} == {"b"}
    groups.answer(join("c"))
    assert rejoined(groups, "a", *everything)[1] == ()
    assert {*groups.group.owners.values()} == {"b"}
    _, has = rejoined(groups, "b", *everything)
    assert {*has} < {*everything}
    assert {*groups.group.owners.values()} == {"b"}  # until it joins without them


def test_members_of_both_kinds_commit_with_what_they_know() -> None:
    groups, generation_id = classic_group()
    epoch = groups.beat(join("c")).member_epoch

    def code(request: CommitOffsets) -> ErrorCode:
        result = groups.answer(request)
        found: ErrorCode = result.partitions.get(T0, result.error_code)
        return found

    assert code(commit("c", epoch)) is ErrorCode.NONE
    assert code(commit("c", epoch - 1)) is ErrorCode.STALE_MEMBER_EPOCH
    assert code(commit("c", epoch, version=8)) is ErrorCode.UNSUPPORTED_VERSION
    assert code(commit("x", epoch)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code(commit("a", generation_id, version=8)) is ErrorCode.NONE
    assert code(commit("a", generation_id + 1)) is ErrorCode.ILLEGAL_GENERATION
    assert code(commit("", -1)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_transaction_commits_for_a_member_at_its_epoch_only() -> None:
    """As in Kafka, producers receive ILLEGAL_GENERATION in place of STALE_MEMBER_EPOCH."""
    groups, _ = classic_group()
    epoch = groups.beat(join("c")).member_epoch
    for member_id, member_epoch, refusal in (
        ("c", epoch - 1, ErrorCode.ILLEGAL_GENERATION),
        ("x", epoch, ErrorCode.UNKNOWN_MEMBER_ID),
        ("c", epoch, ErrorCode.NONE),
    ):
        request = txn_commit(7, member_id=member_id, generation_id=member_epoch)
        request_id = groups.ask(request)
        while groups.own:
            verify = groups.own.pop()
            assert isinstance(verify, VerifyTransaction)
            groups.step(verify.verified(ErrorCode.NONE))
        groups.commit_writes()
        result = groups.replies[request_id]
        assert result.partitions.get(T0, result.error_code) is refusal, (member_id, member_epoch)


def test_offsets_and_groups_are_deleted_when_nobody_needs_them() -> None:
    groups = ConsumerCoordination()
    epoch = groups.beat(join("c")).member_epoch
    groups.answer(commit("c", epoch))
    subscribed = groups.answer(DeleteOffsets(group_id="g", partitions=(T0,)))
    assert subscribed.partitions == {T0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    assert groups.answer(DeleteGroup(group_id="g")) is ErrorCode.NON_EMPTY_GROUP
    groups.ask(heartbeat("c", -1))
    early = groups.replies[groups.ask(DeleteGroup(group_id="g"))]
    assert early is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # the departure is not written yet
    groups.commit_writes()
    request_id = groups.ask(DeleteGroup(group_id="g"))
    [_] = groups.writes  # the group and its offsets in one batch
    groups.commit_writes()
    assert groups.replies[request_id] is ErrorCode.NONE
    assert groups.coordinator.known_groups() == []
    assert groups.reloaded().coordinator.known_groups() == []


def test_an_empty_group_is_forgotten_when_its_offsets_have_expired() -> None:
    groups = ConsumerCoordination()
    epoch = groups.beat(join("c")).member_epoch
    groups.answer(commit("c", epoch))
    groups.beat(heartbeat("c", -1))
    groups.tick(7 * 24 * 3_600_000 - 700_000)
    groups.commit_writes()
    assert groups.coordinator.known_groups() == ["g"]
    groups.tick(1_400_000)
    groups.commit_writes()
    assert groups.coordinator.known_groups() == []
    assert groups.reloaded().coordinator.known_groups() == []


def test_a_log_of_consumer_groups_is_rewritten_with_them() -> None:
    groups = ConsumerCoordination(rewrite_limits=RewriteLimits(records_min=20))
    epoch = groups.beat(join("c")).member_epoch
    for offset in range(60):
        groups.answer(commit("c", epoch, offset))
    assert groups.starts
    live = groups.coordinator.committed
    first = next(
        place
        for place in range(len(groups.batches))
        if sum(_count(batch) for batch in groups.batches[:place]) >= groups.starts[-1]
    )
    loaded = ConsumerCoordination(groups.topics, batches=groups.batches[first:])
    assert loaded.coordinator.committed == live
    assert {*loaded.group.members} == {"c"}


def _count(batch: bytes) -> int:
    return sum(header.record_count for _, header in iterate_headers(batch))


def upgraded_while_moving() -> tuple[ConsumerCoordination, int]:
    """a has two partitions, and its next generation leaves it one; then `new` makes the upgrade."""
    groups, _ = classic_group()
    groups.ask(classic_join("a", owned=(T0, T1)))
    joined = groups.answer(classic_join("b", owned=some(2, 3)))
    groups.ask(classic_sync("b", joined.generation_id))
    groups.answer(classic_sync("a", joined.generation_id, a=(T0,), b=some(2, 3)))
    groups.answer(join("new"))
    return groups, joined.generation_id


def of_the_new(groups: ConsumerCoordination) -> set[TopicPartition]:
    assigned = groups.group.members["new"].current.assigned
    return {TopicPartition("t", one.partition) for one in assigned}


def test_what_a_classic_member_gives_up_is_free_once_it_has_joined_without_it() -> None:
    groups, generation_id = upgraded_while_moving()
    assert T1 not in of_the_new(groups)  # a may not have heard of it yet
    told = groups.answer(classic_beat("a", generation_id))
    assert told is ErrorCode.REBALANCE_IN_PROGRESS
    groups.answer(classic_join("a", owned=(T0, T1)))
    groups.beat(heartbeat("new", generation_id + 1))
    assert T1 not in of_the_new(groups)
    assert rejoined(groups, "a", T0) == (generation_id + 1, (T0,))
    groups.beat(heartbeat("new", generation_id + 1))
    assert T1 in of_the_new(groups)
    groups.check_replayed()


def test_a_classic_member_that_does_not_give_up_is_removed_after_its_rebalance_timeout() -> None:
    groups, generation_id = upgraded_while_moving()
    groups.tick(499)
    assert "a" in groups.group.members
    groups.tick(1)
    groups.commit_writes()
    assert "a" not in groups.group.members
    groups.beat(heartbeat("new", generation_id + 1))
    assert {T0, T1} & of_the_new(groups)
    groups.check_replayed()
