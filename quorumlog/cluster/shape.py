"""The shape of a cluster: how many nodes of each role it has, and the rack of each node.

Brokers are spread over the racks in order, and so are nodes of the role controller alone: with the
racks a, b and c the fourth broker is in a again.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Final

from quorumlog.cluster.errors import InvalidArgument

BROKER: Final = "broker"
CONTROLLER: Final = "controller"


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """The numbers of nodes of a cluster, and its racks. Raises InvalidArgument for impossible ones.

    `controllers` and `brokers`, given together, are nodes of one role each; without them, each of
    `nodes` has both roles. `racks`: their names (KIP-36); each has a broker.
    """

    nodes: int = 3
    controllers: int | None = None
    brokers: int | None = None
    racks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_numbers(nodes=self.nodes, controllers=self.controllers, brokers=self.brokers)
        if self.controllers is None and self.brokers is None:
            if self.nodes < 1:
                raise InvalidArgument(f"--nodes {self.nodes}: at least one is needed")
        elif (self.controllers or 0) < 1 or (self.brokers or 0) < 1:
            raise InvalidArgument("--controllers and --brokers go together, each at least 1")
        if self.racks:
            _require_racks(self.racks, self.broker_count)

    @property
    def roles(self) -> list[tuple[str, ...]]:
        """The roles of each node, in the order of their ids: controllers come first."""
        if self.controllers is None or self.brokers is None:
            return [(BROKER, CONTROLLER)] * self.nodes
        apart: list[tuple[str, ...]] = [(CONTROLLER,)] * self.controllers
        return [*apart, *[(BROKER,)] * self.brokers]

    @property
    def node_racks(self) -> list[str | None]:
        """The rack of each node, in the order of their ids; None: the cluster has no racks."""
        if not self.racks:
            return [None] * len(self.roles)
        places = {roles: count() for roles in self.roles}
        return [self.racks[next(places[roles]) % len(self.racks)] for roles in self.roles]

    @property
    def broker_count(self) -> int:
        """The number of nodes that hold data partitions."""
        return sum(BROKER in roles for roles in self.roles)

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """The nodes that hold data partitions."""
        return tuple(n for n, roles in enumerate(self.roles, start=1) if BROKER in roles)

    @property
    def voter_ids(self) -> tuple[int, ...]:
        """The nodes that vote in the metadata quorum."""
        return tuple(n for n, roles in enumerate(self.roles, start=1) if CONTROLLER in roles)

    def options(self) -> list[str]:
        """Return the command line options of this shape; the default shape has none."""
        racks = ["--racks", ",".join(self.racks)] if self.racks else []
        if self.brokers is not None:
            return ["--controllers", str(self.controllers), "--brokers", str(self.brokers), *racks]
        return [
            *([] if self.nodes == ClusterShape().nodes else ["--nodes", str(self.nodes)]),
            *racks,
        ]


def require_numbers(**given: object) -> None:
    """Raise InvalidArgument for an argument that is neither a whole number nor None."""
    for name, number in given.items():
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            raise InvalidArgument(f"{name}={number!r}: it is a whole number")


def read_racks(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Read the racks of `--racks a,b,c`, or a sequence of them; None: there are none.

    Their names are checked by `ClusterShape`.
    """
    if given is None:
        return ()
    names = given.split(",") if isinstance(given, str) else given
    return tuple(name.strip() for name in names)


def _require_racks(racks: Sequence[str], brokers: int) -> None:
    """Raise InvalidArgument for invalid names, or for a rack that would have no broker."""
    _require_names(racks)
    if brokers < len(racks):
        left = ", ".join(islice(racks, brokers, None))
        raise InvalidArgument(
            f"--racks {','.join(racks)}: each rack needs a broker, and there are {brokers}; "
            f"leave out {left}, or start more nodes"
        )


def _require_names(racks: Sequence[str]) -> None:
    given = ",".join(racks)
    for name in racks:
        if not name or not name.isprintable() or any(one in name for one in " ,:"):
            raise InvalidArgument(
                f"--racks {given}: write names without spaces and colons, as --racks a,b,c"
            )
    name, times = Counter(racks).most_common(1)[0]
    if times > 1:
        raise InvalidArgument(
            f"--racks {given}: {name} is named twice; name each rack once: the brokers are spread "
            "over the racks in order"
        )
