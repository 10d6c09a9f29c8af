"""The use of a log directory by a broker, without a broker."""

from collections.abc import Mapping

from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import Offset, TopicPartition


def close_all(
    logs: LogDirectory,
    opened: Mapping[TopicPartition, Log],
    high_watermarks: Mapping[TopicPartition, Offset],
    broker_epoch: int,
) -> None:
    """Stop cleanly."""
    for log in opened.values():
        log.close()
    logs.finish(opened, high_watermarks, broker_epoch, is_clean=True)
