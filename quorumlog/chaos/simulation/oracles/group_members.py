"""The rules of members and assignments, by the committed log and the messages of clients.

    assigned-committed  each assignment and member epoch that a member receives is in the log
    one-owner           a partition has one owner: in all records of a generation, among the current
                        assignments of a consumer group, and from the response that assigns it to
                        the heartbeat that no longer reports it
    one-target          a target assignment gives a partition to one member
    epoch-rises         epochs of a consumer group and of its members never decrease
    group-generation    the generation of a group never decreases, unless the group was deleted
    fenced-heartbeat    a member is not served at an epoch before its last two
    one-form            a group has the records of one protocol

Sources: KIP-62, KIP-848, KAFKA-13614.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from quorumlog.broker.groups.core.consumer.partitions import NO_PARTITIONS, Partitions
from quorumlog.broker.groups.core.consumer.records import (
    ConsumerGroupRecord,
    CurrentAssignmentValue,
    GroupValue,
    MemberValue,
    RecordKind,
    TargetMemberValue,
    Value,
    from_stored,
)
from quorumlog.broker.groups.core.records import GroupRecord, StoredGroup
from quorumlog.chaos.simulation.oracles.exchanges import Exchange
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from quorumlog.wire.codec.schemas import decode_message

Violated = Callable[[str], None]
Named = frozenset[TopicPartition]
Names = Callable[[bytes], str | None]
_VERSION_BYTES: Final = 2
_LEAVES: Final = frozenset({-1, -2})  # member epochs: for good; a static member for a while
_FENCED: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})


@dataclass(slots=True)
class _Current:
    """A member's record. `since`: the member epoch at which it got each partition, by name."""

    epoch: int
    previous: int
    assigned: Partitions
    pending: Partitions
    since: dict[TopicPartition, int]


@dataclass(slots=True)
class _Group:
    """A group at the end of the records read so far; `owners`: of each generation."""

    stored: StoredGroup | None = None
    epoch: int | None = None  # of a consumer group
    members: dict[str, str | None] = field(
        default_factory=dict
    )  # of a consumer group: instance ids
    current: dict[str, _Current] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    owners: dict[tuple[int, TopicPartition], str] = field(default_factory=dict)
    logged: set[tuple[str, int, object]] = field(default_factory=set)  # member, epoch, assignment
    has: dict[str, Partitions] = field(default_factory=dict)  # by the members' own reports
    epochs: dict[str, int] = field(default_factory=dict)  # in the last response to each member


