"""The interface of every network of a run: it imposes rules on the links between parties."""

from dataclasses import dataclass
from typing import Literal, Protocol

from quorumlog.chaos.faults.links import Link, LinkRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The address where a link's source connects, and the target's address. `host:port` each."""

    link: Link  # its plane is `kafka` or `control`
    listen: str
    target: str


NetworkKind = Literal["proxy", "netns"]
"""Forwarders between the nodes, or namespaces of the kernel."""


class LinksFailed(Exception):
    """The network of a run has failed. One line to act on."""


class Links(Protocol):
    """The links of a run. The methods block for a moment."""

    def impose(self, rule: LinkRule) -> None:
        """Impose a rule. Raises LinksFailed."""

    def lift(self, rule_id: str) -> None:
        """Lift a rule. Raises LinksFailed."""
