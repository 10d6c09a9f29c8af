"""The events of a coordinator of consumer groups: those of every coordinator, and of topics."""

from collections.abc import Set
from dataclasses import dataclass

from quorumlog.broker.coordination.core.events import (
    BecameLeader,
    RequestReceived,
    Ticked,
    WriteEnded,
)
from quorumlog.broker.groups.core.consumer.requests import ConsumerGroupRequest

__all__ = ["BecameLeader", "Event", "RequestReceived", "Ticked", "TopicsChanged", "WriteEnded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsChanged:
    """Topics of these names came, went or grew; `Topics` shows them as they are now."""

    names: Set[str]


Event = RequestReceived[ConsumerGroupRequest] | WriteEnded | TopicsChanged | BecameLeader | Ticked
