"""The verification of a transaction before its first append in a partition (KIP-890).

Without it, a batch that arrives after its transaction has ended would begin a transaction that has
no marker, and would hold back every `read_committed` consumer for ever.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from quorumlog.broker.partitions.log.verified_appends import TransactionProducer
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicId, TopicPartition


class TransactionVerifier(Protocol):
    """Sends verification requests to the coordinator of a transactional id."""

    def verify(
        self,
        producer: TransactionProducer,
        partitions: Sequence[TopicPartition],
        *,
        topic_id: TopicId = ZERO_TOPIC_ID,
        adds: bool,
    ) -> asyncio.Future[Mapping[TopicPartition, ErrorCode]]:
        """Return for each partition NONE if the open transaction contains it, or the error.

        `topic_id`: the partitions are of this topic; zeros: of the topic of the name. With `adds`
        the coordinator adds the partitions first, as clients of transaction.version 2 expect.
        Producers support each of the errors, which include an unknown outcome.
        """
