"""Producer ids, handed out from blocks that the controller allocates (KIP-730)."""

import asyncio
from typing import Final

from quorumlog.broker.controller_requests.image_watch import ImageWatch
from quorumlog.metadata_quorum.controller_client import (
    ControllerClient,
    ControllerUnavailable,
    ProducerIdBlock,
)
from quorumlog.metadata_quorum.controller_requests import AllocateProducerIds
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_PRODUCER_ID, BrokerId, ProducerId


class ProducerIds:
    """Invariant: no id is handed out twice in the cluster: a block belongs to one broker, once."""

    def __init__(
        self, *, broker_id: BrokerId, metadata: ImageWatch, controller: ControllerClient
    ) -> None:
        self._broker_id, self._metadata, self._controller = broker_id, metadata, controller
        self._unused = iter(range(0))
        self._allocating: Final = asyncio.Lock()

    async def next(self) -> tuple[ErrorCode, ProducerId]:
        """Return an unused id, or COORDINATOR_LOAD_IN_PROGRESS, which makes clients retry."""
        async with self._allocating:
            producer_id = next(self._unused, None)
            if producer_id is None:
                block = await self._allocate()
                self._unused = iter(range(block.first, block.first + block.count))
                producer_id = next(self._unused, None)
        if producer_id is None:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NO_PRODUCER_ID
        return ErrorCode.NONE, ProducerId(producer_id)

    async def _allocate(self) -> ProducerIdBlock:
        nothing = ProducerIdBlock(first=0, count=0)
        registration = self._metadata.image.brokers.get(self._broker_id)
        if registration is None:
            return nothing
        try:
            request = AllocateProducerIds(
                broker_id=self._broker_id, broker_epoch=registration.broker_epoch
            )
            reply = await self._controller.ask(request)
        except ControllerUnavailable:
            return nothing
        return reply.block if reply.error_code is ErrorCode.NONE else nothing
