"""The effects of a coordinator of consumer groups: those of every coordinator, with its records."""

from quorumlog.broker.coordination.core.effects import AnswerRequest, AppendRecords
from quorumlog.broker.groups.core.consumer.records import ConsumerGroupRecord
from quorumlog.broker.groups.core.consumer.requests import ConsumerGroupResult

__all__ = ["AnswerRequest", "AppendRecords", "Effect"]

Effect = AppendRecords[ConsumerGroupRecord] | AnswerRequest[ConsumerGroupResult]
