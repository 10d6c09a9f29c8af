"""The number of nodes of a new cluster, and the roles of each: broker, controller or both."""

from dataclasses import dataclass
from typing import Final

from quorumlog.cluster.errors import InvalidArgument

BROKER: Final = "broker"
CONTROLLER: Final = "controller"


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """The numbers of nodes of a cluster. Raises InvalidArgument for impossible numbers.

    `controllers` and `brokers`, given together, are nodes of one role each; without them, each of
    `nodes` has both roles.
    """

    nodes: int = 3
    controllers: int | None = None
    brokers: int | None = None

    def __post_init__(self) -> None:
        if self.controllers is None and self.brokers is None:
            if self.nodes < 1:
                raise InvalidArgument(f"--nodes {self.nodes}: at least one is needed")
        elif (self.controllers or 0) < 1 or (self.brokers or 0) < 1:
            raise InvalidArgument("--controllers and --brokers go together, each at least 1")

    @property
    def roles(self) -> list[tuple[str, ...]]:
        """The roles of each node, in the order of their ids: controllers come first."""
        if self.controllers is None or self.brokers is None:
            return [(BROKER, CONTROLLER)] * self.nodes
        apart: list[tuple[str, ...]] = [(CONTROLLER,)] * self.controllers
        return [*apart, *[(BROKER,)] * self.brokers]

    @property
    def broker_count(self) -> int:
        """The number of nodes that hold data partitions."""
        return sum(BROKER in roles for roles in self.roles)

    def options(self) -> list[str]:
        """Return the command line options of this shape; the default shape has none."""
        if self.brokers is not None:
            return ["--controllers", str(self.controllers), "--brokers", str(self.brokers)]
        return [] if self == ClusterShape() else ["--nodes", str(self.nodes)]
