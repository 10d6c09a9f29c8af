"""What a transaction coordinator says, as a test wants it."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition


class Question(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    adds: bool


class Coordinator:
    """Says `word` of every partition, at once; None: it has not made up its mind yet."""

    def __init__(self) -> None:
        self.word: ErrorCode | None = ErrorCode.NONE
        self.questions: list[Question] = []
        self.waiting: list[asyncio.Future[Mapping[TopicPartition, ErrorCode]]] = []

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> asyncio.Future[Mapping[TopicPartition, ErrorCode]]:
        question = Question(transactional_id, producer_id, producer_epoch, tuple(partitions), adds)
        self.questions.append(question)
        answer = asyncio.get_running_loop().create_future()
        self.waiting.append(answer)
        if self.word is not None:
            self.say(self.word)
        return answer

    def say(self, word: ErrorCode) -> None:
        waiting, self.waiting = self.waiting, []
        for question, answer in zip(self.questions[-len(waiting) :], waiting, strict=True):
            answer.set_result(dict.fromkeys(question.partitions, word))
