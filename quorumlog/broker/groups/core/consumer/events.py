"""The events of a coordinator of consumer groups: those of every coordinator, topics, targets."""

from collections.abc import Set
from dataclasses import dataclass

from quorumlog.broker.coordination.core.events import (
    RequestReceived,
    Ticked,
    WriteEnded,
)
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
    """Topics of these names came, went or grew; `Topics` shows them as they are now."""

    names: Set[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetMade:
    """The job of a MakeTarget has run. If no group awaits it any more, it changes nothing."""

    job: TargetJob
    target: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsMatched:
    """Some names have been tried with this expression; `Topics` knows whether all have been."""

    expression: str


Event = RequestReceived[ConsumerGroupRequest] | WriteEnded | TopicsChanged | TargetMade | Ticked
