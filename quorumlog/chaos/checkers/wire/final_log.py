"""The log of a partition, as the final reads found it, and the records that clients have sent."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from quorumlog.chaos.checkers.findings import Row
from quorumlog.chaos.checkers.wire.facts import Batch, KeyFacts
from quorumlog.chaos.history.exchanges import Read

_PARTS = ("key", "headers", "timestamp", "value")


@dataclass(slots=True, kw_only=True)
class FinalLog:
    """The records in [0, end).

    leader_epoch: the newest one in any final response; -1: unknown. row: of the last final read.
    is_whole: the final reads reached an end that the leader named.
    """

    records: dict[int, Read] = field(default_factory=dict)
    end: int = 0
    is_whole: bool = False
    leader_epoch: int = -1
    row: Row | None = None


def final_log(facts: KeyFacts) -> FinalLog:
    """Return the log that the final reads of a key found."""
    log = FinalLog()
    for fetch in facts.fetches:
        if fetch.is_final and fetch.is_good:
            log.records.update((one.offset, one) for one in fetch.records)
            log.row = fetch.row
    ends = [one for one in facts.lookups if one.is_final and one.is_end]
    log.end = ends[-1].offset if ends else 0
    log.is_whole = bool(ends) and all(offset in log.records for offset in range(log.end))
    epochs = [one.asked_epoch for one in ends]
    log.leader_epoch = epochs[-1] if epochs else -1
    if ends:
        log.row = ends[-1].row
    return log


@dataclass(slots=True)
class SentRecords:
    """By value: the digest of the record, and all attempts to append it."""

    digests: dict[int, str]
    attempts: dict[int, list[Batch]]


def sent_records(batches: Sequence[Batch]) -> SentRecords:
    """Return the records of all attempts."""
    sent = SentRecords({}, {})
    for batch in batches:
        for one in batch.records:
            sent.digests.setdefault(one.value, one.digest)
            sent.attempts.setdefault(one.value, []).append(batch)
    return sent


def changed_parts(sent: str, read: str) -> str:
    """Return the names of the parts of a record whose checksums differ."""
    pairs = zip(_PARTS, sent.split(":"), read.split(":"), strict=False)
    return ", ".join(name for name, before, after in pairs if before != after)


def placed_twice(log: FinalLog) -> Iterator[tuple[int, int, int]]:
    """Yield (value, its first offset, another offset) of each value with several offsets."""
    places: dict[int, int] = {}
    for offset in sorted(log.records):
        value = log.records[offset].value
        if value in places:
            yield value, places[value], offset
        else:
            places[value] = offset
