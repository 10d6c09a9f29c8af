"""A TransactionVerifier whose answers a test gives."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from quorumlog.broker.partitions.log.verified_appends import TransactionProducer
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicId, TopicPartition

Answer = asyncio.Future[Mapping[TopicPartition, ErrorCode]]


class Question(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    adds: bool
    topic_id: TopicId
    answer: Answer

    def reply(self, error_code: ErrorCode = ErrorCode.NONE) -> None:
        self.answer.set_result(dict.fromkeys(self.partitions, error_code))


class ScriptedVerifier:
    """Answers at once while `says` is a code; else `asked` keeps the pending requests."""

    def __init__(self, says: ErrorCode | None = ErrorCode.NONE) -> None:
        self.says = says
        self.asked: list[Question] = []

    def verify(
        self,
        producer: TransactionProducer,
        partitions: Sequence[TopicPartition],
        *,
        topic_id: TopicId = ZERO_TOPIC_ID,
        adds: bool,
    ) -> Answer:
        answer: Answer = asyncio.get_running_loop().create_future()
        question = Question(*producer, tuple(partitions), adds, topic_id, answer)
        self.asked.append(question)
        if self.says is not None:
            question.reply(self.says)
        return answer
