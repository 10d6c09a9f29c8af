"""AssignReplicasToDirs requests: tell the controller in which log directory each replica is.

What the image says is compared with what is; the difference is sent until the controller has
committed it. A broker with a single directory has nothing to say. A replica whose directory failed
before it was assigned is reported in that directory: the controller knows then. One that is about
to move is reported where it will be. Source: KIP-858.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from quorumlog.broker.partitions.log.log_directories import LogDirectories
from quorumlog.metadata_quorum.controller_client import (
    ControllerClient,
    ControllerUnavailable,
    ReplicaDirectory,
)
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, PartitionIndex, TopicPartition

PER_REQUEST: Final = 500  # replicas: a small piece of work for the controller
RETRY_BACKOFF_S: Final = 0.5

_logger: Final = logging.getLogger(__name__)


class DirectoryAssignments:
    """Runs one task. It sends nothing while `broker_epoch()` is -1, that is, not registered."""

    def __init__(
        self,
        broker_id: BrokerId,
        controller: ControllerClient,
        *,
        logs: LogDirectories,
        image: Callable[[], ClusterImage],
        broker_epoch: Callable[[], int],
    ) -> None:
        self._broker_id: Final = broker_id
        self._controller: Final = controller
        self._logs: Final = logs
        self._image: Final = image
        self._broker_epoch: Final = broker_epoch
        self._to_look_at: dict[TopicPartition, None] = {}
        self._wake: Final = asyncio.Event()

    def note(self, changed: Iterable[TopicPartition]) -> None:
        """Look at these partitions: their metadata has changed, or their logs were opened."""
        self._to_look_at.update(dict.fromkeys(changed))
        self._wake.set()

    def wake(self) -> None:
        """Look again whether there is something to send."""
        self._wake.set()

    async def run(self) -> None:
        """Send what the controller does not know until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._to_look_at and self._broker_epoch() >= 0:  # `registered` wakes us
                if not await self._send_some():
                    await asyncio.sleep(RETRY_BACKOFF_S)

    async def _send_some(self) -> bool:
        """Send some replicas; return False if they are to be sent again."""
        looked_at = [at for at, _ in zip(self._to_look_at, range(PER_REQUEST), strict=False)]
        for at in looked_at:
            del self._to_look_at[at]
        unknown = [one for one in map(self._unknown, looked_at) if one is not None]
        if not unknown:
            await asyncio.sleep(0)
            return True
        try:
            error_code = await self._controller.assign_replicas(self._broker_epoch(), unknown)
        except ControllerUnavailable as error:
            _logger.info("AssignReplicasToDirs of %d replicas: %s", len(unknown), error)
            error_code = ErrorCode.REQUEST_TIMED_OUT
        if error_code is ErrorCode.NONE:
            return True
        self._to_look_at.update(dict.fromkeys(looked_at))
        return False

    def _unknown(self, at: TopicPartition) -> ReplicaDirectory | None:
        """Return where a replica is, if the image shows it elsewhere."""
        topic, partition = self._image().topics.get(at.topic), self._image().partition(at)
        reported = self._logs.reported(at)
        if topic is None or partition is None or reported is None:
            return None
        known = partition.directory_of(self._broker_id)
        is_known = known == reported or (known is None and not self._logs.are_several)
        if is_known or self._broker_id not in partition.replicas:
            return None
        return ReplicaDirectory(
            directory_id=reported,
            topic_id=topic.topic_id,
            partition=PartitionIndex(at.partition),
        )
