"""The writes of one consumer group, and the responses that wait for them."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from quorumlog.broker.groups.core.consumer.records import ConsumerGroupRecord, estimated_size
from quorumlog.broker.groups.core.consumer.requests import ConsumerGroupRequest, ConsumerGroupResult

BATCH_BYTES_MAX: Final = 256 << 10  # of a waiting batch: a log refuses a large batch as a whole


@dataclass(frozen=True, slots=True)
class PendingAnswer:
    """A response that waits until all records decided before it are committed."""

    request_id: int
    request: ConsumerGroupRequest
    result: ConsumerGroupResult


@dataclass(slots=True)
class WriteBatch:
    """Records, and the responses to send once they are committed."""

    records: list[ConsumerGroupRecord] = field(default_factory=list)
    answers: list[PendingAnswer] = field(default_factory=list)
    size: int = 0  # estimated bytes of the records


@dataclass(slots=True)
class GroupWrites:
    """The writes of one group: at most one is under way, the others wait in order."""

    under_way: WriteBatch | None = None
    waiting: deque[WriteBatch] = field(default_factory=deque)

    def add(self, records: list[ConsumerGroupRecord], answer: PendingAnswer | None) -> None:
        """Queue records and their response, in the last batch if it has room for them."""
        size = sum(estimated_size(record) for record in records)
        last = self.waiting[-1] if self.waiting else None
        if last is None or (last.records and last.size + size > BATCH_BYTES_MAX):
            self.waiting.append(WriteBatch())
        batch = self.waiting[-1]
        batch.records += records
        batch.size += size
        if answer is not None:
            batch.answers.append(answer)
