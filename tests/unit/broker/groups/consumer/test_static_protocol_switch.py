"""A static member returns: each protocol before and after, by its owner's presence and its id.

The outcomes are those of Apache Kafka 4.3 (KIP-345, KIP-848): a member of the consumer protocol
waits only for a present owner of the consumer protocol; every other pair is a replacement.
"""

from itertools import product
from typing import Any

import pytest

from quorumlog.broker.groups.core.consumer.partitions import Partitions
from quorumlog.broker.groups.core.consumer.states import ConsumerGroupState
from quorumlog.broker.groups.core.requests import CommitOffsets, CommittedOffset, Heartbeat, Sync
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.groups.consumer.classic import classic_join, classic_sync, some
from tests.support.groups.consumer.coordination import ConsumerCoordination, heartbeat, join

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
    commit = CommitOffsets(
        group_id="g",
        member_id=OLD,
        generation_id=epoch,
        group_instance_id="i",
        offsets={some(0)[0]: CommittedOffset(offset=7)},
    )
    # Kafka's ConsumerGroup.validateOffsetCommit looks the member up by its id alone.
    assert switch.groups.answer(commit).error_code is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("member_id", [OLD, NEW])
def test_the_only_member_of_a_classic_group_returns_with_the_consumer_protocol(
    member_id: str,
) -> None:
    groups = ConsumerCoordination()
    joined = groups.ask(classic_join("", new_member_id=OLD, group_instance_id="i"))
    groups.tick(250)
    generation_id = groups.replies[joined].generation_id
    groups.answer(classic_sync(OLD, generation_id, old=some(0, 1, 2, 3)))
    result = groups.beat(join(member_id, instance_id="i"))
    assert result.assignment == groups.topics.some("t", 0, 1, 2, 3)
    assert {*groups.group.members} == {member_id}
    groups.check_replayed()
