"""The question a leader asks before the first append of a transaction: is it open? (KIP-890).

Without it, a batch that arrives after its transaction has ended would begin another one that
nothing ends, and hold back every `read_committed` consumer for ever.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition


class TransactionVerifier(Protocol):
    """Asks the coordinator of a transactional id, wherever it is."""

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> asyncio.Future[Mapping[TopicPartition, ErrorCode]]:
        """Return for each partition NONE if it is in the open transaction, or why not.

        With `adds` the coordinator adds the partitions first, as clients of transaction.version 2
        expect. The errors are those that a producer understands; an unknown outcome is one of them.
        """
