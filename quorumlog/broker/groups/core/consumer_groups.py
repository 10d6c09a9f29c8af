"""The consumer groups of a `GroupCoordinator`, and groups that change their protocol.

`ConsumerGroups` routes requests about consumer groups to the `ConsumerGroupCoordinator`, and passes
the effects on in log order. A group changes its protocol in one batch: tombstones in the old
format, then its records in the new one. Until the batch is committed, all requests of the group are
refused. docs/decisions/0031-group-conversions.md
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, assert_never

from quorumlog.broker.groups.core.classic_groups import ClassicGroups
from quorumlog.broker.groups.core.consumer import events
from quorumlog.broker.groups.core.consumer.admission import check_fields
from quorumlog.broker.groups.core.consumer.conversion import (
    NotConvertible,
    Replacement,
    find_replacement,
    to_classic_group,
    to_consumer_records,
)
from quorumlog.broker.groups.core.consumer.coordinator import ConsumerGroupCoordinator
from quorumlog.broker.groups.core.consumer.effects import (
    AnswerRequest,
    AppendRecords,
    MakeTarget,
    MatchTopics,
)
from quorumlog.broker.groups.core.consumer.group import ConsumerGroup
from quorumlog.broker.groups.core.consumer.offsets import (
    commit_refusal,
    fetch_refusal,
    transactional_commit_refusal,
)
from quorumlog.broker.groups.core.consumer.requests import ConsumerHeartbeat, RequestRefused
from quorumlog.broker.groups.core.consumer.states import ConsumerGroupState
from quorumlog.broker.groups.core.consumer.topics import InvalidRegularExpression, Topics
from quorumlog.broker.groups.core.group import Group, GroupState
from quorumlog.broker.groups.core.group_outbox import GroupOutbox
from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.records import GroupRecord, LogRecord, StoredGroup
from quorumlog.broker.groups.core.requests import (
    CommitOffsets,
    CommitTransactionalOffsets,
    DeleteGroup,
    Heartbeat,
    Join,
    Leave,
    Request,
    Sync,
)
from quorumlog.broker.settings import BrokerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

OWN_REQUEST: Final = -1  # the coordinator's own request: no client waits for the response
BUSY: Final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
"""Retriable: clients of both protocols retry soon, without leaving their group."""

Replaced = Callable[[int, ErrorCode], None]


class ConsumerGroups:
    """The consumer groups of a coordinator that also has classic groups.

    Invariants:
    1. A group is a classic group, or a consumer group, or neither.
    2. During a protocol change, the only other records written for the group are tombstones of
       offsets in deleted topics.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        topics: Topics,
        outbox: GroupOutbox,
        committed: CommittedState,
        *,
        coordinator: ConsumerGroupCoordinator,
        classic: ClassicGroups,
    ) -> None:
        self.topics: Final = topics
        self.coordinator: Final = coordinator
        self._settings: Final = settings
        self._outbox: Final = outbox
        self._committed: Final = committed
        self._classic: Final = classic
        self._replaced: Final[set[str]] = set()  # groups whose protocol change is being written
        self._unmatched: Final[dict[str, list[tuple[int, ConsumerHeartbeat]]]] = {}

    def owns(self, group_id: str) -> bool:
        """Whether the group is a consumer group."""
        return group_id in self.coordinator.groups

    def is_in_use(self, group_id: str) -> bool:
        """Whether the group is a consumer group with members."""
        group = self.coordinator.groups.get(group_id)
        return group is not None and group.state is not ConsumerGroupState.EMPTY

    def is_replacing(self, group_id: str) -> bool:
        """Whether a protocol change of the group is being written."""
        return group_id in self._replaced

    # --- Requests ---

    def handle(
        self, now_ms: int, request_id: int, request: Request | ConsumerHeartbeat
    ) -> Request | None:
        """Serve a member's request to a consumer group, also a new one; return all others.

        A request about a group whose protocol changes is refused.
        """
        group_id = request.group_id
        group = self.coordinator.groups.get(group_id)
        if group_id in self._replaced:
            self._outbox.reply(request_id, request.refuse(BUSY))
            return None
        match request:
            case ConsumerHeartbeat():
                self._handle_heartbeat(now_ms, request_id, request)
            case _ if group is None:
                return request
            case Join() if group.state is ConsumerGroupState.EMPTY:
                self._give_way(request_id, request)
            case Join() if self._may_downgrade(group) and (
                replacement := find_replacement(group, request, self.topics)
            ):
                self._replace_last(now_ms, request_id, request, replacement)
            case Join() | Sync() | Heartbeat() | Leave():
                self.feed(now_ms, _received(request_id, request))
            case _:
                return request
        return None

    def handle_matched(self, now_ms: int, expression: str) -> None:
        """Serve the requests that wait for an expression, once it was matched with all topics."""
        if expression in self._unmatched and self.topics.matching(expression) is not None:
            for request_id, heartbeat in self._unmatched.pop(expression):
                self.handle(now_ms, request_id, heartbeat)
        self._pass_jobs_on()

    def _must_wait(self, request_id: int, heartbeat: ConsumerHeartbeat) -> bool:
        """Return True if the request now waits for its expression's topics, or was refused."""
        expression = heartbeat.subscribed_topic_regex
        group = self.coordinator.groups.get(heartbeat.group_id)
        is_known = group is not None and expression in group.expressions
        if not expression or is_known or heartbeat.member_epoch < 0:
            return False
        try:
            check_fields(heartbeat, self._settings)
            if self.topics.matching(expression) is not None:
                return False
        except (RequestRefused, InvalidRegularExpression):
            return False  # the coordinator refuses the request
        if self.topics.is_known(expression):
            self._unmatched.setdefault(expression, []).append((request_id, heartbeat))
            self._pass_jobs_on()
        else:
            message = "too many new expressions are being tried: try again"
            self._outbox.reply(request_id, heartbeat.refuse(BUSY, message))
        return True

    def _pass_jobs_on(self) -> None:
        for job in self.topics.take_jobs():
            self._outbox.pass_on(MatchTopics(job=job))

    def _handle_heartbeat(self, now_ms: int, request_id: int, heartbeat: ConsumerHeartbeat) -> None:
        if self._must_wait(request_id, heartbeat):
            return
        group = self._classic.groups.get(heartbeat.group_id)
        if group is None or heartbeat.member_epoch != 0:
            self.feed(now_ms, _received(request_id, heartbeat))
            return
        try:
            check_fields(heartbeat, self._settings)
            records = self._as_consumer_group(group)
        except RequestRefused as refusal:
            refused = heartbeat.refuse(refusal.error_code, refusal.message)
            self._outbox.reply(request_id, refused)
            return

        def replaced(now_ms: int, error_code: ErrorCode) -> None:
            if error_code is ErrorCode.NONE:
                del self._classic.groups[group.group_id]
                self.feed(now_ms, _received(request_id, heartbeat))
            else:
                self._outbox.reply(request_id, heartbeat.refuse(error_code))

        self._classic.interrupt(group, now_ms)
        self._replace(group.group_id, records, replaced)

    def _as_consumer_group(self, group: Group) -> tuple[LogRecord, ...]:
        """Return the records that convert a classic group. Raises RequestRefused."""
        tombstone = GroupRecord(group_id=group.group_id, stored=None)
        if not group.members:
            return (tombstone,)
        if not self._allows("upgrade"):
            raise RequestRefused(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"{group.group_id!r} is a classic group with members, and "
                "group.consumer.migration.policy is "
                f"{self._settings.group_consumer_migration_policy}",
            )
        if group.protocol_name is None:
            raise RequestRefused(BUSY, "the classic group has no generation yet: try again")
        try:
            max_size = self._settings.group_consumer_max_size
            converted = to_consumer_records(group, self.topics, max_size=max_size)
        except NotConvertible as error:
            is_stable = group.state is GroupState.STABLE  # else it may soon be convertible
            raise RequestRefused(
                ErrorCode.GROUP_ID_NOT_FOUND if is_stable else BUSY,
                f"{group.group_id!r} is a classic group that stays one: {error}",
            ) from error
        return (tombstone, *converted)

    def _give_way(self, request_id: int, join: Join) -> None:
        """Delete a consumer group without members, then let the join create a classic group."""
        if self.coordinator.is_writing(join.group_id):
            self._outbox.reply(request_id, join.refuse(BUSY))
            return

        def replaced(now_ms: int, error_code: ErrorCode) -> None:
            if error_code is ErrorCode.NONE:
                self._classic.handle_join(now_ms, request_id, join)
            else:
                self._outbox.reply(request_id, join.refuse(error_code))

        self._replace(join.group_id, self._committed.consumer.tombstones(join.group_id), replaced)

    def delete(
        self, now_ms: int, request_id: int, group_id: str, partitions: Iterable[TopicPartition]
    ) -> None:
        """Delete a group without members, and its offsets in `partitions`, in one batch."""
        request = DeleteGroup(group_id=group_id)
        if not self.is_in_use(group_id) and self.coordinator.is_writing(group_id):
            self._outbox.reply(request_id, BUSY)
            return
        offsets = self._committed.tombstones(group_id, partitions)
        self.feed(now_ms, _received(request_id, request), tuple(offsets))

    # --- Offsets ---

    def commit_refusal(self, request: CommitOffsets) -> ErrorCode | None:
        """Return why a consumer group refuses a commit, or NONE; None: not a consumer group."""
        group = self.coordinator.groups.get(request.group_id)
        if group is None:
            return None
        member_id, epoch = request.member_id, request.generation_id
        partitions = self.topics.partitions(request.offsets)
        return commit_refusal(group, member_id, epoch, partitions, api_version=request.api_version)

    def transactional_refusal(self, request: CommitTransactionalOffsets) -> ErrorCode | None:
        """Return why a transactional commit is refused, or NONE; None: not a consumer group."""
        if request.group_id in self._replaced:
            return BUSY
        group = self.coordinator.groups.get(request.group_id)
        if group is None:
            return None
        instance_id, epoch = request.group_instance_id, request.generation_id
        return transactional_commit_refusal(
            group, request.member_id, instance_id, epoch, self.topics.partitions(request.offsets)
        )

    def fetch_refusal(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Return why a member may not fetch offsets, or NONE."""
        group = self.coordinator.groups.get(group_id)
        return ErrorCode.NONE if group is None else fetch_refusal(group, member_id, member_epoch)

    def subscribed_topics(self, group_id: str) -> frozenset[str] | None:
        """Return the topics of a consumer group's subscriptions; None: not a consumer group."""
        group = self.coordinator.groups.get(group_id)
        return None if group is None else group.all_names()

    def topics_read(self, group_id: str) -> frozenset[str] | None:
        """Return the topics that members may read; None: they are not determined.

        They are undetermined while the group has writes under way, or an expression without topics.
        """
        group = self.coordinator.groups[group_id]
        is_changing = self.coordinator.is_writing(group_id)
        has_unresolved = any(
            expression not in group.expressions for expression in group.subscribed_expressions()
        )
        return None if is_changing or has_unresolved else group.all_names()

    # --- Groups that change their protocol ---

    def _replace(self, group_id: str, records: tuple[LogRecord, ...], replaced: Replaced) -> None:
        """Write the records of a protocol change; refuse the group's requests until it ends."""
        self._replaced.add(group_id)
        self.coordinator.hold(group_id)

        def done(now_ms: int, error_code: ErrorCode) -> None:
            self._replaced.remove(group_id)
            self.coordinator.rebuild(group_id, now_ms)
            replaced(now_ms, error_code)

        self._outbox.append(records, done)

    def _allows(self, change: str) -> bool:
        return self._settings.group_consumer_migration_policy in {"bidirectional", change}

    def _may_downgrade(self, group: ConsumerGroup) -> bool:
        """Whether settings, size and writes under way let the group become a classic group."""
        return (
            self._allows("downgrade")
            and len(group.members) <= self._settings.group_max_size
            and not self.coordinator.is_writing(group.group_id)
            and group.group_id not in self._replaced
        )

    def _maybe_downgrade(self, now_ms: int, group_id: str) -> None:
        """Convert to a classic group if the last member of the consumer protocol has left."""
        group = self.coordinator.groups.get(group_id)
        if group is None or not self._may_downgrade(group) or not _is_classic(group):
            return
        try:
            stored = to_classic_group(group, self.topics.names, now_ms=now_ms)
        except NotConvertible:
            return  # it stays a consumer group, which also serves classic members

        def replaced(now_ms: int, error_code: ErrorCode) -> None:
            if error_code is ErrorCode.NONE:
                self._classic.continue_with(Group.from_stored(group_id, stored, now_ms), now_ms)

        self._replace(group_id, self._as_classic_group(group_id, stored), replaced)

    def _replace_last(
        self, now_ms: int, request_id: int, join: Join, replacement: Replacement
    ) -> None:
        """Convert to a classic group led by the static member that joins, without a rebalance."""
        # DEVIATION: Kafka's response to this join names no leader, so no member assigns partitions
        # that are added later. docs/decisions/0031-group-conversions.md
        group_id = join.group_id
        stored = to_classic_group(
            self.coordinator.groups[group_id],
            self.topics.names,
            now_ms=now_ms,
            replacement=replacement,
        )

        def replaced(now_ms: int, error_code: ErrorCode) -> None:
            if error_code is ErrorCode.NONE:
                group = Group.from_stored(group_id, stored, now_ms)
                self._classic.continue_stable(group, request_id)
            else:
                self._outbox.reply(request_id, join.refuse(error_code))

        self._replace(group_id, self._as_classic_group(group_id, stored), replaced)

    def _as_classic_group(self, group_id: str, stored: StoredGroup) -> tuple[LogRecord, ...]:
        classic = GroupRecord(group_id=group_id, stored=stored)
        return (*self._committed.consumer.tombstones(group_id), classic)

    # --- The coordinator of consumer groups ---

    @property
    def next_deadline_ms(self) -> int:
        """The time of the coordinator's next tick, if no other event comes first."""
        return self.coordinator.next_deadline_ms

    def feed(self, now_ms: int, event: events.Event, ahead: tuple[LogRecord, ...] = ()) -> None:
        """Feed the coordinator an event; `ahead`: records to put first in the batch it writes."""
        for effect in self.coordinator.step(now_ms, event):
            match effect:
                case AppendRecords(write_id=write_id, records=records):
                    done = partial(self._handle_written, write_id, records[0].group_id)
                    self._outbox.append((*ahead, *records), done)
                case MakeTarget():
                    self._outbox.pass_on(effect)
                case AnswerRequest(request_id=request_id, result=result):
                    if request_id != OWN_REQUEST:
                        self._outbox.reply(request_id, result)
                case _:
                    assert_never(effect)
        self._pass_jobs_on()

    def _handle_written(
        self, write_id: int, group_id: str, now_ms: int, error_code: ErrorCode
    ) -> None:
        ended = events.WriteEnded(write_id=write_id, error_code=error_code)
        self.feed(now_ms, ended)
        self._maybe_downgrade(now_ms, group_id)


def _received(
    request_id: int, request: ConsumerHeartbeat | DeleteGroup | Join | Sync | Heartbeat | Leave
) -> events.Event:
    return events.RequestReceived(request_id=request_id, request=request)


def _is_classic(group: ConsumerGroup) -> bool:
    """Whether the group has members, and all of them use the classic protocol."""
    return bool(group.members) and all(member.is_classic for member in group.members.values())
