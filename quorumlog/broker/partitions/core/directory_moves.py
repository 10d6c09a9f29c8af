"""What a replica that moves between log directories does next. Sources: KIP-113, KIP-858.

A move copies the *current* log into a *future* one on the same broker. The future log follows the
current one as a follower follows its leader: by offsets and leader epochs. It takes the place of
the current log only once it holds all of it, and once the committed metadata says that the replica
is in the new directory: if a crash leaves two logs of one name, the metadata tells which counts.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from quorumlog.broker.partitions.core.divergence import (
    EpochHistory,
    judge_fetch,
    truncation_offset,
)
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
    """Drop what the future log has from this offset on: the current log was truncated."""

    offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAt:
    """Let the future log start here, as the current one does."""

    offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFrom:
    """Append what the current log has from this offset on."""

    offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """Nothing: both logs hold the same."""


Step: TypeAlias = StartOver | CutTo | StartAt | CopyFrom | CaughtUp


class Ending(Enum):
    """What follows a step."""

    GO_ON = auto()
    ANNOUNCE = auto()  # tell the controller the new directory
    WAIT = auto()  # until the committed metadata has changed
    SWAP = auto()  # with what was read last: then the future log holds all


class DirectoryMoveRules:
    """The rules of every move; a mutant breaks one."""

    def next_step(  # noqa: PLR0911 - one return per step
        self, current: LogView, future: LogView
    ) -> Step:
        """Compare both logs, as a leader judges a follower's fetch."""
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
    ) -> Ending:
        """Say whether the move may come to its end.

        `reaches_end`: what was read for this step goes to the end of the current log.
        `is_named`: the committed metadata says that the replica is in the new directory. If it does
        before that is announced, an older move was given up, and its taking back is on its way.
        """
        if not (isinstance(step, CaughtUp) or (isinstance(step, CopyFrom) and reaches_end)):
            return Ending.GO_ON
        if is_announced:
            return Ending.SWAP if is_named else Ending.WAIT
        return Ending.WAIT if is_named else Ending.ANNOUNCE
