"""The log directory of a replica, and whether an incomplete log may be cut.

A new log goes to the directory with the fewest logs, as in Kafka. A log that may be in an offline
directory is not created elsewhere: an empty replica would replace one with records (KAFKA-14616,
KAFKA-16234). Sources: KIP-112, KIP-858.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from quorumlog.metadata_quorum.image import PartitionImage
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId


class Standing(Enum):
    """How far the metadata relies on a replica's records, when its log is opened."""

    SPARE = "a leader has all committed records: damaged records are truncated and fetched again"
    COUNTED_ON = "the replica has all committed records: it is in the ISR or the ELR"
    UNDECIDED = "the partition has no leader, and this log may be the best remaining"
    CHOSEN = "the replica leads with the remaining records: an unclean election"

    @property
    def must_be_whole(self) -> bool:
        """Whether the log must not be cut or set aside before the controller has its report."""
        return self in {Standing.COUNTED_ON, Standing.UNDECIDED}


def standing_of(partition: PartitionImage, broker_id: BrokerId, *, is_new: bool) -> Standing:
    """Return the standing of a broker's replica. `is_new`: this broker never had the replica.

    ISR and ELR show whether a killed process left its membership to this process:
    docs/decisions/0014-whole-logs.md
    """
    if is_new:
        return Standing.SPARE
    if partition.is_recovering and partition.leader_id == broker_id:
        return Standing.CHOSEN
    if broker_id in partition.isr or broker_id in partition.elr:
        return Standing.COUNTED_ON
    return Standing.UNDECIDED if partition.leader_id == NO_LEADER else Standing.SPARE


class Candidate(NamedTuple):
    """A log directory that works. `holds_log`: it contains the log of this partition.

    `holds_future`: it contains a copy of the log from an unfinished move to this directory.
    """

    directory_id: str
    logs: int
    holds_log: bool = False
    holds_future: bool = False


class NoPlace(Enum):
    """The reason why a log is not opened."""

    AMBIGUOUS = "it is in several directories: remove all but one"
    MAY_BE_OFFLINE = "it may be in a directory that cannot be used"
    NONE_ONLINE = "no directory can be used"


def place(  # noqa: PLR0911 - one return per reason
    candidates: Sequence[Candidate],
    assigned: str | None,
    *,
    has_offline: bool,
    is_new: bool,
    preferred: str | None = None,
) -> int | NoPlace:
    """Return the index of the directory in which to open or create the log.

    `assigned`: the directory in the metadata, None without one. `has_offline`: a directory of this
    broker is offline. `is_new`: this broker never had the replica. `preferred`: the requested
    directory of a new log.
    """
    holding = [index for index, one in enumerate(candidates) if one.holds_log]
    if len(holding) == 1:
        return holding[0]
    if not holding and any(one.holds_future for one in candidates):
        return NoPlace.MAY_BE_OFFLINE  # the log was elsewhere, whatever the metadata has
    for index, one in enumerate(candidates):
        if one.directory_id == assigned and (one.holds_log or not holding):
            return index
    if holding:
        return NoPlace.AMBIGUOUS
    if has_offline and not is_new:
        return NoPlace.MAY_BE_OFFLINE
    if not candidates:
        return NoPlace.NONE_ONLINE
    for index, one in enumerate(candidates):
        if one.directory_id == preferred:
            return index
    return min(range(len(candidates)), key=lambda index: candidates[index].logs)
