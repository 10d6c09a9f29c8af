"""The effects of a coordinator of consumer groups: shared effects of coordinators, and jobs."""

from dataclasses import dataclass

from quorumlog.broker.coordination.core.effects import AnswerRequest, AppendRecords, OwnEffect
from quorumlog.broker.groups.core.consumer.records import ConsumerGroupRecord
from quorumlog.broker.groups.core.consumer.requests import ConsumerGroupResult
from quorumlog.broker.groups.core.consumer.targets import TargetJob
from quorumlog.broker.groups.core.consumer.topics import MatchJob

__all__ = ["AnswerRequest", "AppendRecords", "Effect", "MakeTarget", "MatchTopics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeTarget(OwnEffect):
    """Run the job outside of the event loop, then feed TargetMade."""

    job: TargetJob


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchTopics(OwnEffect):
    """Run the job outside of the event loop, pass its result to `Topics`, then feed TopicsMatched.

    The event is for all coordinators of the broker.
    """

    job: MatchJob


Effect = AppendRecords[ConsumerGroupRecord] | AnswerRequest[ConsumerGroupResult] | MakeTarget
