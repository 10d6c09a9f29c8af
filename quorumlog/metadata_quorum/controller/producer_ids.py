"""Blocks of producer ids: each id is allocated to one broker, once (KIP-730)."""

from typing import Final

from quorumlog.metadata_quorum.controller.brokers import broker_epoch_error
from quorumlog.metadata_quorum.controller.requests import (
    AllocateProducerIds,
    Decision,
    ProducerIdsReply,
)
from quorumlog.metadata_quorum.controller_client import ProducerIdBlock
from quorumlog.metadata_quorum.image.records import ProducerIds
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.wire.codec.error_codes import ErrorCode

BLOCK_IDS: Final = 1000


def decide_producer_ids(
    cluster: ClusterReplay, request: AllocateProducerIds
) -> Decision[ProducerIdsReply]:
    """Reserve the next block. Refuse a stale broker epoch: the process may have been replaced."""
    error_code = broker_epoch_error(cluster, request.broker_id, request.broker_epoch)
    if error_code is not ErrorCode.NONE:
        return Decision(response=ProducerIdsReply(error_code=error_code))
    first = cluster.next_producer_id
    record = ProducerIds(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        next_producer_id=first + BLOCK_IDS,
    )
    block = ProducerIdBlock(first=first, count=BLOCK_IDS)
    return Decision(
        response=ProducerIdsReply(error_code=ErrorCode.NONE, block=block), records=(record,)
    )
