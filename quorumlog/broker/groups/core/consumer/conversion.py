"""A classic group as a consumer group, and back: the online migration of KIP-848, as functions.

A classic member keeps its partitions in a conversion, also partitions that it has yet to revoke. A
group is converted only if the metadata of all its members can be decoded.
docs/decisions/0031-group-conversions.md
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from quorumlog.broker.groups.core.consumer.group import ConsumerGroup, ConsumerMember
from quorumlog.broker.groups.core.consumer.partitions import (
    NO_PARTITIONS,
    Partitions,
    TopicIdPartition,
)
from quorumlog.broker.groups.core.consumer.reconciliation import CurrentAssignment
from quorumlog.broker.groups.core.consumer.records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupRecord,
    GroupValue,
    MemberValue,
    RecordKey,
    RecordKind,
    TargetMemberValue,
    TargetValue,
    Value,
    to_stored,
)
from quorumlog.broker.groups.core.consumer.states import MemberState
from quorumlog.broker.groups.core.consumer.topics import Topics
from quorumlog.broker.groups.core.group import Group, Member
from quorumlog.broker.groups.core.member_messages import (
    CONSUMER,
    VERSION_BYTES,
    MessageT,
    read_message,
)
from quorumlog.broker.groups.core.records import StoredGroup, StoredMember
from quorumlog.broker.groups.core.requests import Join
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.identifiers import TopicId
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from quorumlog.wire.codec.messages.consumer_protocol_assignment import (
    TopicPartition as AssignedTopic,
)
from quorumlog.wire.codec.messages.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
)
from quorumlog.wire.codec.schemas import encode_message

ASSIGNMENT_VERSION: Final = 0  # every client reads it


class NotConvertible(ValueError):
    """The group must keep its protocol; the text is the reason."""


def to_consumer_records(
    group: Group, topics: Topics, *, max_size: int
) -> tuple[ConsumerGroupRecord, ...]:
    """Return the records of the consumer group that continues a classic one.

    All its epochs are the generation. Each member has its last assignment, and must revoke other
    partitions that it may still have. The last assignments need not cover all partitions, as if a
    rebalance was under way: the group has no hash of its topics, so its next heartbeat begins an
    epoch. Raises NotConvertible.
    """
    if group.protocol_type != CONSUMER or group.protocol_name is None:
        raise NotConvertible("its members do not use the consumer protocol")
    if len(group.members) > max_size:
        raise NotConvertible(f"it has more than {max_size} members")
    values: dict[RecordKey, Value] = {}
    subscriptions = {
        member_id: read_subscription(member.metadata(group.protocol_name), member_id)
        for member_id, member in group.members.items()
    }
    assignments = {
        member_id: _assigned(member, topics, subscriptions[member_id].user_data)
        for member_id, member in group.members.items()
    }
    unrevoked = _unrevoked(assignments, subscriptions, topics)
    for member_id, member in group.members.items():
        pending = unrevoked[member_id]
        current = CurrentAssignment(
            member_epoch=group.generation_id,
            previous_member_epoch=group.generation_id,
            state=MemberState.UNREVOKED_PARTITIONS if pending else MemberState.STABLE,
            assigned=assignments[member_id],
            pending_revocation=pending,
            assigned_at=dict.fromkeys(assignments[member_id] | pending, group.generation_id),
        )
        stored = TargetMemberValue(topic_partitions=to_stored(assignments[member_id]))
        values[RecordKey(RecordKind.MEMBER, group.group_id, member_id)] = classic_metadata(
            member, subscriptions[member_id]
        )
        values[RecordKey(RecordKind.TARGET_MEMBER, group.group_id, member_id)] = stored
        values[RecordKey(RecordKind.CURRENT_ASSIGNMENT, group.group_id, member_id)] = (
            current.to_value()
        )
    values[RecordKey(RecordKind.GROUP, group.group_id)] = GroupValue(epoch=group.generation_id)
    values[RecordKey(RecordKind.TARGET, group.group_id)] = TargetValue(
        assignment_epoch=group.generation_id
    )
    return tuple(
        ConsumerGroupRecord(subject=key, value=value) for key, value in sorted_by_need(values)
    )


def _unrevoked(
    assignments: Mapping[str, Partitions],
    subscriptions: Mapping[str, ConsumerProtocolSubscription],
    topics: Topics,
) -> dict[str, Partitions]:
    """Return the partitions that each member owned at its join, and no member was assigned.

    The member may still have them: a cooperative member (KIP-429) revokes partitions after it gets
    the assignment of a new generation, then joins again. If two members claim a partition, the
    claim of the newer generation wins. Raises NotConvertible: a partition is assigned twice.
    """
    # DEVIATION: Kafka assumes that a member has only the partitions of its last assignment.
    # docs/decisions/0031-group-conversions.md
    owners: dict[TopicIdPartition, str] = {}
    for member_id, assigned in assignments.items():
        for one in assigned:
            if owners.setdefault(one, member_id) != member_id:
                raise NotConvertible(f"{member_id} and {owners[one]} have the same partition")
    unrevoked = dict.fromkeys(assignments, NO_PARTITIONS)
    for member_id, said in sorted(subscriptions.items(), key=lambda item: -item[1].generation_id):
        claimed = by_id(((one.topic, one.partitions) for one in said.owned_partitions), topics)
        unrevoked[member_id] = claimed - owners.keys()
        owners.update(dict.fromkeys(unrevoked[member_id], member_id))
    return unrevoked


def sorted_by_need(values: Mapping[RecordKey, Value]) -> list[tuple[RecordKey, Value]]:
    """Return the values in an order in which a group can apply them."""
    order = (
        RecordKind.GROUP,
        RecordKind.MEMBER,
        RecordKind.TARGET_MEMBER,
        RecordKind.TARGET,
        RecordKind.CURRENT_ASSIGNMENT,
    )
    return sorted(values.items(), key=lambda item: (order.index(item[0].kind), item[0].name))


def classic_metadata(
    member: Member | Join, subscription: ConsumerProtocolSubscription
) -> MemberValue:
    """Return the MemberValue of a classic member, or of a classic member that joins."""
    protocols = [
        ClassicProtocol(name=name, metadata=metadata) for name, metadata in member.protocols
    ]
    return MemberValue(
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id or None,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted({*subscription.topics}),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMemberMetadata(
            session_timeout_ms=member.session_timeout_ms, supported_protocols=protocols
        ),
    )


def _assigned(member: Member, topics: Topics, own_data: Buffer | None) -> Partitions:
    """Return a classic member's assigned partitions of existing topics. Raises NotConvertible.

    User data of an assignor forbids a conversion. librdkafka's leaders return each member's own
    user data (`own_data`), which does not.
    """
    if not member.assignment:
        return frozenset()
    assignment = _read(ConsumerProtocolAssignment, member.assignment, member.member_id)
    if assignment.user_data and assignment.user_data != own_data:
        raise NotConvertible("its assignor adds data of its own to assignments")
    return by_id(((one.topic, one.partitions) for one in assignment.assigned_partitions), topics)


def by_id(named: Iterable[tuple[str, Iterable[int]]], topics: Topics) -> Partitions:
    """Return named partitions by topic id, without topics that do not exist."""
    return frozenset(
        TopicIdPartition(found.topic_id, partition)
        for name, partitions in named
        if (found := topics.by_name.get(name)) is not None
        for partition in partitions
    )


def read_subscription(data: bytes, member_id: str) -> ConsumerProtocolSubscription:
    """Return the decoded subscription of a classic member. Raises NotConvertible."""
    return _read(ConsumerProtocolSubscription, data, member_id)


def _read(kind: type[MessageT], data: bytes, member_id: str) -> MessageT:
    try:
        return read_message(kind, data)
    except MalformedFrame as error:
        raise NotConvertible(f"{member_id}: {kind.__name__}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """A classic static member that replaces the consumer-protocol member `owner_id`."""

    owner_id: str
    member_id: str
    metadata: MemberValue


def find_replacement(group: ConsumerGroup, join: Join, topics: Topics) -> Replacement | None:
    """Return the replacement by which the group becomes classic without a rebalance, or None.

    `join` is from a returning static member, and all other members must be classic. Every member
    keeps its generation and partitions, because the target is unchanged. The replacement leads the
    classic group, so its client must be able to skip the assignment (KIP-814). Source:
    KAFKA-17317, KAFKA-19546. docs/decisions/0031-group-conversions.md
    """
    owner = group.members.get(group.static.get(join.group_instance_id or "", ""))
    if owner is None or join.member_id or not join.supports_skipping_assignment:
        return None
    others = [member for member in group.members.values() if member is not owner]
    if not all(_prefers(member, join.protocols[0][0]) for member in others):
        return None
    if join.new_member_id in {member.member_id for member in others}:
        return None
    try:
        subscription = read_subscription(join.protocols[0][1], join.new_member_id)
    except NotConvertible:
        return None  # the consumer group refuses the join
    metadata = classic_metadata(join, subscription)
    claimed = by_id(((one.topic, one.partitions) for one in subscription.owned_partitions), topics)
    if (
        owner.metadata.subscribed_topic_regex
        or owner.metadata.subscribed_topic_names != metadata.subscribed_topic_names
        or not claimed <= owner.current.assigned
        or not _is_settled(group, owner, topics)
    ):
        return None
    return Replacement(owner_id=owner.member_id, member_id=join.new_member_id, metadata=metadata)


def _prefers(member: ConsumerMember, protocol_name: str) -> bool:
    """Whether the response to the classic member's last join named this protocol."""
    classic = member.metadata.classic
    return classic is not None and classic.supported_protocols[0].name == protocol_name


