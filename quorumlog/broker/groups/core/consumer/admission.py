"""The checks of a heartbeat: first its fields, then its member.

Every refusal is raised as `RequestRefused`, before the first change. Sources: KIP-848, KIP-1082
(from version 1 on a member generates its own id).
"""

from typing import Final

from quorumlog.broker.groups.core.consumer.group import (
    LEFT_EPOCH,
    STATIC_LEFT_EPOCH,
    ConsumerGroup,
    ConsumerMember,
)
from quorumlog.broker.groups.core.consumer.requests import ConsumerHeartbeat, RequestRefused
from quorumlog.broker.groups.core.consumer.states import MemberState
from quorumlog.broker.groups.core.records import NAME_BYTES_MAX
from quorumlog.broker.settings import BrokerSettings
from quorumlog.wire.codec.error_codes import ErrorCode

MEMBER_ID_SINCE_VERSION: Final = 1


def check_fields(request: ConsumerHeartbeat, settings: BrokerSettings) -> None:
    """Raise RequestRefused if the fields are invalid in every group."""
    if not request.group_id:
        raise _invalid("group_id is empty")
    is_named_by_itself = (
        request.api_version >= MEMBER_ID_SINCE_VERSION
        or request.member_epoch > 0
        or request.member_epoch == LEFT_EPOCH
    )
    if is_named_by_itself and not request.member_id:
        raise _invalid("member_id is empty")
    if request.instance_id == "":
        raise _invalid("instance_id is empty")
    if request.rack_id == "":
        raise _invalid("rack_id is empty")
    _check_epoch(request)
    names = [
        request.group_id,
        request.member_id,
        request.instance_id or "",
        request.rack_id or "",
        request.subscribed_topic_regex or "",
        *(request.subscribed_topic_names or ()),
    ]
    if any(len(name.encode()) > NAME_BYTES_MAX for name in names):
        raise _invalid(f"a name is longer than {NAME_BYTES_MAX} bytes")
    assignor, assignors = request.server_assignor, settings.group_consumer_assignors.split(",")
    if assignor is not None and assignor not in assignors:
        known = ", ".join(assignors)
        raise RequestRefused(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"server_assignor {assignor!r} is not supported; choose from {known}",
        )


def _check_epoch(request: ConsumerHeartbeat) -> None:
    if request.member_epoch == 0:
        if request.rebalance_timeout_ms < 0:
            raise _invalid("a joining member must send rebalance_timeout_ms")
        if request.owned is None or request.owned:
            raise _invalid("a joining member must send empty topic_partitions")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise _invalid(
                "a joining member must send subscribed_topic_names or subscribed_topic_regex"
            )
    elif request.member_epoch == STATIC_LEFT_EPOCH:
        if request.instance_id is None:
            raise _invalid("only a member with an instance_id can leave for a while")
    elif request.member_epoch < LEFT_EPOCH:
        raise _invalid(f"member_epoch {request.member_epoch} has no meaning")


def _invalid(message: str) -> RequestRefused:
    return RequestRefused(ErrorCode.INVALID_REQUEST, message)


def _unknown(member_id: str) -> RequestRefused:
    return RequestRefused(
        ErrorCode.UNKNOWN_MEMBER_ID, f"the group has no member {member_id!r}: join again"
    )


def find_leaving(group: ConsumerGroup, request: ConsumerHeartbeat) -> ConsumerMember:
    """Return the member that leaves. Raises RequestRefused: it is unknown or fenced."""
    member_id = request.member_id
    if request.instance_id is not None:
        _check_instance(group, request)
    member = group.members.get(member_id)
    if member is None:
        raise _unknown(member_id)
    return member


def find_present(group: ConsumerGroup, request: ConsumerHeartbeat) -> ConsumerMember:
    """Return the member of a heartbeat with a member epoch above 0. Raises RequestRefused."""
    member = find_leaving(group, request)
    _check_member_epoch(member, request)
    return member


def check_joining(
    group: ConsumerGroup, request: ConsumerHeartbeat, settings: BrokerSettings
) -> None:
    """Refuse a join if the group is full, or if the instance id is in use.

    A classic static member sends no leave when it stops, so a member of the consumer protocol takes
    its place at once (KIP-848, online migration). Two members of the consumer protocol exclude each
    other until the first has left or its session has ended.
    """
    owner = None if request.instance_id is None else group.static.get(request.instance_id)
    if owner is not None and owner != request.member_id and _is_held(group.members[owner]):
        raise RequestRefused(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"instance_id {request.instance_id!r} is in use by member {owner!r}",
        )
    is_new = request.member_id not in group.members and owner is None
    if is_new and len(group.members) >= settings.group_consumer_max_size:
        raise RequestRefused(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"the group has {settings.group_consumer_max_size} members, its most",
        )


def _is_held(owner: ConsumerMember) -> bool:
    """Whether the present owner of an instance id excludes another member."""
    return not owner.is_classic and not owner.is_away


def _check_instance(group: ConsumerGroup, request: ConsumerHeartbeat) -> None:
    owner = group.static.get(request.instance_id or "")
    if owner is None:
        raise _unknown(request.member_id)
    if owner != request.member_id:
        raise RequestRefused(
            ErrorCode.FENCED_INSTANCE_ID,
            f"member {owner!r} has taken over instance_id {request.instance_id!r}",
        )


def _check_member_epoch(member: ConsumerMember, request: ConsumerHeartbeat) -> None:
    """Refuse other member epochs, except the previous epoch of a member that missed a response.

    Such a member has only partitions of its assignment: if it reports others, it is fenced.
    """
    current, received = member.current, request.member_epoch
    is_behind = received == current.previous_member_epoch and received < current.member_epoch
    has_missed_an_answer = (
        is_behind and request.owned is not None and request.owned <= current.assigned
    )
    if received != current.member_epoch and not has_missed_an_answer:
        raise RequestRefused(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"member_epoch is {received}, and {current.member_epoch} is expected: "
            "give up all partitions and join again",
        )
    if current.state is MemberState.UNKNOWN and (request.owned is None or request.owned):
        raise RequestRefused(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "the coordinator lost the member's state: revoke all partitions and rejoin",
        )
