"""Each rule of groups in whole nodes, with a history that breaks it."""

from typing import Any, Final

import pytest

from quorumlog.broker.groups.core.consumer.records import (
    AssignedPartitions,
    ConsumerGroupRecord,
    CurrentAssignmentValue,
    GroupValue,
    MemberValue,
    RecordKey,
    RecordKind,
    StoredPartitions,
    TargetMemberValue,
    Value,
)
from quorumlog.broker.groups.core.records import (
    GroupRecord,
    OffsetRecord,
    StoredGroup,
    StoredMember,
)
from quorumlog.broker.groups.core.requests import CommittedOffset
from quorumlog.chaos.simulation.oracles import exchanges
from quorumlog.chaos.simulation.oracles.exchanges import RUDE, Exchange
from quorumlog.chaos.simulation.oracles.group_members import GroupMembers
from quorumlog.chaos.simulation.oracles.group_offsets import GroupOffsets
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicPartition
from quorumlog.wire.codec.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    RequestTopicPartitions,
    ResponseTopicPartitions,
)
from quorumlog.wire.codec.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from quorumlog.wire.codec.messages.consumer_protocol_assignment import (
    TopicPartition as AssignedTopic,
)
from quorumlog.wire.codec.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from quorumlog.wire.codec.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from quorumlog.wire.codec.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from quorumlog.wire.codec.schemas import RequestHeader, encode_message
from quorumlog.wire.codec.transaction_markers import TransactionMarker

GROUP: Final = "readers"
TOPIC: Final = "chaos"
TOPIC_ID: Final = b"t" * 16
WHERE: Final = TopicPartition(TOPIC, 0)


def assignment(*partitions: int) -> bytes:
    topics = [AssignedTopic(topic=TOPIC, partitions=[*partitions])]
    message = ConsumerProtocolAssignment(assigned_partitions=topics)
    return b"\0\0" + b"".join(encode_message(message, 0))


