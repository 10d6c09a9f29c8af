"""A classic group as a consumer group, and back: the online migration of KIP-848, as functions.

A member of the classic protocol keeps what it has on either side, also what it has to give up. A
group is converted only if all that its members said can be read; else it stays as it is.
docs/decisions/0117-a-group-is-converted-in-one-batch.md
"""

from collections.abc import Iterable, Mapping
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

ASSIGNMENT_VERSION: Final = 0  # that every client reads


class NotConvertible(ValueError):
    """The group must stay as it is; the text says why."""


def to_consumer_records(
    group: Group, topics: Topics, *, max_size: int
) -> tuple[ConsumerGroupRecord, ...]:
    """Return the records of the consumer group that continues a classic one.

    Its epochs are the generation. Each member has what it was assigned last, and must give up what
    else it may have. Raises NotConvertible.
    """
    if group.protocol_type != CONSUMER or group.protocol_name is None:
        raise NotConvertible("its members do not use the consumer protocol")
    if len(group.members) > max_size:
        raise NotConvertible(f"it has more than {max_size} members")
    values: dict[RecordKey, Value] = {}
    names: set[str] = set()
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
        names.update(subscriptions[member_id].topics)
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
    values[RecordKey(RecordKind.GROUP, group.group_id)] = GroupValue(
        epoch=group.generation_id, metadata_hash=topics.metadata_hash(names)
    )
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
    """Return the partitions that each member named in its join, and no member was assigned.

    It may still have them: a cooperative member (KIP-429) hears from a new generation what it has
    to give up, and joins again once it has. Of two that claim a partition, that of the newer
    generation has it. Raises NotConvertible if two were assigned the same.
    """
    # DEVIATION: Kafka takes the last assignment for all that a member has.
    # docs/decisions/0117-a-group-is-converted-in-one-batch.md
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
    """Return them in an order in which a group can apply them."""
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
    """Return what a consumer group keeps of a classic member, or of one that joins."""
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
    """Return what a classic member was assigned, of topics that exist.

    librdkafka's leaders send every member the data back that it joined with: no assignor made it.
    """
    if not member.assignment:
        return frozenset()
    assignment = _read(ConsumerProtocolAssignment, member.assignment, member.member_id)
    if assignment.user_data and assignment.user_data != own_data:
        raise NotConvertible("its assignor adds data of its own to assignments")
    return by_id(((one.topic, one.partitions) for one in assignment.assigned_partitions), topics)


def by_id(named: Iterable[tuple[str, Iterable[int]]], topics: Topics) -> Partitions:
    """Return partitions that a classic member names, those of topics that exist."""
    return frozenset(
        TopicIdPartition(found.topic_id, partition)
        for name, partitions in named
        if (found := topics.by_name.get(name)) is not None
        for partition in partitions
    )


def read_subscription(data: bytes, member_id: str) -> ConsumerProtocolSubscription:
    """Return what a classic member subscribes to. Raises NotConvertible."""
    return _read(ConsumerProtocolSubscription, data, member_id)


def _read(kind: type[MessageT], data: bytes, member_id: str) -> MessageT:
    try:
        return read_message(kind, data)
    except MalformedFrame as error:
        raise NotConvertible(f"{member_id}: {kind.__name__}: {error}") from error


def to_classic_group(
    group: ConsumerGroup, topic_names: Mapping[TopicId, str], *, now_ms: int
) -> StoredGroup:
    """Return the generation that continues a consumer group, all of whose members are classic.

    Each member has what it has now; the caller deletes the records of the consumer group in the
    same batch, and lets the members rebalance. Raises NotConvertible.
    """
    classic = {
        member_id: member.metadata.classic for member_id, member in sorted(group.members.items())
    }
    if not classic or None in classic.values():
        raise NotConvertible("it has members of the consumer protocol, or none at all")
    offered = [
        [protocol.name for protocol in one.supported_protocols]
        for one in classic.values()
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
        leader=next(iter(classic)),
        state_since_ms=now_ms,
        members=[
            _stored(group.members[member_id], protocol_name, topic_names) for member_id in classic
        ],
    )


def _stored(
    member: ConsumerMember, protocol_name: str, topic_names: Mapping[TopicId, str]
) -> StoredMember:
    classic = member.metadata.classic or ClassicMemberMetadata()
    subscription = next(
        one.metadata for one in classic.supported_protocols if one.name == protocol_name
    )
    return StoredMember(
        member_id=member.member_id,
        group_instance_id=member.metadata.instance_id,
        client_id=member.metadata.client_id,
        client_host=member.metadata.client_host,
        rebalance_timeout_ms=member.metadata.rebalance_timeout_ms,
        session_timeout_ms=classic.session_timeout_ms,
        subscription=subscription,
        assignment=encode_assignment(member.current.assigned, topic_names),
    )


def encode_assignment(assigned: Partitions, topic_names: Mapping[TopicId, str]) -> bytes:
    """Return the partitions as a classic member reads them, those of topics that exist."""
    topics = [
        AssignedTopic(topic=topic_names[TopicId(one.topic_id)], partitions=one.partitions)
        for one in to_stored(assigned)
        if one.topic_id in topic_names
    ]
    assignment = ConsumerProtocolAssignment(assigned_partitions=topics)
    version = ASSIGNMENT_VERSION.to_bytes(VERSION_BYTES, "big")
    return version + b"".join(encode_message(assignment, ASSIGNMENT_VERSION))
