"""The events of a group coordinator: those of every coordinator, and changes of topics."""

from dataclasses import dataclass

from quorumlog.broker.coordination.core.events import (
    BecameLeader,
    RequestReceived,
    Ticked,
    WriteEnded,
)
from quorumlog.broker.groups.core.consumer.events import TargetMade, TopicsChanged
from quorumlog.broker.groups.core.consumer.requests import ConsumerHeartbeat
from quorumlog.broker.groups.core.requests import Request

__all__ = [
    "BecameLeader",
    "Event",
    "RequestReceived",
    "TargetMade",
    "Ticked",
    "TopicsChanged",
    "TopicsDeleted",
    "WriteEnded",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsDeleted:
    """These topics were deleted; a new topic of the same name has other records."""

    topics: tuple[str, ...]


Event = (
    RequestReceived[Request]
    | RequestReceived[ConsumerHeartbeat]
    | WriteEnded
    | TopicsDeleted
    | TopicsChanged
    | TargetMade
    | BecameLeader
    | Ticked
)
