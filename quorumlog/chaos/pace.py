"""When the actions of a drawn schedule begin: not while too many nodes are away. Pure.

A drawn schedule plans times for a cluster that recovers at once. On a slow machine a node is back
seconds later, and the next fault at its planned time would hit a cluster that is down: it would
test nothing. So an action begins when its time has come and its nodes are free; all later actions
are moved by its delay.

A fault takes its nodes away if they then serve nobody: a kill, a pause, a cut. A taken node is
free when the fault is healed and the node has caught up.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from quorumlog.chaos.faults.fault import ALL, StepFault
from quorumlog.chaos.schedule import Action, Target

QUIET_US: Final = 1_000_000
"""From the return of the last taken node to a late action: the cluster serves meanwhile."""


def at_once(nodes: int) -> int:
    """Return how many of `nodes` may be away at once: a minority, and one if there is none."""
    return max(1, (nodes - 1) // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The nodes that an action is about to hit.

    takes: they serve nobody while it lasts. means_to: it hits more than a minority by definition.
    destroys: a copy of the data is gone for good.
    """

    nodes: frozenset[int]
    takes: bool = False
    means_to: bool = False
    destroys: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """More actions of a paced schedule, for a run that has not tested enough.

    goes_on: whether the next of `actions` is to be carried out. at_once: how many nodes may be away
    at once. latest_us: no action begins after it, counted from the start; None: no limit.
    """

    actions: Sequence[Action] = ()
    goes_on: Callable[[], bool] = lambda: False
    at_once: int | None = None
    latest_us: int | None = None


@dataclass(slots=True, kw_only=True)
class Pace:
    """The claims of the actions in progress, and the delay of the schedule.

    limit: how many nodes may be away at once. latest_us: no action begins after it, counted from
    the start of the schedule, as all times here; None: no limit. Invariant: the taken nodes are at
    most `limit`, unless a single action has taken them.
    """

    limit: int
    latest_us: int | None = None
    late_us: int = 0
    _claims: dict[int, Claim] = field(default_factory=dict)
    _free_since_us: int = 0

    @property
    def taken(self) -> frozenset[int]:
        """The nodes that are away because of an action in progress."""
        return frozenset().union(*(one.nodes for one in self._claims.values() if one.takes))

    @property
    def is_idle(self) -> bool:
        """Whether no action is in progress."""
        return not self._claims

    def due_us(self, planned_us: int) -> int:
        """Return when an action that is planned for this time is due."""
        return planned_us + self.late_us

    def is_over(self, now_us: int) -> bool:
        """Return whether no action may begin any more."""
        return self.latest_us is not None and now_us > self.latest_us

    def are_away(self, running: Collection[int], target: Target) -> bool:
        """Return whether all nodes of a target are away, because of actions in progress."""
        if self.is_idle:
            return False
        return not running or (not isinstance(target, str) and self.taken >= {*target})

    def why_not(self, claim: Claim, planned_us: int, now_us: int) -> str:
        """Return why an action must wait, or ""."""
        taken = self.taken
        is_late = now_us > self.due_us(planned_us)
        why = ""
        if not claim.takes:
            # Such as lost answers of a node that is down: there are none.
            why = "its nodes are away" if claim.nodes and claim.nodes <= taken else ""
        elif claim.nodes & taken:
            why = "an earlier fault on its node is not over"
        elif taken and (claim.means_to or len(claim.nodes | taken) > self.limit):
            why = "too many nodes would be away"
        elif claim.destroys and any(one.destroys for one in self._claims.values()):
            why = "a copy of the data is being replaced"
        elif is_late and not taken and now_us < self._free_since_us + QUIET_US:
            why = "the nodes are back for a moment only"
        return why

    def begin(self, number: int, claim: Claim, planned_us: int, now_us: int) -> None:
        """Record that the action begins now; later actions are moved by its delay."""
        self._claims[number] = claim
        self.late_us = max(self.late_us, now_us - planned_us)

    def end(self, number: int, now_us: int) -> None:
        """Record that the action is over, and its nodes have caught up."""
        if self._claims.pop(number).takes:
            self._free_since_us = now_us


def claim_of(fault: StepFault, victims: Collection[int], target: Target) -> Claim:
    """Return the claim of a fault on these nodes."""
    takes = fault.takes_nodes()
    return Claim(
        nodes=frozenset(victims),
        takes=takes,
        means_to=takes and means_to(fault, target),
        destroys=fault.destroys,
    )


def means_to(fault: StepFault | type[StepFault], target: Target) -> bool:
    """Return whether a fault that takes nodes takes more than a minority by definition."""
    if not isinstance(target, str):
        return len(target) > 1
    return fault.hits_others or target in {ALL, "majority"}
