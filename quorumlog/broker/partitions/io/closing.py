"""The end of a broker's logs: each is closed, then each directory says whether it is whole."""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Final

from quorumlog.broker.partitions.io.disk_threads import performed
from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.broker.partitions.log.log_directories import LogDirectories
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.partitions.log.replica_set import STRAYS
from quorumlog.wire.codec.identifiers import Offset, TopicPartition

_logger: Final = logging.getLogger(__name__)


async def close_logs(
    drivers: Mapping[TopicPartition, PartitionDriver],
    logs: LogDirectories,
    *,
    flushes: DiskQueue,
    disk: DiskQueue,
    high_watermarks: Mapping[TopicPartition, Offset],
    broker_epoch: int,
    has_failed: bool,
) -> None:
    """Close every log and mark a clean shutdown where all is whole. Raises StorageError.

    `broker_epoch`: -1 if it never registered: then what was closed is so still.
    `has_failed`: the last directory that worked cannot be trusted any more.
    """
    if broker_epoch == -1 and logs.clean_shutdown_epoch is not None:
        broker_epoch = logs.clean_shutdown_epoch
    closed = {at: driver.log for at, driver in drivers.items()}
    closing = (
        performed(flushes, at, partial(logs.progress.close, driver.close))
        for at, driver in drivers.items()
    )
    outcomes = await asyncio.gather(*closing, return_exceptions=True)
    unclean = [logs.home_of(at) for at, outcome in zip(closed, outcomes, strict=True) if outcome]
    if has_failed:
        unclean += logs.online
    for at, outcome in zip(closed, outcomes, strict=True):
        if outcome is not None:
            _logger.error("%s is not closed cleanly: %s", at, outcome)
    finish = partial(logs.finish, closed, high_watermarks, broker_epoch, unclean=unclean)
    await performed(disk, STRAYS, finish)
