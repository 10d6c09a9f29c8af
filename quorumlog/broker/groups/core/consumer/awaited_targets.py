"""Targets that are computed outside of the step, and the requests that wait for them.

A computed target is written in slices: its parts, then its epoch; then the requests that wait for
it are answered. Members are assigned their parts only after the epoch is written.
docs/decisions/0032-group-threads.md
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from quorumlog.broker.groups.core.consumer.assignors import Assignment
from quorumlog.broker.groups.core.consumer.group import Changes, ConsumerGroup
from quorumlog.broker.groups.core.consumer.heartbeats import Admitted
from quorumlog.broker.groups.core.consumer.partitions import Partitions
from quorumlog.broker.groups.core.consumer.requests import ConsumerHeartbeat
from quorumlog.broker.groups.core.consumer.targets import TargetJob, Targets
from quorumlog.broker.groups.core.requests import Join

SLICE_MAX: Final = 1000  # members and partitions of one slice; its last member may exceed it


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRequest:
    """A request that was applied and not yet answered. `epoch`: of the target that it needs."""

    request_id: int
    request: ConsumerHeartbeat | Join
    admitted: Admitted
    epoch: int


@dataclass(slots=True)
class _Awaited:
    """The job under way for a group, and the requests that wait for its target or the next."""

    job: TargetJob
    waiting: deque[WaitingRequest] = field(default_factory=deque)  # their epochs never fall
    unwritten: deque[tuple[str, Partitions]] = field(default_factory=deque)  # parts of the target
    is_in_force: bool = False  # whether the epoch of the computed target is written


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One slice of a target: records to write, requests to answer, and the next job to run."""

    changes: Changes
    ready: list[WaitingRequest]
    next_job: TargetJob | None


class AwaitedTargets:
    """The awaited targets of all groups.

    Invariants:
      1. A group has at most one job under way; it stays here until all its requests are answered.
      2. The waiting requests of a group are answered in their order.
    """

    def __init__(self, targets: Targets) -> None:
        self._targets: Final = targets
        self._awaited: Final[dict[str, _Awaited]] = {}
        self._made: Final[dict[str, _Awaited]] = {}  # computed targets, the next to write first

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._awaited

    @property
    def has_made(self) -> bool:
        """Whether a computed target has parts to write or requests to answer."""
        return bool(self._made)

    def add(self, job: TargetJob) -> None:
        """Record the job under way for a group, whose requests wait from now on."""
        self._awaited[job.group_id] = _Awaited(job)

    def wait(self, group_id: str, request: WaitingRequest) -> None:
        """Queue a request until there is a target of its epoch."""
        self._awaited[group_id].waiting.append(request)

    def drop(self, group_id: str) -> deque[WaitingRequest]:
        """Stop awaiting the group's target; return the waiting requests."""
        self._made.pop(group_id, None)
        awaited = self._awaited.pop(group_id, None)
        return deque() if awaited is None else awaited.waiting

    def note_made(self, job: TargetJob, target: Assignment) -> None:
        """Queue a computed target for writing, if its job is still awaited."""
        awaited = self._awaited.get(job.group_id)
        if awaited is not None and awaited.job is job:
            awaited.unwritten = deque(target.items())
            self._made[job.group_id] = awaited

    def take_slice(self, groups: Mapping[str, ConsumerGroup]) -> Slice:
        """Return a slice of the first computed target, applied to its group."""
        group_id = next(iter(self._made))
        awaited = self._made.pop(group_id)
        group = groups[group_id]
        changes = Changes(group)
        left = self._write(changes, awaited)
        ready = _ready(group, awaited, left)
        if awaited.unwritten or (awaited.is_in_force and _is_ready(awaited)):
            self._made[group_id] = awaited  # after the targets of other groups
            return Slice(changes=changes, ready=ready, next_job=None)
        if not awaited.waiting:
            del self._awaited[group_id]
            return Slice(changes=changes, ready=ready, next_job=None)
        awaited.job, awaited.is_in_force = self._targets.job(group), False
        return Slice(changes=changes, ready=ready, next_job=awaited.job)

    def _write(self, changes: Changes, awaited: _Awaited) -> int:
        """Write parts of the target, and its epoch after the last; return the rest of SLICE_MAX.

        An unusable target is not written further: the next job replaces it.
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
    """Whether the target has exactly the group's members; True for a target of an older epoch.

    A static member that returned under another id begins no epoch, and is not in the job.
    """
    is_newest = job.epoch == group.group_epoch
    return not is_newest or group.members.keys() == job.members.keys()


def _ready(group: ConsumerGroup, awaited: _Awaited, left: int) -> list[WaitingRequest]:
    """Remove and return the next requests whose target is in force, as many as `left` allows."""
    ready = []
    while left > 0 and awaited.is_in_force and _is_ready(awaited):
        ready.append(awaited.waiting.popleft())
        left -= 1 + len(group.target_of(ready[-1].admitted.member_id))
    return ready


def _is_ready(awaited: _Awaited) -> bool:
    return bool(awaited.waiting) and awaited.waiting[0].epoch <= awaited.job.epoch
