"""A fault: a typed, frozen value, and the steps that make it up.

A fault says what breaks; a back end does it. A step is an operation on some nodes, or a rule on
links that is imposed or lifted. Faults without steps are those that only a simulator can do, since
it owns the disks and the network.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Final, Protocol, TypeVar, dataclass_transform

from quorumlog.chaos.faults.links import CLIENTS, Effect, LinkRule

ROLES: Final = ("partition-leader", "metadata-leader", "isr-follower", "any")
"""The roles of one node that a drawn schedule takes in turn."""
ALL: Final = "all"
CLIENT: Final = "client"
"""The clients, as the target of a fault on links."""
GROUPS: Final = ("minority", "majority")
"""Several nodes, chosen at random when the fault is due: less than half of all, or more."""
NODE_ROLES: Final = (*ROLES, "group-coordinator", *GROUPS)
"""What a fault on nodes may aim at: the back end finds the nodes when the fault is due."""

MILLION: Final = 1_000_000

UNDONE_BY: Final[Mapping[str, str]] = {
    "kill": "start",
    "stop": "start",
    "pause": "resume",
    "starve": "feed",
    "step_clock": "reset_clock",
    "fill_disk": "free_disk",
    "fail_disk": "mend_disk",
    "slow_fsync": "mend_fsync",
    "lose_power": "start",
    "fail_fsync": "start",
    "drift_clock": "steady_clock",
    "churn": "calm",
    "throttle": "release",
    "remove_voter": "add_voter",
}
"""The operations that put a node into another state, and those that take it back from there.

An operation that is neither, such as `wipe`, is done and over. Each back end lists what it can.
"""
UNDOING: Final = frozenset(UNDONE_BY.values())
UNDONE_LAST: Final = ("start", "add_voter")
"""What takes back last of all, in this order: the other operations need no running node."""
MAY_BE_DONE: Final = frozenset({"remove_voter"})
"""What a node may suffer although it could not be performed: it is taken back all the same."""
MAY_END: Final = frozenset({"free_disk", "mend_disk"})
"""What takes a fault of a disk back. A process that has met such a fault may end by itself."""


class Rng(Protocol):
    """A generator of random numbers: `random.Random` is one."""

    def random(self) -> float:
        """Return a number in [0, 1)."""

    def randrange(self, start: int, stop: int, /) -> int:
        """Return a whole number in [start, stop)."""

    def shuffle(self, items: list[Any], /) -> None:
        """Bring the items into a random order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One operation on some nodes, then a wait of `wait_us` before the next step.

    amount: what the operation needs to know, such as how far a clock steps.
    """

    operation: str
    node_ids: tuple[int, ...]
    wait_us: int = 0
    amount: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Impose:
    """A rule on links holds from now on; then a wait."""

    rule: LinkRule
    wait_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lift:
    """A rule on links holds no more; then a wait."""

    rule_id: str
    wait_us: int = 0


AnyStep = Step | Impose | Lift


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a fault finds when it is due. The same scene is given when it is taken back.

    action_id: names the action in the history; unique in a run.
    victims: the nodes to hit. `hits_clients`: the target is the clients, and no node.
    running: the nodes whose processes exist. `all_nodes`: all there are.
    rng: of this action alone.
    """

    action_id: str
    victims: tuple[int, ...]
    running: tuple[int, ...]
    all_nodes: tuple[int, ...]
    rng: Rng
    hits_clients: bool = False

    @property
    def parties(self) -> tuple[str, ...]:
        """The names of what is hit, as links have them."""
        return (CLIENTS,) if self.hits_clients else tuple(map(str, self.victims))

    @property
    def other_nodes(self) -> tuple[str, ...]:
        """The names of all nodes that are not hit."""
        return tuple(str(node_id) for node_id in self.all_nodes if node_id not in self.victims)

    @property
    def others(self) -> tuple[str, ...]:
        """The names of all nodes that are not hit, and of the clients if they are not."""
        return tuple(party for party in self.everybody if party not in self.parties)

    @property
    def everybody(self) -> tuple[str, ...]:
        """The names of all nodes and of the clients."""
        return (*map(str, self.all_nodes), CLIENTS)

    def rule_id(self, part: str = "") -> str:
        """Return the id of a rule of this action."""
        return f"{self.action_id}{part}"


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


class StepFault(Fault):
    """A fault that consists of steps.

    needs: the operations on nodes among them; `imposes`: the effects of the rules among them.
    `breaks` is the operation of a simple fault, and `UNDONE_BY` says what mends it.
    destroys: copies of data are gone for good, so that two such faults never overlap.
    is_control: more is destroyed than a cluster is to survive, to see that a run finds the loss.
    """

    __slots__ = ()
    needs: ClassVar[frozenset[str]] = frozenset()
    imposes: ClassVar[frozenset[type[Effect]]] = frozenset()
    breaks: ClassVar[str] = ""
    drawn_duration_ms: ClassVar[tuple[int, int]] = (1_000, 4_000)
    destroys: ClassVar[bool] = False
    is_control: ClassVar[bool] = False

    def inflict(self, scene: Scene) -> Sequence[AnyStep]:
        """Return the steps that break what the scene says."""
        return (Step(operation=self.breaks, node_ids=scene.victims),)

    def take_back(self, scene: Scene) -> Sequence[AnyStep]:
        """Return the steps that end the fault."""
        return (Step(operation=UNDONE_BY[self.breaks], node_ids=scene.victims),)


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
