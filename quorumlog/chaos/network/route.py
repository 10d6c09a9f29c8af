"""A route: the way of the connections of one link to one listener of a node."""

from dataclasses import dataclass

from quorumlog.chaos.faults.links import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The address where a link's source connects, and the target's address. `host:port` each."""

    link: Link  # its plane is `kafka` or `control`
    listen: str
    target: str
