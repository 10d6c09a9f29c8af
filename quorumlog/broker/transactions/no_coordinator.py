"""A node without transaction coordinators: nobody can say that a transaction is open."""

import asyncio
from collections.abc import Mapping, Sequence

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition


class NoCoordinator:
    """A TransactionVerifier."""

    def verify(
        self,
        transactional_id: str,  # noqa: ARG002 - the protocol has it
        producer_id: int,  # noqa: ARG002
        producer_epoch: int,  # noqa: ARG002
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,  # noqa: ARG002
    ) -> asyncio.Future[Mapping[TopicPartition, ErrorCode]]:
        """Say that there is none."""
        answer: asyncio.Future[Mapping[TopicPartition, ErrorCode]]
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return answer
