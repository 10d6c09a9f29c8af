"""The interface of every network of a run: it imposes rules on the links between parties."""

from typing import Literal, Protocol

from quorumlog.chaos.faults.links import LinkRule

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
