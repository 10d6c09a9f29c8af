"""Logs to be compacted, passes of a cleaner over them, and their content."""

from quorumlog.storage.core.cleaning import CleaningRules
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.cleaning import Cleaning
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.records import Compression, Record, decode_batches, encode_batch
from tests.support.storage.batches import open_log, read_all

TINY = LogSettings(segment_bytes=400, index_interval_bytes=0, cleanup_policy="compact")
FOREVER = 2**62


def rules(
    end_offset: int = FOREVER,
    *,
    first_dirty_offset: int = 0,
    wall_ms: int = 5000,
    producers_since_ms: int = 0,
) -> CleaningRules:
    return CleaningRules(
        first_dirty_offset=first_dirty_offset,
        end_offset=end_offset,
        wall_ms=wall_ms,
        delete_retention_ms=1000,
        producers_since_ms=producers_since_ms,
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def append(
    log: Log,
    *pairs: tuple[str | None, str | None],
    compression: Compression = Compression.NONE,
    producer: int = -1,
    sequence: int = -1,
) -> None:
    records = [
        Record(index, 1000 + index, _bytes(key), _bytes(value))
        for index, (key, value) in enumerate(pairs)
    ]
    batch = encode_batch(
        records,
        compression=compression,
        producer_id=producer,
        producer_epoch=min(producer, 0),
        base_sequence=sequence,
    )
    log.append_as_leader(batch, leader_epoch=0, wall_ms=0)


def begin(log: Log, what: CleaningRules) -> Cleaning:
    log.flush()
    log.share_flushed_segments()
    return log.compaction.begin(what, log.settings, flushed_offset=log.flushed_offset)


def complete(log: Log, cleaning: Cleaning) -> int:
    for cleaned in cleaning.run():
        names = cleaned and log.compaction.swap_in(cleaned, log.settings)
        if names:
            log.compaction.remove_replaced(names)
    return cleaning.newest.end_offset


def clean(log: Log, what: CleaningRules) -> int:
    return complete(log, begin(log, what))


def records_of(log: Log) -> list[Record]:
    return [one for _, records in decode_batches(read_all(log)) for one in records]


def found(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(one.offset, one.key, one.value) for one in records_of(log)]


def log_of_writes(disk: Disk | None = None, *, count: int = 60) -> Log:
    log = open_log(disk, TINY)
    for number in range(count):
        append(log, (f"k{number % 7}", f"v{number}"), (f"other{number % 5}", "x"))
    return log


def newest_values(log: Log) -> dict[bytes | None, bytes | None]:
    return {key: value for _, key, value in found(log)}
