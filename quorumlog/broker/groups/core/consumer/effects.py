"""The effects of a coordinator of consumer groups: those of every coordinator, and targets."""

from dataclasses import dataclass

from quorumlog.broker.coordination.core.effects import AnswerRequest, AppendRecords, OwnEffect
from quorumlog.broker.groups.core.consumer.records import ConsumerGroupRecord
from quorumlog.broker.groups.core.consumer.requests import ConsumerGroupResult
from quorumlog.broker.groups.core.consumer.targets import TargetJob

__all__ = ["AnswerRequest", "AppendRecords", "Effect", "MakeTarget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeTarget(OwnEffect):
    """Run the job, outside of the event loop, then feed TargetMade."""

    job: TargetJob


Effect = AppendRecords[ConsumerGroupRecord] | AnswerRequest[ConsumerGroupResult] | MakeTarget