class History:
    """Steps of a history; `broken` has the rules that the oracles found broken."""

    def __init__(self) -> None:
        self.told: list[str] = []
        names = {TOPIC_ID: TOPIC}.get
        self.members = GroupMembers(names, self.told.append)
        self.offsets = GroupOffsets(self.members, names, self.told.append)

    @property
    def broken(self) -> list[str]:
        return [one.partition(":")[0] for one in self.told]

    def exchange(self, api_key: int, version: int, request: Any, *, by: str = "m1") -> Exchange:
        made = Exchange(1, RequestHeader(api_key, version, 1, by), request)
        made.mark = self.offsets.changes
        return made

    # --- the classic protocol ---

    def generation(self, number: int, **members: bytes) -> "History":
        stored = StoredGroup(
            protocol_type="consumer",
            generation_id=number,
            members=[StoredMember(member_id=name, assignment=members[name]) for name in members],
        )
        self.members.read(GroupRecord(group_id=GROUP, stored=stored))
        self.members.batch_ends()
        return self

    def syncs(self, member_id: str, generation: int, assigned: bytes) -> None:
        request = SyncGroupRequest(group_id=GROUP, generation_id=generation, member_id=member_id)
        exchange = self.exchange(exchanges.SYNC_GROUP, 5, request)
        exchange.response = SyncGroupResponse(assignment=assigned)
        self.members.synced(exchange)

    # --- the consumer protocol ---

    def record(self, kind: RecordKind, name: str, value: Value | None) -> "History":
        key = RecordKey(kind, GROUP, name)
        self.members.read(ConsumerGroupRecord(subject=key, value=value))
        self.members.batch_ends()
        return self

    def joins(self, *members: str) -> "History":
        self.record(RecordKind.GROUP, "", GroupValue(epoch=1))
        for name in members:
            self.record(RecordKind.MEMBER, name, MemberValue())
        return self

    def current(self, name: str, epoch: int, *partitions: int, previous: int = 0) -> "History":
        value = CurrentAssignmentValue(
            member_epoch=epoch,
            previous_member_epoch=previous,
            assigned_partitions=[AssignedPartitions(topic_id=TOPIC_ID, partitions=[*partitions])],
        )
        return self.record(RecordKind.CURRENT_ASSIGNMENT, name, value)

    def beats(
        self, name: str, epoch: int, reports: tuple[int, ...] | None = None, *, by: str = "m1"
    ) -> Exchange:
        topics = [RequestTopicPartitions(topic_id=TOPIC_ID, partitions=[*(reports or ())])]
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=name,
            member_epoch=epoch,
            topic_partitions=None if reports is None else topics,
        )
        exchange = self.exchange(exchanges.CONSUMER_HEARTBEAT, 1, request, by=by)
        self.members.reports(exchange)
        return exchange

    def answered(
        self, exchange: Exchange, epoch: int, assigned: tuple[int, ...] | None = None
    ) -> None:
        topics = [ResponseTopicPartitions(topic_id=TOPIC_ID, partitions=[*(assigned or ())])]
        exchange.response = ConsumerGroupHeartbeatResponse(
            member_id=exchange.request.member_id,
            member_epoch=epoch,
            assignment=None if assigned is None else Assignment(topic_partitions=topics),
        )
        self.members.assigned(exchange, is_current=True)

    # --- offsets ---

    def commits(self, offset: int, member_id: str = "m", epoch: int = 1) -> Exchange:
        part = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = OffsetCommitRequest(
            group_id=GROUP,
            member_id=member_id,
            generation_id_or_member_epoch=epoch,
            topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[part])],
        )
        exchange = self.exchange(exchanges.OFFSET_COMMIT, 9, request)
        self.offsets.asked(exchange)
        return exchange

    def acknowledged(self, exchange: Exchange) -> None:
        part = OffsetCommitResponsePartition(partition_index=0)
        topics = [OffsetCommitResponseTopic(name=TOPIC, partitions=[part])]
        exchange.response = OffsetCommitResponse(topics=topics)
        self.offsets.committed(exchange)

    def stored(
        self, offset: int | None, producer_id: int = -1, topic_id: bytes = ZERO_TOPIC_ID
    ) -> "History":
        """Store a commit, or (None) a tombstone."""
        committed = None if offset is None else CommittedOffset(offset=offset, topic_id=topic_id)
        record = OffsetRecord(group_id=GROUP, topic_partition=WHERE, committed=committed)
        self.offsets.read(0, record, producer_id)
        return self

    def ends(self, producer_id: int, *, commits: bool = True) -> "History":
        self.offsets.ends(0, TransactionMarker(producer_id, 1, 0, commits))
        return self

    def fetch(self, *, requires_stable: bool = False) -> Exchange:
        request = OffsetFetchRequest(require_stable=requires_stable)
        return self.exchange(exchanges.OFFSET_FETCH, 8, request)

    def returns(self, exchange: Exchange, offset: int, *, is_current: bool = True) -> None:
        part = OffsetFetchResponsePartitions(
            partition_index=0, committed_offset=offset, metadata=""
        )
        topics = [OffsetFetchResponseTopics(name=TOPIC, partitions=[part])]
        groups = [OffsetFetchResponseGroup(group_id=GROUP, topics=topics)]
        exchange.response = OffsetFetchResponse(groups=groups)
        self.offsets.fetched(exchange, is_current=is_current)


@pytest.fixture
def history() -> History:
    return History()


# --- classic groups ---


def test_a_generation_with_one_owner_for_each_partition_breaks_no_rule(history: History) -> None:
    history.generation(1, a=assignment(0), b=assignment(1)).syncs("a", 1, assignment(0))
    history.generation(2, a=assignment(0, 1)).syncs("a", 2, assignment(0, 1))
    assert history.told == []


def test_an_assignment_is_in_the_log_before_a_member_receives_it(history: History) -> None:
    history.generation(1, a=assignment(0)).syncs("a", 1, assignment(1))
    assert history.broken == ["assigned-committed"]


def test_a_partition_has_one_owner_in_a_generation(history: History) -> None:
    history.generation(1, a=assignment(0), b=assignment(0))
    assert history.broken == ["one-owner"]
    other = History()
    other.generation(1, a=assignment(0)).generation(1, b=assignment(0))
    assert other.broken == ["one-owner"]


def test_a_generation_never_decreases_unless_the_group_was_deleted(history: History) -> None:
    history.generation(2).generation(1)
    assert history.broken == ["group-generation"]
    other = History()
    other.generation(2).members.read(GroupRecord(group_id=GROUP, stored=None))
    other.generation(1)
    assert other.told == []


# --- consumer groups ---


