"""The steps of a replica that moves between log directories. Sources: KIP-113, KIP-858.

A move copies the *current* log into a *future* log on the same broker. The future log follows the
current log as a follower follows its leader: by offsets and leader epochs. It replaces the current
log only once it holds all of it, and once the committed metadata assigns the replica to the new
directory: if a crash leaves two logs of one name, the metadata decides which one is valid.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from quorumlog.broker.partitions.core.divergence import EpochHistory, judge_fetch, truncation_offset
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset


class LogView(NamedTuple):
    """The records [start, end) of a log, and the history of its leader epochs."""

    start: Offset
    end: Offset
    epochs: EpochHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOver:
    """Drop all of the future log; its next record has this offset."""

    offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class CutTo:
    """Truncate the future log at this offset: the current log was truncated."""

    offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAt:
    """Raise the start of the future log to this offset, the start of the current log."""

    offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFrom:
    """Append the records of the current log from this offset on."""

    offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """Do nothing: both logs hold the same records."""


Step: TypeAlias = StartOver | CutTo | StartAt | CopyFrom | CaughtUp


class AfterStep(Enum):
    """The action that follows a step."""

    GO_ON = auto()
    ANNOUNCE = auto()  # report the new directory to the controller
    WAIT = auto()  # until the committed metadata has changed
    SWAP = auto()  # append the last chunk: then the future log holds all records


class DirectoryMoveRules:
    """The rules of every move; a mutant breaks one."""

    def next_step(  # noqa: PLR0911 - one return per step
        self, current: LogView, future: LogView
    ) -> Step:
        """Compare both logs, as a leader checks a follower's fetch."""
        if not future.start <= current.start <= future.end:
            return StartOver(offset=current.start)
        error_code, diverging = judge_fetch(
            current.epochs,
            fetch_offset=future.end,
            last_fetched_epoch=future.epochs.latest_epoch,
            log_start_offset=current.start,
            log_end_offset=current.end,
        )
        if diverging is not None:
            offset = truncation_offset(
                future.epochs,
                epoch=diverging.epoch,
                end_offset=diverging.end_offset,
                log_end_offset=future.end,
            )
            if offset < future.end:
                return CutTo(offset=offset)
            return StartOver(offset=current.start)  # they have no epoch in common
        if error_code is not ErrorCode.NONE:
            return StartOver(offset=current.start)
        if future.start < current.start:
            return StartAt(offset=current.start)
        if future.end < current.end:
            return CopyFrom(offset=future.end)
        return CaughtUp()

    def ending(
        self, step: Step, *, reaches_end: bool, is_announced: bool, is_named: bool
    ) -> AfterStep:
        """Return the action after `step`.

        `reaches_end`: the chunk read for this step ends at the end of the current log.
        `is_named`: the committed metadata assigns the replica to the new directory. If it does so
        before the announcement, an older move was given up and its retraction is under way.
        """
        if not (isinstance(step, CaughtUp) or (isinstance(step, CopyFrom) and reaches_end)):
            return AfterStep.GO_ON
        if is_announced:
            return AfterStep.SWAP if is_named else AfterStep.WAIT
        return AfterStep.WAIT if is_named else AfterStep.ANNOUNCE