def _is_settled(group: ConsumerGroup, owner: ConsumerMember, topics: Topics) -> bool:
    """Whether every member has its whole part of a target for the present topics.

    The epoch of `owner` is not compared: its replacement gets the group epoch.
    """
    others_have_all = all(
        member is owner or member.current.is_reconciled_to(group.assignment_epoch)
        for member in group.members.values()
    )
    return (
        others_have_all
        and owner.current.assigned == group.target_of(owner.member_id)
        and group.group_epoch == group.assignment_epoch
        and group.metadata_hash == topics.metadata_hash(group.all_names())
    )


def to_classic_group(
    group: ConsumerGroup,
    topic_names: Mapping[TopicId, str],
    *,
    now_ms: int,
    replacement: Replacement | None = None,
) -> StoredGroup:
    """Return the classic generation that continues a consumer group of classic members.

    Each member keeps its assigned partitions; the caller deletes the records of the consumer group
    in the same batch. A `replacement` takes the place of its owner, and leads; without a
    replacement the caller starts a rebalance. Raises NotConvertible.
    """
    members = {
        member_id: (member.metadata, member.current.assigned)
        for member_id, member in sorted(group.members.items())
    }
    if replacement is not None:
        _, assigned = members.pop(replacement.owner_id)
        members[replacement.member_id] = replacement.metadata, assigned
    classic = [metadata.classic for metadata, _ in members.values()]
    if not classic or None in classic:
        raise NotConvertible("it has members of the consumer protocol, or none at all")
    offered = [
        [protocol.name for protocol in one.supported_protocols]
        for one in classic
        if one is not None
    ]
    common = set.intersection(*map(set, offered))
    if not common:
        raise NotConvertible("its members have no protocol in common")
    protocol_name = next(name for name in offered[0] if name in common)
    return StoredGroup(
        protocol_type=CONSUMER,
        generation_id=group.group_epoch,
        protocol_name=protocol_name,
        leader=next(iter(members)) if replacement is None else replacement.member_id,
        state_since_ms=now_ms,
        members=[
            _stored(member_id, metadata, protocol_name, encode_assignment(assigned, topic_names))
            for member_id, (metadata, assigned) in members.items()
        ],
    )


def _stored(
    member_id: str, metadata: MemberValue, protocol_name: str, assignment: bytes
) -> StoredMember:
    classic = metadata.classic or ClassicMemberMetadata()
    subscription = next(
        one.metadata for one in classic.supported_protocols if one.name == protocol_name
    )
    return StoredMember(
        member_id=member_id,
        group_instance_id=metadata.instance_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        rebalance_timeout_ms=metadata.rebalance_timeout_ms,
        session_timeout_ms=classic.session_timeout_ms,
        subscription=subscription,
        assignment=assignment,
    )


def encode_assignment(assigned: Partitions, topic_names: Mapping[TopicId, str]) -> bytes:
    """Return the assignment bytes for a classic member, without topics that do not exist."""
    topics = [
        AssignedTopic(topic=topic_names[TopicId(one.topic_id)], partitions=one.partitions)
        for one in to_stored(assigned)
        if one.topic_id in topic_names
    ]
    assignment = ConsumerProtocolAssignment(assigned_partitions=topics)
    version = ASSIGNMENT_VERSION.to_bytes(VERSION_BYTES, "big")
    return version + b"".join(encode_message(assignment, ASSIGNMENT_VERSION))
