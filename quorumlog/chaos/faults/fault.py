"""A fault: a typed, frozen value, and for faults on processes the steps that make it up.

A fault says what breaks; a back end does it. The simulator changes its own network and disks; a
back end for processes performs the steps kill, start, pause and resume.
"""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Final, Literal, TypeVar, dataclass_transform

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

    `named` declares a kind, and `ranged` a number among its parameters. A number out of its range
    raises ValueError.
    """

    name: ClassVar[str]
    text: ClassVar[str]
    targets: ClassVar[tuple[str, ...]]  # of which a schedule may name one; or node ids

    def __post_init__(self) -> None:
        for parameter in fields(self):
            if limits := parameter.metadata.get("range"):
                (low, high), value = limits, getattr(self, parameter.name)
                if not low <= value <= high:
                    raise ValueError(f"{parameter.name} = {value}: it must be from {low} to {high}")


class ProcessFault(Fault):
    """A fault that consists of operations on the processes of the nodes.

    needs: the operations of its steps. `breaks` and `mends` are the steps of a simple fault.
    """

    __slots__ = ()
    needs: ClassVar[frozenset[Operation]]
    breaks: ClassVar[Operation]
    mends: ClassVar[Operation]
    drawn_duration_ms: ClassVar[tuple[int, int]] = (1_000, 4_000)

    def inflict(self, node_ids: tuple[int, ...], running: Sequence[int]) -> tuple[Step, ...]:
        """Return the steps that break `node_ids`; `running` are all nodes that run."""
        del running
        return (Step(operation=self.breaks, node_ids=node_ids),)

    def take_back(self, node_ids: tuple[int, ...]) -> tuple[Step, ...]:
        """Return the steps that end the fault."""
        return (Step(operation=self.mends, node_ids=node_ids),)


FaultT = TypeVar("FaultT", bound=Fault)


def ranged(low: int, high: int, *, default: int | None = None) -> Any:
    """Return a parameter of a fault: a whole number with `low <= number <= high`."""
    return field(default=MISSING if default is None else default, metadata={"range": (low, high)})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(ranged,))
def named(
    name: str, text: str, *, targets: tuple[str, ...] = ROLES
) -> Callable[[type[FaultT]], type[FaultT]]:
    """Return a decorator: it makes a class of parameters a kind of fault, a frozen dataclass."""

    def declare(kind: type[FaultT]) -> type[FaultT]:
        made = dataclass(frozen=True, slots=True, kw_only=True)(kind)
        made.name, made.text, made.targets = name, text, targets
        return made

    return declare