class GroupMembers:
    """All groups of a run."""

    def __init__(self, names: Names, violated: Violated) -> None:
        self._names: Final = names
        self._violated: Final = violated
        self._groups: Final[dict[str, _Group]] = defaultdict(_Group)
        self._touched: Final[set[str]] = set()

    # --- the committed log ---

    def read(self, record: GroupRecord | ConsumerGroupRecord) -> None:
        """Apply a record; call `batch_ends` after the last one of a batch."""
        if isinstance(record, GroupRecord):
            self._touched.add(record.group_id)
            self._read_classic(record.group_id, record.stored)
        else:
            subject = record.subject
            self._touched.add(subject.group_id)
            self._read_consumer(subject.group_id, subject.name, subject.kind, record.value)

    def batch_ends(self) -> None:
        """Check the groups that the last batch has changed."""
        for group_id in self._touched:
            group = self._groups[group_id]
            if group.stored is not None and group.epoch is not None:
                self._violated(f"one-form: {group_id} has records of two protocols")
            owned = {name: one.assigned | one.pending for name, one in group.current.items()}
            self._check_shares(f"one-owner: in the log of {group_id}", owned)
            self._check_shares(f"one-target: in the log of {group_id}", group.targets)
        self._touched.clear()

    def _check_shares(self, rule: str, shares: Mapping[str, Partitions]) -> None:
        """Check that no two members share a partition."""
        owners: dict[object, str] = {}
        for member_id, share in shares.items():
            for one in share:
                other = owners.setdefault(one, member_id)
                if other != member_id:
                    both = self._shown({one})
                    self._violated(f"{rule} {other} and {member_id} have {both}")

    def _read_classic(self, group_id: str, stored: StoredGroup | None) -> None:
        group = self._groups[group_id]
        before, group.stored = group.stored, stored
        if stored is None:
            group.owners.clear()
            return
        generation = stored.generation_id
        if before is not None and generation < before.generation_id:
            self._violated(
                f"group-generation: {group_id} has generation {generation} after "
                f"{before.generation_id}"
            )
        for member in stored.members:
            group.logged.add((member.member_id, generation, member.assignment))
            if stored.protocol_type != "consumer":
                continue
            for one in assignment_of(member.assignment):
                name = member.group_instance_id or member.member_id
                owner = group.owners.setdefault((generation, one), name)
                if owner != name:
                    self._violated(
                        f"one-owner: in generation {generation} of {group_id} {owner} and {name} "
                        f"have {one.topic}-{one.partition}"
                    )

    def _read_consumer(
        self, group_id: str, name: str, kind: RecordKind, value: Value | None
    ) -> None:
        group = self._groups[group_id]
        match value:
            case GroupValue(epoch=epoch):
                before = group.epoch
                if before is not None and epoch <= before and group.members:
                    self._violated(f"epoch-rises: {group_id} comes from {before} to {epoch}")
                group.epoch = epoch
            case MemberValue():
                group.members[name] = value.instance_id
            case CurrentAssignmentValue():
                self._read_current(group_id, name, value)
            case TargetMemberValue():
                group.targets[name] = from_stored(value.topic_partitions)
            case None if kind is RecordKind.GROUP:
                group.epoch = None
            case None if kind is RecordKind.MEMBER:
                group.members.pop(name, None)
                group.has.pop(name, None)
                group.epochs.pop(name, None)
            case None if kind is RecordKind.TARGET_MEMBER:
                group.targets.pop(name, None)
            case None if kind is RecordKind.CURRENT_ASSIGNMENT:
                group.current.pop(name, None)
            case _:
                pass

    def _read_current(self, group_id: str, name: str, value: CurrentAssignmentValue) -> None:
        group, epoch = self._groups[group_id], value.member_epoch
        before = group.current.get(name)
        if before is not None and 0 <= epoch < before.epoch:
            self._violated(f"epoch-rises: {name} comes from {before.epoch} to {epoch}")
        assigned = from_stored(value.assigned_partitions)
        pending = from_stored(value.partitions_pending_revocation)
        since = {} if before is None else before.since
        named = self._named(assigned | pending)
        group.current[name] = _Current(
            epoch,
            value.previous_member_epoch,
            assigned,
            pending,
            {one: since.get(one, epoch) for one in named},
        )
        group.logged |= {(name, epoch, assigned), (name, epoch, None)}
        group.logged.add((name, epoch, self._named(assigned)))

    # --- clients ---

    def fault_of(self, commit: Any, where: TopicPartition) -> str:
        """Return why a member must not commit at this place of the log; "": it may."""
        epoch, member_id = commit.generation_id_or_member_epoch, commit.member_id
        group = self._groups[commit.group_id]
        if epoch < 0:
            return ""
        if group.epoch is not None:
            return _consumer_fault(group, member_id, epoch, where)
        stored = group.stored
        if stored is None or epoch > stored.generation_id:
            return ""
        if epoch < stored.generation_id:
            return f"{member_id} in generation {epoch}, after {stored.generation_id}"
        is_member = any(one.member_id == member_id for one in stored.members)
        return "" if is_member else f"{member_id}, which is not in generation {epoch}"

    def is_fenced(self, heartbeat: Any) -> bool:
        """Return whether a ConsumerGroupHeartbeat has an epoch before the member's last two."""
        current = self._groups[heartbeat.group_id].current.get(heartbeat.member_id)
        return current is not None and 0 < heartbeat.member_epoch < current.previous

    def synced(self, exchange: Exchange) -> None:
        """Check the response to a SyncGroup."""
        request, response = exchange.request, exchange.response
        if response.error_code != ErrorCode.NONE or not response.assignment:
            return
        group = self._groups[request.group_id]
        known = request.member_id, request.generation_id
        named = assignment_of(response.assignment)
        is_logged = (*known, response.assignment) in group.logged or (*known, named) in group.logged
        if not is_logged:
            self._violated(
                f"assigned-committed: {request.member_id} of {request.group_id} receives "
                f"{len(named)} partitions in {request.generation_id}, which are not in the log"
            )

    def reports(self, exchange: Exchange) -> None:
        """Record a ConsumerGroupHeartbeat that arrives: the partitions that its member has."""
        request = exchange.request
        group = self._groups[request.group_id]
        if exchange.is_rude:
            exchange.is_fenced = self.is_fenced(request)
        elif request.member_epoch in _LEAVES:
            group.has.pop(request.member_id, None)
        elif request.topic_partitions is not None:
            group.has[request.member_id] = from_stored(request.topic_partitions)

    def assigned(self, exchange: Exchange, *, is_current: bool) -> None:
        """Check the response to a ConsumerGroupHeartbeat. `is_current`: of the newest leader."""
        request, response = exchange.request, exchange.response
        group, member_id = self._groups[request.group_id], response.member_id or request.member_id
        if response.error_code in _FENCED:
            group.has.pop(member_id, None)
        if response.error_code != ErrorCode.NONE or response.member_epoch <= 0:
            return
        epoch, assignment = response.member_epoch, response.assignment
        assigned = None if assignment is None else from_stored(assignment.topic_partitions)
        if (member_id, epoch, assigned) not in group.logged:
            self._violated(
                f"assigned-committed: {member_id} of {request.group_id} receives "
                f"{self._shown(assigned or ())} at {epoch}, which is not in the log"
            )
        if not is_current or member_id not in group.members:
            return
        if epoch < group.epochs.get(member_id, 0):
            self._violated(
                f"epoch-rises: {member_id} receives {epoch} after {group.epochs[member_id]}"
            )
        group.epochs[member_id] = epoch
        for other, has in group.has.items() if assigned is not None else ():
            if other != member_id and (both := has & (assigned or NO_PARTITIONS)):
                self._violated(f"one-owner: {other} and {member_id} have {self._shown(both)}")
        if assigned is not None:
            group.has[member_id] = group.has.get(member_id, NO_PARTITIONS) | assigned

    def refused(self, exchange: Exchange, *, is_current: bool) -> None:
        """Check the response to a late copy of a ConsumerGroupHeartbeat."""
        request = exchange.request
        is_served = exchange.response.error_code == ErrorCode.NONE
        if exchange.is_fenced and is_served and is_current:
            self._violated(
                f"fenced-heartbeat: {request.member_id} is served at {request.member_epoch} again"
            )

    def _named(self, partitions: Partitions) -> Named:
        named = ((self._names(one.topic_id), one.partition) for one in partitions)
        return frozenset(TopicPartition(name, index) for name, index in named if name is not None)

    def _shown(self, partitions: Any) -> str:
        return " ".join(
            sorted(f"{self._names(one.topic_id)}-{one.partition}" for one in partitions)
        )


def _consumer_fault(group: _Group, member_id: str, epoch: int, where: TopicPartition) -> str:
    current = group.current.get(member_id)
    if current is None:
        return f"{member_id}, which is no member"
    if current.epoch == epoch:
        return ""
    since = current.since.get(where)
    is_older = current.epoch > epoch and since is not None and since <= epoch
    return "" if is_older else f"{member_id} at {epoch}, where the log has {current.epoch}"


def assignment_of(data: bytes) -> Named:
    """Decode the assignment of a SyncGroup response; empty bytes hold no partition."""
    if not data:
        return frozenset()
    version = int.from_bytes(data[:_VERSION_BYTES], "big", signed=True)
    message = decode_message(ConsumerProtocolAssignment, version, memoryview(data)[_VERSION_BYTES:])
    return frozenset(
        TopicPartition(topic.topic, partition)
        for topic in message.assigned_partitions
        for partition in topic.partitions
    )
