"""The events of a coordinator of consumer groups: shared events, topics, targets."""

from collections.abc import Set
from dataclasses import dataclass

from quorumlog.broker.coordination.core.events import RequestReceived, Ticked, WriteEnded
from quorumlog.broker.groups.core.consumer.assignors import Assignment
from quorumlog.broker.groups.core.consumer.requests import ConsumerGroupRequest
from quorumlog.broker.groups.core.consumer.targets import TargetJob

__all__ = [
    "Event",
    "RequestReceived",
    "TargetMade",
    "Ticked",
    "TopicsChanged",
    "TopicsMatched",
    "WriteEnded",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsChanged:
    """Topics were created, deleted or got partitions; `Topics` has their present state."""

    names: Set[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetMade:
    """The job of a MakeTarget has run. If no group awaits it any more, the event has no effect."""

    job: TargetJob
    target: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsMatched:
    """A job has matched topic names with the expression; `Topics` has the result."""

    expression: str


Event = RequestReceived[ConsumerGroupRequest] | WriteEnded | TopicsChanged | TargetMade | Ticked
