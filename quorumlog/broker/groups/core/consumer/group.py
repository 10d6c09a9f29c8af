"""One group of the consumer protocol: the state that its records define.

Only `apply` changes it, one record at a time, whether the record was just decided or is replayed.
Source: KIP-848 (the data model of a group).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, cast

from quorumlog.broker.groups.core.consumer.partitions import (
    NO_PARTITIONS,
    Partitions,
    TopicIdPartition,
)
from quorumlog.broker.groups.core.consumer.reconciliation import CurrentAssignment
from quorumlog.broker.groups.core.consumer.records import (
    ConsumerGroupRecord,
    CurrentAssignmentValue,
    GroupValue,
    MemberValue,
    RecordKey,
    RecordKind,
    RegularExpressionValue,
    TargetMemberValue,
    TargetValue,
    Value,
    from_stored,
)
from quorumlog.broker.groups.core.consumer.requests import TopicRights
from quorumlog.broker.groups.core.consumer.states import (
    GROUP_TRANSITIONS,
    MEMBER_TRANSITIONS,
    ConsumerGroupState,
    MemberState,
)
from quorumlog.invariants import require

LEFT_EPOCH: Final = -1  # of a request: the member leaves the group
STATIC_LEFT_EPOCH: Final = -2  # of a static member that is away and keeps its place


@dataclass(slots=True, kw_only=True)
class ConsumerMember:
    """A member: its subscription and its current assignment."""

    member_id: str
    metadata: MemberValue
    current: CurrentAssignment

    def become(self, current: CurrentAssignment) -> None:
        """Change the assignment. Raises InvariantViolation: an illegal change of the state."""
        before, after = self.current.state, current.state
        is_legal = after is before or after in MEMBER_TRANSITIONS[before]
        require(is_legal, f"legal change of a member: {before.name} -> {after.name}")
        self.current = current

    @property
    def is_classic(self) -> bool:
        """Whether the member uses the classic protocol."""
        return self.metadata.classic is not None

    @property
    def is_away(self) -> bool:
        """Whether the member is static and has left; it may return under another id."""
        return self.current.member_epoch == STATIC_LEFT_EPOCH


class ConsumerGroup:
    """The state of one group: epochs, members, targets, owners and expressions.

    Invariants, checked as records are applied:
    1. The group epoch rises; the assignment epoch rises, and is not above the group epoch.
    2. A partition has at most one owner: the member it was assigned to, until the member reports
       that it has revoked the partition.
    3. A member's epoch does not fall, except to `STATIC_LEFT_EPOCH`.
    4. A member's epoch is not above the assignment epoch.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id: Final = group_id
        self.state = ConsumerGroupState.EMPTY
        self.group_epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.members: Final[dict[str, ConsumerMember]] = {}
        self.static: Final[dict[str, str]] = {}  # instance id -> member id
        self.targets: Final[dict[str, Partitions]] = {}
        self.expressions: Final[dict[str, frozenset[str]]] = {}  # with the topics that match
        self.owners: Final[dict[TopicIdPartition, str]] = {}
        self.has_partition_metadata = False  # a record of Kafka 4.0, to be deleted
        # Not in a record: by whose rights an expression was matched last, and whether topics may
        # have changed since the epoch began.
        self.rights: Final[dict[str, TopicRights]] = {}
        self.is_metadata_due = True
        self.subscribed_names: frozenset[str] = frozenset()

    @classmethod
    def from_values(cls, group_id: str, values: Mapping[RecordKey, Value]) -> "ConsumerGroup":
        """Return the group of these records, the newest of each key.

        Assignment records of a member without a member record are ignored.
        """
        group = cls(group_id)
        for key, value in values.items():
            if isinstance(value, MemberValue):
                said = values.get(RecordKey(RecordKind.CURRENT_ASSIGNMENT, group_id, key.name))
                current = CurrentAssignment()
                if isinstance(said, CurrentAssignmentValue):
                    current = CurrentAssignment.from_value(said)
                group._add(key.name, value, current)
        later = {RecordKind.MEMBER, RecordKind.CURRENT_ASSIGNMENT}
        for key in sorted(values):
            is_orphan = key.kind is RecordKind.TARGET_MEMBER and key.name not in group.members
            if key.kind not in later and not is_orphan:
                group.apply(ConsumerGroupRecord(subject=key, value=values[key]))
        group.state = group._derived_state()
        return group

    def apply(self, record: ConsumerGroupRecord) -> None:
        """Apply one record."""
        kind, _, name = record.subject
        value = record.value
        match kind:
            case RecordKind.GROUP:
                self._set_epoch(cast("GroupValue | None", value))
            case RecordKind.TARGET:
                self._set_assignment_epoch(cast("TargetValue | None", value))
            case RecordKind.MEMBER:
                self._set_metadata(name, cast("MemberValue | None", value))
            case RecordKind.CURRENT_ASSIGNMENT:
                self._set_current(name, cast("CurrentAssignmentValue | None", value))
            case RecordKind.TARGET_MEMBER if value is None:
                self.targets.pop(name, None)
            case RecordKind.TARGET_MEMBER:
                stored = cast("TargetMemberValue", value).topic_partitions
                self.targets[name] = from_stored(stored)
            case RecordKind.REGULAR_EXPRESSION if value is None:
                self.expressions.pop(name, None)
            case RecordKind.REGULAR_EXPRESSION:
                topics = cast("RegularExpressionValue", value).topics
                self.expressions[name] = frozenset(topics)
            case RecordKind.PARTITION_METADATA:
                self.has_partition_metadata = value is not None

    def _set_epoch(self, value: GroupValue | None) -> None:
        if value is None:
            require(not self.members, "a group that is deleted has no members")
            return
        rises = value.epoch > self.group_epoch or self.group_epoch == 0
        require(rises, "1: the group epoch rises")
        self.group_epoch, self.metadata_hash = value.epoch, value.metadata_hash

    def _set_assignment_epoch(self, value: TargetValue | None) -> None:
        if value is None:
            return
        epoch = value.assignment_epoch
        rises = epoch > self.assignment_epoch or self.assignment_epoch == 0
        require(rises, "1: the assignment epoch rises")
        require(epoch <= self.group_epoch, "1: and is not ahead of the group epoch")
        self.assignment_epoch = epoch

    def _set_metadata(self, member_id: str, value: MemberValue | None) -> None:
        member = self.members.get(member_id)
        if value is None:
            if member is not None:
                self._remove(member)
        elif member is None:
            self._add(member_id, value, CurrentAssignment())
        else:
            self._forget_instance(member)
            member.metadata = value
            self._note_instance(member)

    def _add(self, member_id: str, value: MemberValue, current: CurrentAssignment) -> None:
        member = ConsumerMember(member_id=member_id, metadata=value, current=current)
        self.members[member_id] = member
        self._note_instance(member)
        self._own(member_id, current.owned)

    def _remove(self, member: ConsumerMember) -> None:
        self._disown(member.current.owned)
        del self.members[member.member_id]
        self._forget_instance(member)

    def _note_instance(self, member: ConsumerMember) -> None:
        if member.metadata.instance_id is not None:
            self.static[member.metadata.instance_id] = member.member_id

    def _forget_instance(self, member: ConsumerMember) -> None:
        instance_id = member.metadata.instance_id
        if instance_id is not None and self.static.get(instance_id) == member.member_id:
            del self.static[instance_id]

    def _set_current(self, member_id: str, value: CurrentAssignmentValue | None) -> None:
        if value is None:
            if (gone := self.members.get(member_id)) is not None:
                self._disown(gone.current.owned)
                gone.current = CurrentAssignment()
            return
        member = self.members[member_id]
        before = member.current
        after = CurrentAssignment.from_value(value)
        rises = after.member_epoch >= before.member_epoch
        require(rises or after.member_epoch == STATIC_LEFT_EPOCH, "3: a member's epoch rises")
        require(after.member_epoch <= self.assignment_epoch, "4: there is a target of that epoch")
        self._disown(before.owned - after.owned)
        self._own(member_id, after.owned - before.owned)
        member.become(after)

    def _own(self, member_id: str, partitions: Partitions) -> None:
        for one in partitions:
            owner = self.owners.setdefault(one, member_id)
            require(owner == member_id, f"2: {one.partition} has an owner")

    def _disown(self, partitions: Partitions) -> None:
        for one in partitions:
            del self.owners[one]

    def settle_state(self) -> None:
        """Set the state that follows from the applied records."""
        to = self._derived_state()
        if to is not self.state:
            self.transition(to)

    def transition(self, to: ConsumerGroupState) -> None:
        """Change the state: its only writer while the group is served."""
        is_legal = to in GROUP_TRANSITIONS[self.state]
        require(is_legal, f"legal change: {self.state.name} -> {to.name}")
        self.state = to

    def _derived_state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        epoch = self.assignment_epoch
        if all(member.current.is_reconciled_to(epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def names_of(self, member: ConsumerMember) -> frozenset[str]:
        """Return the names of the topics that a member subscribes to, whether they exist or not."""
        metadata = member.metadata
        names = frozenset(metadata.subscribed_topic_names)
        if not metadata.subscribed_topic_regex:
            return names
        return names | self.expressions.get(metadata.subscribed_topic_regex, frozenset())

    def all_names(self) -> frozenset[str]:
        """Return the names of the topics that any member subscribes to."""
        names: set[str] = set()
        for member in self.members.values():
            names.update(member.metadata.subscribed_topic_names)
        for expression in self.subscribed_expressions():
            names.update(self.expressions.get(expression, ()))
        return frozenset(names)

    def subscribed_expressions(self) -> list[str]:
        """Return the regular expressions that members subscribe to, in order."""
        found = {member.metadata.subscribed_topic_regex for member in self.members.values()}
        return sorted(expression for expression in found if expression)

    def target_of(self, member_id: str) -> Partitions:
        """Return the member's part of the target."""
        return self.targets.get(member_id, NO_PARTITIONS)

    def live_keys(self) -> Iterator[RecordKey]:
        """Yield the record keys of a group without members, but for its GROUP key."""
        yield RecordKey(RecordKind.TARGET, self.group_id)
        for expression in self.expressions:
            yield RecordKey(RecordKind.REGULAR_EXPRESSION, self.group_id, expression)

    def unrevoked(self) -> Iterator[ConsumerMember]:
        """Yield the members that have partitions to revoke."""
        for member in self.members.values():
            if member.current.state is MemberState.UNREVOKED_PARTITIONS:
                yield member


class Changes:
    """Applies each record to the group at once, so that later rules of the same step see it."""

    def __init__(self, group: ConsumerGroup) -> None:
        self.group: Final = group
        self.records: Final[list[ConsumerGroupRecord]] = []

    def write(self, kind: RecordKind, value: Value | None, name: str = "") -> None:
        """Add a record and apply it; `value` None: a tombstone."""
        subject = RecordKey(kind, self.group.group_id, name)
        record = ConsumerGroupRecord(subject=subject, value=value)
        self.group.apply(record)
        self.records.append(record)

    def settle_state(self) -> None:
        """Update the group's state, after the last record of the step."""
        if self.records:
            self.group.settle_state()
