"""Targets that are made outside of the step, and the requests that wait for them.

A target that was made is taken over in slices: its parts are written, then its epoch, and then the
requests that wait for it are answered. Members are told of no part before the epoch is written.
docs/decisions/0129-a-large-target-is-made-outside-of-the-step.md
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from quorumlog.broker.groups.core.consumer.assignors import Assignment
from quorumlog.broker.groups.core.consumer.changes import Changes
from quorumlog.broker.groups.core.consumer.group import ConsumerGroup
from quorumlog.broker.groups.core.consumer.heartbeats import Admitted
from quorumlog.broker.groups.core.consumer.partitions import Partitions
from quorumlog.broker.groups.core.consumer.requests import ConsumerHeartbeat
from quorumlog.broker.groups.core.consumer.targets import TargetJob, Targets
from quorumlog.broker.groups.core.requests import Join

SLICE_MAX: Final = 1000  # members and partitions that one step takes over, but for its last member


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRequest:
    """A request that is taken over, and not answered. `epoch`: of the target that it needs."""

    request_id: int
    request: ConsumerHeartbeat | Join
    admitted: Admitted
    epoch: int


@dataclass(slots=True)
class _Awaited:
    """The job that is under way for a group, and the requests that wait for it or for the next."""

    job: TargetJob
    waiting: deque[WaitingRequest] = field(default_factory=deque)  # their epochs never fall
    unwritten: deque[tuple[str, Partitions]] = field(default_factory=deque)  # of what was made
    is_in_force: bool = False  # whether the epoch of what was made is written


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What one step does: it writes the changes, answers these, and has the next target made."""

    changes: Changes
    ready: list[WaitingRequest]
    next_job: TargetJob | None


class AwaitedTargets:
    """Of all groups.

    Invariants:
      1. A group has one job under way at most, and it is awaited until all that waited is answered.
      2. A request is answered after those of its group that waited before it.
    """

    def __init__(self, targets: Targets) -> None:
        self._targets: Final = targets
        self._awaited: Final[dict[str, _Awaited]] = {}
        self._made: Final[dict[str, _Awaited]] = {}  # to be taken over, the next one first

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._awaited

    @property
    def has_made(self) -> bool:
        """Whether there is something to take over."""
        return bool(self._made)

    def add(self, job: TargetJob) -> None:
        """Let requests of the group wait from now on: the job is under way."""
        self._awaited[job.group_id] = _Awaited(job)

    def wait(self, group_id: str, request: WaitingRequest) -> None:
        """Let a request wait for the target of its epoch."""
        self._awaited[group_id].waiting.append(request)

    def drop(self, group_id: str) -> deque[WaitingRequest]:
        """Await the group's target no more; return what has waited."""
        self._made.pop(group_id, None)
        awaited = self._awaited.pop(group_id, None)
        return deque() if awaited is None else awaited.waiting

    def note_made(self, job: TargetJob, target: Assignment) -> None:
        """Let the target be taken over, unless nothing awaits it any more."""
        awaited = self._awaited.get(job.group_id)
        if awaited is not None and awaited.job is job:
            awaited.unwritten = deque(target.items())
            self._made[job.group_id] = awaited

    def take_slice(self, groups: Mapping[str, ConsumerGroup]) -> Slice:
        """Take over a slice of the first target that was made."""
        group_id = next(iter(self._made))
        awaited = self._made.pop(group_id)
        group = groups[group_id]
        changes = Changes(group)
        left = self._write(changes, awaited)
        ready = _ready(group, awaited, left)
        if awaited.unwritten or (awaited.is_in_force and _is_ready(awaited)):
            self._made[group_id] = awaited  # behind those of other groups
            return Slice(changes=changes, ready=ready, next_job=None)
        if not awaited.waiting:
            del self._awaited[group_id]
            return Slice(changes=changes, ready=ready, next_job=None)
        awaited.job, awaited.is_in_force = self._targets.job(group), False
        return Slice(changes=changes, ready=ready, next_job=awaited.job)

    def _write(self, changes: Changes, awaited: _Awaited) -> int:
        """Write parts of the target, and its epoch after the last; return how much is left to do.

        One that cannot be used any more is not written, or not to its end: another is made.
        """
        left = SLICE_MAX
        if awaited.is_in_force:
            return left
        if not _is_usable(awaited.job, changes.group):
            awaited.unwritten.clear()
            return left
        while awaited.unwritten and left > 0:
            member_id, partitions = awaited.unwritten.popleft()
            self._targets.write_part(changes, member_id, partitions)
            left -= 1 + len(partitions)
        if not awaited.unwritten:
            self._targets.write_epoch(changes, awaited.job)
            awaited.is_in_force = True
        return left


def _is_usable(job: TargetJob, group: ConsumerGroup) -> bool:
    """Whether all members of the newest epoch are in the target.

    A static member that came back under another id begins no epoch, and is not in the job.
    """
    is_newest = job.epoch == group.group_epoch
    return not is_newest or group.members.keys() == job.members.keys()


def _ready(group: ConsumerGroup, awaited: _Awaited, left: int) -> list[WaitingRequest]:
    """Take the next requests whose target is in force, as many as one step may answer."""
    ready = []
    while left > 0 and awaited.is_in_force and _is_ready(awaited):
        ready.append(awaited.waiting.popleft())
        left -= 1 + len(group.target_of(ready[-1].admitted.member_id))
    return ready


def _is_ready(awaited: _Awaited) -> bool:
    return bool(awaited.waiting) and awaited.waiting[0].epoch <= awaited.job.epoch