def test_a_revoked_partition_may_get_another_owner(history: History) -> None:
    history.joins("a", "b").current("a", 1, 0)
    history.answered(history.beats("a", 0, ()), 1, (0,))
    history.current("a", 2)
    history.answered(history.beats("a", 1, ()), 2, ())
    history.current("b", 2, 0)
    history.answered(history.beats("b", 0, ()), 2, (0,))
    assert history.told == []


def test_a_partition_that_its_owner_still_reports_gets_no_other_owner(history: History) -> None:
    history.joins("a", "b").current("a", 1, 0)
    history.answered(history.beats("a", 0, ()), 1, (0,))
    history.current("a", 2).current("b", 2, 0)
    history.answered(history.beats("b", 0, ()), 2, (0,))
    assert history.broken == ["one-owner"]


def test_a_removed_member_owns_nothing_any_more(history: History) -> None:
    history.joins("a", "b").current("a", 1, 0)
    history.answered(history.beats("a", 0, ()), 1, (0,))
    history.record(RecordKind.CURRENT_ASSIGNMENT, "a", None).record(RecordKind.MEMBER, "a", None)
    history.current("b", 2, 0)
    history.answered(history.beats("b", 0, ()), 2, (0,))
    assert history.told == []


def test_two_members_have_no_partition_in_common_in_the_log(history: History) -> None:
    history.joins("a", "b").current("a", 1, 0).current("b", 1, 0)
    assert history.broken == ["one-owner"]


def test_a_target_gives_a_partition_to_one_member(history: History) -> None:
    def target(*partitions: int) -> TargetMemberValue:
        stored = StoredPartitions(topic_id=TOPIC_ID, partitions=[*partitions])
        return TargetMemberValue(topic_partitions=[stored])

    history.joins("a", "b").record(RecordKind.TARGET_MEMBER, "a", target(0, 1))
    history.record(RecordKind.TARGET_MEMBER, "b", target(2))
    assert history.told == []
    history.record(RecordKind.TARGET_MEMBER, "b", target(1, 2))
    assert history.broken == ["one-target"]


def test_a_member_receives_only_epochs_and_assignments_of_the_log(history: History) -> None:
    history.joins("a").answered(history.beats("a", 0, ()), 1)
    assert history.broken == ["assigned-committed"]
    other = History()
    other.joins("a").current("a", 1, 0).answered(other.beats("a", 0, ()), 1, (1,))
    assert other.broken == ["assigned-committed"]


def test_epochs_of_a_consumer_group_never_decrease(history: History) -> None:
    history.joins("a").record(RecordKind.GROUP, "", GroupValue(epoch=1))
    assert history.broken == ["epoch-rises"]
    other = History()
    other.joins("a").current("a", 2).current("a", 1)
    assert other.broken == ["epoch-rises"]
    third = History()
    third.joins("a").current("a", 1).current("a", 2)
    third.answered(third.beats("a", 1), 2)
    third.answered(third.beats("a", 1), 1)
    assert third.broken == ["epoch-rises"]


def test_a_late_heartbeat_is_fenced(history: History) -> None:
    history.joins("a").current("a", 3, previous=2)
    exchange = history.beats("a", 1, by=RUDE)
    exchange.response = ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.FENCED_MEMBER_EPOCH, member_id="a"
    )
    history.members.refused(exchange, is_current=True)
    assert history.told == []
    exchange.response = ConsumerGroupHeartbeatResponse(member_id="a", member_epoch=3)
    history.members.refused(exchange, is_current=True)
    assert history.broken == ["fenced-heartbeat"]


def test_a_group_has_the_records_of_one_protocol(history: History) -> None:
    history.generation(1, a=assignment(0)).joins("a")
    assert "one-form" in history.broken


# --- offsets ---


def test_a_commit_is_acknowledged_after_its_record(history: History) -> None:
    exchange = history.commits(5)
    history.stored(5).acknowledged(exchange)
    assert history.told == []
    history.acknowledged(history.commits(5))  # the record is of the commit before
    assert history.broken == ["acked-committed"]


def test_a_committed_offset_was_sent_by_a_client(history: History) -> None:
    history.stored(5)
    assert history.broken == ["commit-sent"]


def test_a_commit_of_an_older_generation_is_not_stored(history: History) -> None:
    history.generation(1, m=b"")
    history.commits(5)
    history.commits(6, "stranger")
    history.generation(2, m=b"").stored(5)
    assert history.broken == ["fenced-commit"]
    other = History()
    other.generation(1, m=b"").commits(6, "stranger")
    other.stored(6)
    assert other.broken == ["fenced-commit"]


