"""A fault: a typed, frozen value, and for faults on processes the steps that make it up.

A fault says what breaks; a back end does it. The simulator changes its own network and disks; a
back end for processes performs the steps kill, start, pause and resume.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

ROLES: Final = ("partition-leader", "metadata-leader", "isr-follower", "any")
"""The roles that a schedule may name: the back end finds the node when the fault is due."""
ALL: Final = "all"

MILLION: Final = 1_000_000

Operation = Literal["kill", "start", "pause", "resume"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One operation on some nodes, then a wait of `wait_us` before the next step."""

    operation: Operation
    node_ids: tuple[int, ...]
    wait_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of fault; the fields of a subclass are its parameters: int, str or Literal.

    A parameter out of range raises ValueError.
    """

    name: ClassVar[str]
    text: ClassVar[str]
    targets: ClassVar[tuple[str, ...]] = ROLES  # of which a schedule may name one; or node ids


class ProcessFault(Fault):
    """A fault that consists of operations on the processes of the nodes."""

    __slots__ = ()
    needs: ClassVar[frozenset[Operation]]
    drawn_duration_ms: ClassVar[tuple[int, int]] = (1_000, 4_000)

    def inflict(self, node_ids: tuple[int, ...], running: Sequence[int]) -> tuple[Step, ...]:
        """Return the steps that break `node_ids`; `running` are all nodes that run."""
        raise NotImplementedError

    def take_back(self, node_ids: tuple[int, ...]) -> tuple[Step, ...]:
        """Return the steps that end the fault."""
        raise NotImplementedError


def check_range(name: str, value: int, low: int, high: int) -> None:
    """Raise ValueError unless `low <= value <= high`."""
    if not low <= value <= high:
        raise ValueError(f"{name} = {value}: it must be from {low} to {high}")
