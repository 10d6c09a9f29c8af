"""A fault: a typed, frozen value, and the steps that make it up.

A fault describes a breakage; a back end performs it. A step is an operation on some nodes, or a
rule on links that is imposed or lifted. A fault without steps needs a simulator, which owns the
disks and the network.

A package of a user adds a fault as an entry point: docs/chaos-extending.md.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Final, Protocol, TypeVar, dataclass_transform

from quorumlog.chaos.faults.links import CLIENTS, Cut, Effect, Link, LinkRule, Refuse, between

ROLES: Final = ("partition-leader", "metadata-leader", "isr-follower", "any")
"""The roles of one node that a drawn schedule takes in turn."""
ALL: Final = "all"
CLIENT: Final = "client"
"""The clients, as the target of a fault on links."""
GROUPS: Final = ("minority", "majority")
"""Several nodes, chosen at random when the fault is due: less than half of all, or more."""
RACK: Final = "rack"
"""All nodes of a random rack; `rack:b`: all nodes of the rack b. See `faults.node_groups`."""
NODE_ROLES: Final = (*ROLES, "group-coordinator", RACK, *GROUPS)
"""The targets of a fault on nodes: the back end finds the nodes when the fault is due."""
LINK_ROLES: Final = (*NODE_ROLES, CLIENT, ALL)
"""The targets of a fault on the links between them and all other parties."""

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
    "limit": "unlimit",
    "remove_voter": "add_voter",
}
"""The operations that put a node into another state, each with the operation that ends that state.

An operation that is neither, such as `wipe`, is done and over. Each back end lists what it can.
"""
UNDOING: Final = frozenset(UNDONE_BY.values())
UNDONE_LAST: Final = ("start", "add_voter")
"""The last operations of a healing, in this order: the other operations need no running node."""
MAY_BE_DONE: Final = frozenset({"remove_voter"})
"""Operations that may have been performed although they failed: they are undone all the same."""
MAY_END: Final = frozenset({"free_disk", "mend_disk"})
"""Operations that mend a disk. A process that has met a broken disk may end by itself."""

TAKING: Final = frozenset(
    {"kill", "stop", "pause", "lose_power", "fail_fsync", "fail_disk", "fill_disk", "remove_voter"}
)
"""Operations after which a node serves nobody, may end, or does not vote.

Of three voters two are left without a removed one: neither may be away then.
"""


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

    amount: the argument of the operation, such as the distance of a clock step.
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


OUTSIDE: Final = "outside"
"""The operation that a fault needs whose steps are `Outside`: simulated machines lack it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """An act on a thing beside the nodes, such as a database of the tested service; then a wait.

    ends: it ends the fault. The act is a coroutine function. It raises NodeUnavailable if the fault
    cannot be inflicted now; any other error ends the run without a verdict.
    """

    act: Callable[[], Awaitable[object]]
    ends: bool = False
    wait_us: int = 0


AnyStep = Step | Impose | Lift | Outside


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The state of the cluster when a fault is due. Its healing gets the same scene.

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
        """The names of the parties that are hit, as links have them."""
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
    `breaks` is the operation of a simple fault, whose amount is the parameter that is marked so;
    `UNDONE_BY` has the operation that ends it. By default, a fault needs these two.
    destroys: copies of data are gone for good, so that two such faults never overlap.
    is_control: more is destroyed than a cluster is to survive, to see that a run finds the loss.
    hits_others: it takes other nodes than its target as well.
    """

    __slots__ = ()
    needs: ClassVar[frozenset[str]] = frozenset()
    imposes: ClassVar[frozenset[type[Effect]]] = frozenset()
    breaks: ClassVar[str] = ""
    drawn_duration_ms: ClassVar[tuple[int, int]] = (1_000, 4_000)
    destroys: ClassVar[bool] = False
    is_control: ClassVar[bool] = False
    hits_others: ClassVar[bool] = False

    @classmethod
    def takes_nodes(cls) -> bool:
        """Return whether its nodes serve nobody, or not each other, while it lasts."""
        return bool(cls.needs & TAKING or cls.imposes & {Cut, Refuse})

    def inject(self, scene: Scene) -> Sequence[AnyStep]:
        """Return the steps that break the victims of the scene."""
        amounts = [one.name for one in fields(self) if one.metadata.get("is_amount")]
        amount = getattr(self, amounts[0]) if amounts else 0
        return (Step(operation=self.breaks, node_ids=scene.victims, amount=amount),)

    def heal(self, scene: Scene) -> Sequence[AnyStep]:
        """Return the steps that end the fault; none if it is done and over."""
        if (undo := UNDONE_BY.get(self.breaks)) is None:
            return ()
        return (Step(operation=undo, node_ids=scene.victims),)


class LinkFault(StepFault):
    """A fault that consists of rules on links: by default one, of the effect on the links."""

    __slots__ = ()
    drawn_duration_ms: ClassVar[tuple[int, int]] = (1_000, 5_000)

    def rules(self, scene: Scene) -> tuple[LinkRule, ...]:
        """Return the rules; the number of them and their ids do not depend on chance."""
        return (LinkRule(scene.rule_id(), self.links(scene), self.effect()),)

    def links(self, scene: Scene) -> tuple[Link, ...]:
        """Return the links of the rule: by default, all of the target's."""
        return between(scene.parties, scene.everybody)

    def effect(self) -> Effect:
        """Return the effect of the rule."""
        raise NotImplementedError

    def inject(self, scene: Scene) -> Sequence[AnyStep]:
        """Impose the rules."""
        return [Impose(rule=rule) for rule in self.rules(scene)]

    def heal(self, scene: Scene) -> Sequence[AnyStep]:
        """Lift them."""
        return [Lift(rule_id=rule.id) for rule in self.rules(scene)]


FaultT = TypeVar("FaultT", bound=Fault)


def ranged(low: int, high: int, *, default: int | None = None, is_amount: bool = False) -> Any:
    """Return a parameter of a fault: a whole number with `low <= number <= high`.

    is_amount: it is the amount of the fault's only step.
    """
    limits = {"range": (low, high), "is_amount": is_amount}
    return field(default=MISSING if default is None else default, metadata=limits)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(ranged,))
def named(
    name: str, text: str, *, targets: tuple[str, ...] = ROLES
) -> Callable[[type[FaultT]], type[FaultT]]:
    """Return a decorator: it makes a class of parameters a kind of fault, a frozen dataclass."""

    def declare(kind: type[FaultT]) -> type[FaultT]:
        made = dataclass(frozen=True, slots=True, kw_only=True)(kind)
        made.name, made.text, made.targets = name, text, targets
        if issubclass(made, StepFault) and made.breaks and not made.needs:
            undo = UNDONE_BY.get(made.breaks)
            made.needs = frozenset({made.breaks} if undo is None else {made.breaks, undo})
        return made

    return declare
