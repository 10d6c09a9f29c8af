"""Requests of classic members of the consumer protocol type, with bytes that can be read."""

from collections.abc import Iterable
from typing import Any

from quorumlog.broker.groups.core.requests import Heartbeat, Join, Leave, LeavingMember, Sync
from quorumlog.client.assignor import Subscription
from quorumlog.client.core.group_protocol import encode_assignment, encode_subscription
from quorumlog.wire.codec.identifiers import TopicPartition

Owned = Iterable[TopicPartition]


def some(*indexes: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition("t", index) for index in indexes)


def classic_join(member_id: str, *, owned: Owned = (), **changes: Any) -> Join:
    metadata = encode_subscription(Subscription(topics=("t",), owned=tuple(owned)))
    values: dict[str, Any] = {
        "group_id": "g",
        "member_id": member_id,
        "new_member_id": member_id,
        "session_timeout_ms": 1000,
        "rebalance_timeout_ms": 500,
        "protocol_type": "consumer",
        "protocols": (("cooperative-sticky", metadata),),
        "requires_known_member_id": False,
    }
    return Join(**{**values, **changes})


def classic_sync(member_id: str, generation_id: int, **assignments: Owned) -> Sync:
    return Sync(
        group_id="g",
        member_id=member_id,
        generation_id=generation_id,
        assignments={name: encode_assignment(given) for name, given in assignments.items()},
    )


def classic_beat(member_id: str, generation_id: int) -> Heartbeat:
    return Heartbeat(group_id="g", member_id=member_id, generation_id=generation_id)


def classic_leave(*member_ids: str) -> Leave:
    members = tuple(LeavingMember(member_id=member_id) for member_id in member_ids)
    return Leave(group_id="g", members=members)
