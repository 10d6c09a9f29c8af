"""What every network of a run can do: let rules hold on the links between its parties."""

from typing import Literal, Protocol

from quorumlog.chaos.faults.links import LinkRule

NetworkKind = Literal["proxy", "netns"]
"""Forwarders between the nodes, or namespaces of the kernel."""


class LinksFailed(Exception):
    """The network of a run cannot do what it should. One line to act on."""


class Links(Protocol):
    """The links of a run. The methods block for a moment."""

    def impose(self, rule: LinkRule) -> None:
        """Let a rule hold from now on. Raises LinksFailed."""

    def lift(self, rule_id: str) -> None:
        """Take a rule back. Raises LinksFailed."""
