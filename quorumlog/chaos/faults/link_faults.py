"""What faults on links have in common: rules that hold for as long as the fault lasts."""

from collections.abc import Sequence
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import (
    ALL,
    CLIENT,
    NODE_ROLES,
    AnyStep,
    Impose,
    Lift,
    Scene,
    StepFault,
)
from quorumlog.chaos.faults.links import LinkRule

LINK_ROLES: Final = (*NODE_ROLES, CLIENT, ALL)
"""The targets of a fault on the links between them and everybody else."""


class LinkFault(StepFault):
    """A fault that consists of rules on links. A subclass says which."""

    __slots__ = ()
    drawn_duration_ms: ClassVar[tuple[int, int]] = (1_000, 5_000)

    def rules(self, scene: Scene) -> Sequence[LinkRule]:
        """Return the rules; the number of them and their ids do not depend on chance."""
        raise NotImplementedError

    def inflict(self, scene: Scene) -> Sequence[AnyStep]:
        """Impose the rules."""
        return [Impose(rule=rule) for rule in self.rules(scene)]

    def take_back(self, scene: Scene) -> Sequence[AnyStep]:
        """Lift them."""
        return [Lift(rule_id=rule.id) for rule in self.rules(scene)]