def test_no_commit_of_a_static_member_follows_its_replacement(history: History) -> None:
    history.generation(1, m=b"").commits(5)
    history.stored(5)
    assert history.told == []
    history.commits(6)
    history.generation(1, successor=b"").stored(6)
    assert history.broken == ["fenced-commit"]


def test_a_commit_at_an_older_member_epoch_needs_the_partition_since_then(history: History) -> None:
    history.joins("m").current("m", 1, 0).current("m", 2, 0)
    history.commits(5)
    history.stored(5)
    assert history.told == []
    history.current("m", 3).current("m", 4, 0).commits(6, epoch=2)
    history.stored(6)
    assert history.broken == ["fenced-commit"]


def test_a_commit_is_late_once_no_record_may_have_it(history: History) -> None:
    history.generation(1, m=b"")
    request = history.commits(5).request
    assert not history.offsets.is_late(request)
    history.generation(2, m=b"")
    assert history.offsets.is_late(request)


def test_an_offset_of_an_earlier_topic_of_the_name_may_be_hidden(history: History) -> None:
    earlier = bytes(range(16))
    history.commits(5)
    history.stored(5, topic_id=earlier)
    history.offsets.has_topics({TOPIC: earlier})
    history.returns(history.fetch(), -1)
    assert history.broken == ["offset-lost"]
    history.offsets.has_topics({TOPIC: TOPIC_ID})
    history.returns(history.fetch(), -1)
    history.returns(history.fetch(), 5)
    assert history.broken == ["offset-lost"]


def test_a_fetch_returns_the_committed_offset(history: History) -> None:
    history.commits(5)
    history.commits(6)
    history.stored(5)
    before = history.fetch()
    history.stored(6)
    history.returns(before, 5)
    history.returns(before, 6)
    history.returns(history.fetch(), 5, is_current=False)
    assert history.told == []
    history.returns(history.fetch(), 5)
    history.returns(history.fetch(), 7)
    assert history.broken == ["offset-lost", "fetched-committed"]


@pytest.mark.parametrize("commits", [True, False])
def test_an_offset_of_a_transaction_counts_after_its_commit(
    commits: bool, history: History
) -> None:
    history.stored(5, producer_id=7)
    history.returns(history.fetch(), 5)
    assert history.broken == ["fetched-committed"]
    history.told.clear()
    history.ends(7, commits=commits).returns(history.fetch(), 5)
    assert history.broken == ([] if commits else ["fetched-committed"])


def test_a_fetch_of_stable_offsets_waits_for_pending_commits(history: History) -> None:
    history.commits(4)
    history.stored(4).stored(5, producer_id=7)
    history.returns(history.fetch(), 4)
    assert history.told == []
    history.returns(history.fetch(requires_stable=True), 4)
    assert history.broken == ["unstable-shown"]


def test_the_newest_record_counts_whichever_transaction_ends_last(history: History) -> None:
    history.stored(5, producer_id=7).stored(6, producer_id=8).ends(8).ends(7)
    history.returns(history.fetch(), 6)
    assert history.told == []
    history.returns(history.fetch(), 5)
    assert history.broken == ["fetched-committed"]


def test_a_deleted_offset_does_not_return_with_its_transaction(history: History) -> None:
    history.stored(5, producer_id=7).stored(None)
    history.returns(history.fetch(requires_stable=True), -1)
    history.ends(7).returns(history.fetch(), -1)
    assert history.told == []
    history.returns(history.fetch(), 5)
    assert history.broken == ["fetched-committed"]


def test_a_rewrite_repeats_offsets_of_former_members_and_of_transactions(history: History) -> None:
    history.generation(1, m=b"").commits(5)
    history.stored(5).generation(2).stored(5)
    history.stored(6, producer_id=7).ends(7).stored(6)
    assert history.told == []
    history.stored(5)
    assert history.broken == ["fenced-commit"]


def test_a_commit_of_a_transaction_is_acknowledged_after_its_record(history: History) -> None:
    exchange = history.commits(5)
    exchange.header = RequestHeader(exchanges.TXN_OFFSET_COMMIT, 3, 1, "m1")
    history.stored(5).acknowledged(exchange)
    assert history.broken == ["acked-committed"]
    history.stored(5, producer_id=7).acknowledged(exchange)
    assert history.broken == ["acked-committed"]
